"""Importer of what load drivers write: the requests of a benchmark as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hermes.config.bench_results import bench_rows
from hermes.config.files import json_lines
from hermes.errors import InputError, Verbatim
from hermes.workload.importers import TraceImporter, arrivals_s

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["VllmBenchTrace"]

_NAMES = {"arrival_s": "start_times", "prompt_tokens": "input_lens", "output_tokens": "output_lens"}


class VllmBenchTrace(TraceImporter):
    """Results of `vllm bench serve --save-result --save-detailed`: a JSON object with a list per column (start_times in
    seconds of a clock with any origin, input_lens, output_lens, errors). A file with several results (--append-result)
    is refused. Failed requests have zero output tokens (`zero_tokens`)."""

    kind: Literal["vllm-bench"] = "vllm-bench"

    def read(self, path: Path) -> pd.DataFrame:
        results = [row for _, row in json_lines(path)]
        if len(results) != 1:
            raise InputError("one result", Verbatim(f"{len(results)}"), file=str(path))
        rows = bench_rows(results[0], path)
        found: dict[str, Any] = {ours: [row[theirs] for row in rows] for ours, theirs in _NAMES.items()}

        def locate(name: str, row: int) -> tuple[str, int | None]:
            return f"{_NAMES[name]}.{row}", None

        found["arrival_s"] = arrivals_s(found["arrival_s"], "s", path, locate)
        return self.finish(found, path, locate)
