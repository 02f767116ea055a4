from pathlib import Path
from typing import Any, Literal

from hermes.config import json_lines
from hermes.workload.importers import TRACE_IMPORTERS, TraceImporter

NAMES = {"arrival_s": "t", "prompt_tokens": "in", "output_tokens": "out"}


@TRACE_IMPORTERS.register("access-log")
class AccessLog(TraceImporter):
    """JSON lines with `t` (seconds), `in` and `out` (tokens)."""

    kind: Literal["access-log"] = "access-log"

    def read(self, path: Path) -> Any:
        lines = list(json_lines(path))   # (line number, mapping)
        columns = {ours: [row.get(theirs) for _, row in lines] for ours, theirs in NAMES.items()}
        return self.finish(columns, path, lambda name, row: (NAMES[name], lines[row][0]))
