from pathlib import Path
from typing import Any, Literal

from hermes.config.tables import json_table
from hermes.workload.importers import TRACE_IMPORTERS, TraceImporter, trace_columns

NAMES = {"arrival_s": "t", "prompt_tokens": "in", "output_tokens": "out"}


@TRACE_IMPORTERS.register("access-log")
class AccessLog(TraceImporter):
    """JSON lines with `t` (seconds), `in` and `out` (tokens)."""

    kind: Literal["access-log"] = "access-log"

    def read(self, path: Path) -> Any:
        return self.finish(trace_columns(json_table(path, list(NAMES.values())), NAMES))
