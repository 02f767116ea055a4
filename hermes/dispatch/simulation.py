"""A simulation: its parts on one clock, run to a record. `hermes.scenario.build` makes one from a scenario."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hermes.core.client import Client
from hermes.core.clock import Clock
from hermes.core.columns import RowLog, release_memory
from hermes.core.network import Network
from hermes.core.record import Describe, Labels, Offered, RunRecord
from hermes.core.request import Stream
from hermes.dispatch.collect import collect
from hermes.dispatch.coordinator import Coordinator
from hermes.errors import HermesError
from hermes.units import NS_PER_S

__all__ = ["Progress", "Simulation", "collection_paused"]

Progress = Callable[[int, int, float], None]
"""Called with requests done, requests in total, simulated seconds."""


class Simulation:
    """Clients, requests, network and coordinator on a clock. `run()` may be called once.

    Attributes:
        interrupted: Whether the user (Ctrl-C), or a part of the dispatch (`Clock.halt`), ended the run early.
        warnings: One line each; see `InputWarning`.
        remarks: Lines about the workload and the clients that the user should read with the results.
    """

    def __init__(
        self, env: Clock, clients: list[Client], streams: list[Stream], network: Network, coordinator: Coordinator, *,
        stage_kinds: list[str], runs: RowLog, describe: list[Describe], labels: Labels, horizon_ns: int | None = None,
        warnings: list[str], remarks: list[str], offered: Offered,
    ) -> None:
        """
        Args:
            fleet: What lets clients join and leave; None if all serve throughout.
            stage_kinds: Names of the kinds of stage, in the order of their numbers in tables.
            runs: Log to which the clients write their runs of steps.
            describe: For each client a function from its rows of the table of runs to its record entry.
            labels: See `RunRecord.labels`.
            horizon_ns: Latest end of the run.
            offered: See `RunRecord.offered`.
        """
        self.env, self.clients, self.streams = env, clients, streams
        self.network, self.coordinator = network, coordinator
        self.stage_kinds, self.warnings, self.remarks = stage_kinds, warnings, remarks
        self.interrupted = False
        self._offered = offered
        self._runs, self._describe, self._labels, self._horizon_ns = runs, describe, labels, horizon_ns

    def run(self, progress: Progress | None = None, *, partial: bool = False) -> RunRecord:
        """Run until every request is completed or rejected, or the horizon is reached.

        partial: Whether an interrupt ends the run, with the record so far; otherwise it raises `KeyboardInterrupt`.
        """
        env, coordinator, horizon = self.env, self.coordinator, self._horizon_ns
        for part in coordinator.parts:
            part.starts()
        coordinator.arrivals.start()
        with collection_paused():
            try:
                env.drain(horizon, None if progress is None else self._watch(progress))
            except KeyboardInterrupt:
                if not partial:
                    raise
                self.interrupted = True
        self.interrupted |= env.halted
        if coordinator.unfinished or env._queue:   # an engine may compute a step after its last answer
            if horizon is not None and not self.interrupted:
                env._now = horizon
            if horizon is None and not self.interrupted and env._queue:
                raise HermesError("the simulated time passes 146 years, the end of the clock: shorten the durations of "
                                  "the scenario, or give a horizon")
            if horizon is None and not self.interrupted:
                raise AssertionError(f"{coordinator.unfinished} requests are stuck: a scheduler lost them")
            for client in self.clients:
                client.settle()
        if self.interrupted:   # the rest of the period was not simulated
            self._offered.until_ns = min(self._offered.until_ns, env._now)
        record = collect(self.clients, self.streams, self.network, coordinator, self._runs, self._describe,
                         self._labels, self.stage_kinds, self._offered)
        release_memory(len(record.runs["client"]))
        return record

    def _watch(self, progress: Progress) -> Callable[[], None]:
        total = self.coordinator.unfinished
        return lambda: progress(total - self.coordinator.unfinished, total, self.env.now / NS_PER_S)


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause garbage collection: simulations make few cycles that are garbage, and scanning millions of objects is slow.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
