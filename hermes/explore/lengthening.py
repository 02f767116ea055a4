"""Longer arrivals for simulations that have not settled (`hermes.results.figures.settling`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes.explore.objective import Row, grows
from hermes.results.figures.settling import LATENCIES
from hermes.scenario import Scenario

__all__ = ["MOST_REQUESTS", "Arrivals", "arrivals_of"]

MOST_REQUESTS = 400_000   # of a lengthened simulation
LEAST = 1.05              # a smaller factor would change nothing


@dataclass(frozen=True)
class Arrivals:
    """The keys that say for how long the requests of a scenario arrive.

    Attributes:
        counts: Path of `requests` of each workload that has a number of them, with the number.
        durations: Path of `duration` of each of the others, with the seconds.
        fixed: Whether a workload is a trace whose rows are all there is: it cannot be longer, and is judged as it is.
    """

    counts: Mapping[str, int]
    durations: Mapping[str, float]
    fixed: bool

    def settings(self, given: Mapping[str, Any], factor: float) -> dict[str, Any]:
        """Return settings with arrivals `factor` times as long. given: Settings, which may have requests of their own.
        """
        out = dict(given)
        if factor != 1.0:
            out |= {path: max(1, round(given.get(path, count) * factor)) for path, count in self.counts.items()}
            out |= {path: float(given.get(path, seconds)) * factor for path, seconds in self.durations.items()}
        return out

    def longer(self, row: Row, factor: float) -> float | None:
        """Return how many times as long as the scenario's own the arrivals should be; None if they should stay.

        They stay if the run settled, if the queue grows, and if requests of the second half of the arrivals miss the
        SLO for certain: a longer run would tell the same. factor: That of the simulation whose figures are `row`.
        """
        needed, had = row.get("settling.needed_s"), row.get("settling.arrivals_s")
        if self.fixed or row.get("settling.settled") is not False or not needed or not had:
            return None
        if row.get("requests.unfinished") or (row.get("slo.pass") is False and row.get("settling.late_misses")):
            return None
        most = MOST_REQUESTS / max(row["requests.total"], 1)
        more = min(needed / had, most)
        return factor * more if more > LEAST else None

    def judged(self, row: Row) -> Row:
        """Return the figures of a trace's own rows as settled if the trace is long enough: a trace need not be steady,
        since the question is about this trace."""
        p99, had = row.get("latency.e2e_s.p99"), row.get("settling.arrivals_s")
        if not self.fixed or row.get("settling.settled") is not False or grows(row):
            return row
        return {**row, "settling.settled": True} if p99 and had and had >= LATENCIES * p99 else row


def arrivals_of(scenario: Scenario) -> Arrivals:
    """Return the keys of a scenario's workloads."""
    node = scenario.source.node
    place = None if node is None else node.child("workload")
    several = place is not None and isinstance(place.value, list)
    counts: dict[str, int] = {}
    durations: dict[str, float] = {}
    fixed = False
    for i, workload in enumerate(scenario.workload):
        path = f"workload.{i}" if several else "workload"
        if replays(workload):
            fixed = True
        elif workload.requests is not None:
            counts[f"{path}.requests"] = workload.requests
        elif workload.duration is not None:
            durations[f"{path}.duration"] = workload.duration
    return Arrivals(counts, durations, fixed)


def replays(workload: Any) -> bool:
    """Whether a workload has no more rows than its trace."""
    parts: Sequence[Any] = (workload.arrivals, workload.lengths)
    return any(part.replays and not part.repeat for part in parts)
