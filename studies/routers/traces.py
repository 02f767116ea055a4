"""The traces of the study: RAGPulse's day, which ships with HERMES, and Mooncake's hour if the user has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hermes.config.data_files import resource_dir
from hermes.core.request_table import RequestTable
from hermes.errors import InputError
from hermes.study import Context
from hermes.units import NS_PER_S
from hermes.workload.traces import read_trace

__all__ = ["Trace", "traces_of"]

QUICK_REQUESTS = 1000   # of Mooncake's
RAGPULSE_RATE = 20.0    # requests/s: replicas compute about as many tokens as with Mooncake's


@dataclass(frozen=True)
class Trace:
    """A trace of the study.

    Args:
        name: Its name in tables.
        path: The Parquet file.
        table: Its requests.
        requests: How many of them are simulated.
        rate: Requests/s for `REPLICAS` replicas.
    """

    name: str
    path: Path
    table: RequestTable
    requests: int
    rate: float

    @property
    def sessions(self) -> bool:
        """Whether requests belong to conversations that the trace names."""
        return self.table.session is not None and bool((self.table.session >= 0).any())


def traces_of(context: Context) -> tuple[list[Trace], list[str]]:
    """Return the traces, and lines about what was left out."""
    day = resource_dir("traces") / "ragpulse-day.parquet"
    table = read_trace(day)
    found = [Trace("RAGPulse", day, table, len(table), RAGPULSE_RATE)]
    path = _mooncake(context)
    if path is None:
        return found, ["Without Mooncake's trace: `hermes trace get mooncake-conversation`, then `--data .`"]
    table = read_trace(path)
    assert table.arrival_ns is not None
    seconds = float(table.arrival_ns[-1] - table.arrival_ns[0]) / NS_PER_S
    requests = min(len(table), QUICK_REQUESTS) if context.quick else len(table)
    said = [f"Quick: the first {requests:,} requests of Mooncake's."] if context.quick else []
    return [Trace("Mooncake", path, table, requests, len(table) / seconds), *found], said


def _mooncake(context: Context) -> Path | None:
    """Return Mooncake's trace as Parquet: as `hermes trace get` writes it, or converted from its JSON lines."""
    if context.data is None:
        return None
    ready, lines = context.data / "mooncake-conversation.parquet", context.data / "mooncake/conversation_trace.jsonl"
    if ready.is_file():
        return ready.resolve()
    if not lines.is_file():
        raise InputError("a folder with mooncake-conversation.parquet (hermes trace get mooncake-conversation) or "
                         "mooncake/conversation_trace.jsonl", str(context.data), field="--data")
    from hermes.workload.importers import import_trace
    from hermes.workload.traces import write_trace

    target = (context.out / "mooncake-conversation.parquet").resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    write_trace(import_trace("mooncake", lines), target, source=lines.name)
    return target
