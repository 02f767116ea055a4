"""Results of `vllm bench serve` as rows, for traces and for comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes.errors import InputError, Verbatim

__all__ = ["bench_rows"]


def bench_rows(result: Mapping[str, Any], path: str | Path) -> list[dict[str, Any]]:
    """Return a row per request of a result of `vllm bench serve --save-detailed`: a JSON object with a list per column.

    Failed requests (with a text in `errors`) have no times and no output tokens. Raises `InputError` for a result
    without details, and for lists of unequal length.
    """
    name, names = str(path), ("input_lens", "output_lens", "ttfts", "start_times", "errors")
    for column in names:
        if not isinstance(result.get(column), list):
            said = f"no {column}: run vllm bench serve with --save-result --save-detailed"
            raise InputError(Verbatim(said), file=name)
    lengths = {column: len(result[column]) for column in names}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{column}: {length}" for column, length in lengths.items())
        raise InputError("lists of equal length", Verbatim(said), file=name)
    rows = []
    itls, latencies = result.get("itls"), result.get("latencies")
    for i, error in enumerate(result["errors"]):
        row: dict[str, Any] = {"start_times": result["start_times"][i], "input_lens": result["input_lens"][i]}
        if error:
            rows.append({**row, "output_lens": 0, "ttfts": None, "latencies": None})
            continue
        first = result["ttfts"][i]
        whole = latencies[i] if isinstance(latencies, list) and len(latencies) == len(result["errors"]) else None
        if whole is None and isinstance(itls, list) and len(itls) == len(result["errors"]):
            whole = first + sum(itls[i])   # versions before `latencies`
        rows.append({**row, "output_lens": result["output_lens"][i], "ttfts": first, "latencies": whole})
    return rows
