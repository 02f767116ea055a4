"""Base of `trace` arrivals and `trace` lengths: a trace file, read once per draw."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, PrivateAttr

from hermes.core.request_table import RequestTable
from hermes.errors import InputError, Verbatim
from hermes.workload.base import WorkloadComponent

__all__ = ["Replay"]


class Replay(WorkloadComponent):
    """A component that replays the rows of a trace, in order."""

    path: Annotated[str, Field(min_length=1)]
    """A trace file (Parquet written by `hermes trace import`, or CSV), relative to the scenario."""
    repeat: bool = False
    """Start the trace again if it has fewer requests than the workload needs."""

    replays = True
    _table: RequestTable | None = PrivateAttr(default=None)

    def bound(self, base_dir: Path) -> Self:
        """Return a copy that has read its trace. It lives as long as the draw, so that no file content is kept."""
        from hermes.workload.traces import read_trace

        copy = self.model_copy(update={"path": str(base_dir / self.path)})
        if "\0" not in copy.path and not Path(copy.path).exists():   # the scenario's line is what to correct
            raise InputError(Verbatim(f"no such file: {copy.path}"), field="path")
        copy._table = read_trace(copy.path)
        return copy

    def bound_beside(self, other: WorkloadComponent, base_dir: Path) -> Self:
        """Return `bound`, with the table of `other` if that replays the same file: it is read once."""
        if isinstance(other, Replay) and other.path == str(base_dir / self.path):
            copy = self.model_copy(update={"path": other.path})
            copy._table = other._table
            return copy
        return self.bound(base_dir)

    def available(self) -> int | None:
        return None if self.repeat else len(self.table())

    def table(self, n: int = 0) -> RequestTable:
        """Return the trace; `InputError` if it cannot give `n` requests."""
        from hermes.workload.traces import read_trace

        table = self._table if self._table is not None else read_trace(self.path)
        if n > len(table) and not (self.repeat and len(table)):
            expected = f"at most {len(table)} requests, the rows of this trace (or repeat: true)"
            raise InputError(expected, n, file=self.path)
        return table
