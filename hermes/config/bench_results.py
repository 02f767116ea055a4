"""Results of serving benchmarks with a list per column: vLLM's `bench serve --save-detailed`, SGLang's `bench_serving
--output-details`, and their forks.

A file holds one JSON object, a line for each of several runs, or an array of them. SGLang writes no `start_times`, nor
did vLLM at first: then requests are in the order in which they were sent. NaN and infinities (`request_rate`) are null.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hermes.config.columns import DURATIONS, LARGEST, TIMES, TOKENS
from hermes.config.files import MAX_DOCUMENT_BYTES, parse_json, read_json, text_lines
from hermes.config.tables import Table
from hermes.errors import InputError, Verbatim

__all__ = ["JSON", "bench_of", "bench_table", "is_prometheus", "one_of", "results_in"]

JSON = (".json", ".jsonl", ".ndjson")
_LISTS = ("input_lens", "output_lens", "ttfts")
_MARKS = ("# HELP ", "# TYPE ")
_METRIC = ("vllm:", "sglang:", "trtllm", "nv_", "dynamo_", "inference_", "llm_d_", "process_", "python_")


def results_in(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON document, an array of objects or JSON lines."""
    first = next((line for line in text_lines(path, "a JSON file") if line.strip()), "")
    try:
        lines = isinstance(parse_json(first, str(path), unknown=True), dict)
    except InputError:
        lines = False   # an object over several lines
    if not lines:
        found = read_json(path, MAX_DOCUMENT_BYTES, unknown=True)
        return [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, dict)]
    found = [parse_json(line, str(path), number, unknown=True)
             for number, line in enumerate(text_lines(path, "a JSON file"), start=1) if line.strip()]
    return [one for one in found if isinstance(one, dict)]


def bench_of(path: Path, part: int | None = None) -> dict[str, Any] | None:
    """Return the result with a list per column in a file, or None. part: Which of several, from 0.

    Raises `InputError` for several results without a choice.
    """
    if path.suffix.lower() not in JSON:
        return None
    head = "".join(islice(text_lines(path, "a JSON file"), 400))
    if '"ttfts"' not in head and '"input_lens"' not in head:
        return None
    found = results_in(path)
    if not found or not any(isinstance(one.get(name), list) for one in found for name in _LISTS):
        return None
    return one_of(found, part, path)


def one_of(found: list[dict[str, Any]], part: int | None, path: Path) -> dict[str, Any]:
    """Return one of the results of a file. Raises `InputError` for several without a choice."""
    if part is None and len(found) > 1:
        raise InputError(Verbatim(f"the file has {len(found)} results; take one of them (--part 0)"), file=str(path))
    if part is not None and part >= len(found):
        raise InputError(f"a part from 0 to {len(found) - 1}", part, field="--part", file=str(path))
    return found[part or 0]


def bench_table(result: Mapping[str, Any], path: Path) -> Table:
    """Return the requests of a result with a list per column, in the order in which they were sent.

    Failed requests (with a text in `errors`) have no times and no output tokens; without `errors` those without output
    tokens. Raises `InputError` for a result without details, and for lists of unequal length.
    """
    for column in _LISTS:
        if not isinstance(result.get(column), list):
            raise InputError(Verbatim(
                f"no {column}: run vllm bench serve with --save-result --save-detailed, SGLang's bench_serving with "
                "--output-details"), file=str(path))
    names = [name for name in (*_LISTS, "start_times", "errors") if isinstance(result.get(name), list)]
    lengths = {column: len(result[column]) for column in names}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{column}: {length}" for column, length in lengths.items())
        raise InputError("lists of equal length", Verbatim(said), file=str(path))
    table = Table(path, {name: result[name] for name in names})
    texts = result["errors"] if "errors" in names else [not tokens for tokens in result["output_lens"]]
    failed = np.array([bool(error) for error in texts], dtype=bool)
    first, output = (np.where(failed, none, table.typed(column.named(name, null=True))) for name, column, none in (
        ("ttfts", DURATIONS, np.nan), ("output_lens", TOKENS, 0)))
    whole = np.full(len(failed), np.nan)
    for name in ("latencies", "itls"):   # without `latencies` there are the gaps between tokens
        values = result.get(name)
        if isinstance(values, list) and len(values) == len(failed):
            more = Table(path, {name: values if name == "latencies" else _sums(values, path)})
            whole = more.typed(DURATIONS.named(name, null=True)) + (0 if name == "latencies" else first)
            break
    starts = {"start_times": table.typed(TIMES.named("start_times"))} if "start_times" in names else {}
    return Table(path, {
        **starts, "input_lens": table.typed(TOKENS.named("input_lens")),
        "output_lens": output, "ttfts": first, "latencies": np.where(failed, np.nan, whole)})


def _sums(gaps: list[Any], path: Path) -> list[float]:
    """Return the sum of each request's gaps between tokens."""
    for row, values in enumerate(gaps):
        if not isinstance(values, list) or not all(
                type(value) in (int, float) and 0 <= value <= LARGEST for value in values):
            raise InputError(f"a list of numbers from 0 to {LARGEST:g}", values, file=str(path), field=f"itls[{row}]")
    return [float(sum(values)) for values in gaps]


def is_prometheus(path: Path) -> bool:
    """Whether a file is a text dump of Prometheus metrics."""
    lines = [line for line in islice(text_lines(path, "a CSV file"), 20) if line.strip()]
    return any(line.startswith(_MARKS) for line in lines) or (bool(lines) and all(
        line.startswith(_METRIC) for line in lines))
