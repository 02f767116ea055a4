"""How far the error of an engine's own sum of memory moves results: both ends of its KV memory, simulated.

Where sequences wait for KV blocks, the range of step times does not hold the error of the blocks: a quarter more of
them made a median TTFT 60% shorter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hermes.core.reasons import Reason
from hermes.errors import InputError
from hermes.hardware.result_ranges import FAMILIES, family_of
from hermes.results.assumes import Assumed, changes_of_runs
from hermes.scenario.starts import GIB, budgets

if TYPE_CHECKING:
    from hermes.core.record import RunRecord
    from hermes.hardware.capacity import KvBudget
    from hermes.results.results import Results
    from hermes.scenario.alternatives import Again
    from hermes.scenario.schema import Scenario

__all__ = ["KvEnds"]

ROWS = 200_000   # of stages and runs of steps in both simulations: some seconds
BINDS = 0.01     # share of the time of a group's steps in which sequences wait for blocks
_FIGURES = (("ttft", "mean"), ("ttft", "p50"), ("ttft", "p99"), *(
    (metric, stat) for metric in ("tpot", "e2e") for stat in ("mean", "p50", "p99")))


class _Bound(NamedTuple):
    """A group of clients whose KV memory binds: its number, its sum, and the share of its steps' time."""

    number: int
    budget: KvBudget
    share: float


class KvEnds:
    """The same run with the least and with the most KV memory that the engine's sum may come to.

    Args:
        scenario: That was simulated.
        again: Simulates it with other settings; None if nothing may be simulated again.
    """

    def __init__(self, scenario: Scenario, again: Again | None) -> None:
        self._scenario, self._again = scenario, again
        self._found: tuple[Results, list[_Bound], list[Results]] | None = None

    def _of(self, results: Results) -> tuple[list[_Bound], list[Results]]:
        """Return the groups whose memory binds, and the runs with less and with more memory; none if not simulated."""
        if self._found is None or self._found[0] is not results:
            bound = list(_bound(self._scenario, results.record))
            self._found = results, bound, self._simulated(results, bound)
        return self._found[1:]

    def _simulated(self, results: Results, bound: list[_Bound]) -> list[Results]:
        record = results.record
        size = max(len(record.runs["client"]) + len(record.stages["client"]), 1)
        if not bound or self._again is None or results.meta.get("interrupted") or 2 * size > ROWS:
            return []
        try:
            return [self._again({f"clients.{one.number}.memory.num_blocks": _blocks(one.budget, end) for one in bound})
                    for end in (0, 1)]
        except InputError:   # not a single request fits into the least
            return []

    def factors(self, results: Results, group: int) -> Mapping[str, tuple[float, float]] | None:
        """Return the factors of results by kind between both ends; None where the group's memory does not bind, and
        none where the ends were not simulated."""
        bound, ends = self._of(results)
        if group not in (one.number for one in bound):
            return None
        ratios: dict[str, list[float]] = {family: [1.0] for family in FAMILIES} if ends else {}
        for end in ends:
            for family, ratio in _ratios(results, end):
                ratios[family].append(ratio)
        return {family: (min(of), max(of)) for family, of in ratios.items()}

    def assumed(self, results: Results) -> Assumed | None:
        """Return the entry of `assumes`; None where no KV memory binds."""
        bound, ends = self._of(results)
        if not bound:
            return None
        worst = max(bound, key=lambda one: one.share)
        low, high = (end / GIB for end in worst.budget.range)
        default = f"{worst.budget.device_bytes / GIB:.1f} GiB a device by the engine's sum ({low:.1f} to {high:.1f})"
        if not ends:
            return Assumed("KV memory", default, f"{low:.1f} GiB", method="not simulated", listed=True)
        before, after = results.summary_of_run, ends[0].summary_of_run
        return Assumed("KV memory", default, f"{low:.1f} GiB", changes_of_runs(before, after),
                       before["slo"]["pass"] != after["slo"]["pass"], "simulated", listed=True)


def _bound(scenario: Scenario, record: RunRecord) -> list[_Bound]:
    """Return the groups whose KV memory is a sum with a range, and whose sequences wait for it."""
    runs, found = record.runs, []
    waits = runs["stopped"] == Reason.KV_MEMORY
    numbers = {config.name: number for number, config in enumerate(scenario.clients)}
    for config, budget, _, _ in budgets(scenario):
        mine = np.isin(runs["client"], [at for at, info in enumerate(record.clients) if info.name in config.names])
        spent = float((runs["end_ns"] - runs["start_ns"])[mine].sum())
        share = float(runs["stopped_ns"][mine & waits].sum()) / max(spent, 1.0)
        if share >= BINDS and budget.range[0] < budget.range[1]:
            found.append(_Bound(numbers[config.name], budget, share))
    return found


def _blocks(budget: KvBudget, end: int) -> int:
    """Return the blocks of one end of the range."""
    block = budget.block_size * budget.kv_bytes_per_token
    return max(int(budget.range[end] * budget.devices // block), 1)


def _ratios(before: Results, after: Results) -> list[tuple[str, float]]:
    """Return what latencies and the time of a served request change by, with their kinds."""
    found, both = [], (before.summary_of_run, after.summary_of_run)
    for metric, stat in _FIGURES:
        was, now = (float(one["latency"][f"{metric}_s"][stat] or 0.0) for one in both)
        if was > 0.0 and now > 0.0:
            found.append((family_of(metric, stat), now / was))
    was, now = (float(one["headline"].get("served_per_s") or 0.0) for one in both)
    return found + ([("times", was / now)] if was > 0.0 and now > 0.0 else [])
