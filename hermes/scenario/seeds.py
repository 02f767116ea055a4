"""Change of a run's headlines by another seed, estimated from the spread of the run's own parts.

The requests, in order of arrival, are cut into five parts. The spread of the parts' percentiles over the root of their
number is the standard error of the run's (batch means); 2.78 of it is half of the 95% interval. Five, because
neighbours share batches and queues: against twelve seeds, ten parts found 0.3 to 1.2 of the spread, five 0.3 to 1.4.

Two runs with the same requests share most of their chance. Their change is more than chance if the mean of the parts'
changes (in logarithms) exceeds half of its own 95% interval.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hermes.arrays import FloatArray, log
from hermes.core.noise import T_OF_5
from hermes.core.record import BELIEVED, STATUS_COMPLETED, RunRecord
from hermes.results.assumes import Assumed
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    from hermes.results.metrics import RequestMetrics
    from hermes.results.results import Results
    from hermes.results.slo import SloConfig
    from hermes.scenario.schema import Scenario

__all__ = ["beyond_chance", "intervals_of_latencies", "of_one_seed", "spreads"]

PARTS = 5
FEWEST = 40         # requests of a part
_LATENCIES = ("ttft", "tpot", "e2e")
_DRAWN = {"poisson", "gamma", "normal", "mmpp", "profile", "uniform"}   # arrivals that depend on the seed


def spreads(scenario: Scenario, record: RunRecord, metrics: RequestMetrics) -> dict[str, float] | None:
    """Return half of the 95% interval of each latency headline, relative; empty for a scenario without chance, None
    for a run too short to tell."""
    if not any(_random(workload) for workload in scenario.workload):
        return {}
    return intervals_of_latencies(record, metrics) if len(_in_order(record)) >= PARTS * FEWEST else None


def intervals_of_latencies(record: RunRecord, metrics: RequestMetrics) -> dict[str, float]:
    """Return half of the 95% interval of each latency headline, relative; none that a run is too short to tell."""
    done = _in_order(record)
    found = {f"{name}_p99": _spread(_values(metrics, name, done), 99.0) for name in _LATENCIES}
    return {name: half / value for name, (value, half) in found.items() if value > 0}


def beyond_chance(before: Results, after: Results) -> dict[str, float]:
    """Return the mean relative change of each latency headline, and of the cached prompt tokens, over the parts of two
    runs, where it is more than chance. The runs have the same requests; those that both completed are compared."""
    if len(before.record.status) != len(after.record.status):
        return {}
    done = _in_order(before.record)
    done = done[after.record.status[done] == STATUS_COMPLETED]
    found: dict[str, float] = {}
    for name in _LATENCIES:
        old, new = _values(before.metrics, name, done), _values(after.metrics, name, done)
        known = (old > 0) & (new > 0)   # False for NaN, which a request without that latency has
        if int(known.sum()) < PARTS * FEWEST:
            continue
        parts = [np.array([np.percentile(part, 99.0) for part in np.array_split(values[known], PARTS)])
                 for values in (old, new)]
        _add_change(found, f"{name}_p99", *parts)
    if BELIEVED in before.record.notes and len(done) >= PARTS * FEWEST:
        sums = [np.array([part.sum() for part in np.array_split(side.metrics.cached_tokens[done], PARTS)])
                for side in (before, after)]
        if all(side.all() for side in sums):
            _add_change(found, "hits", *sums)
    return found


def _add_change(found: dict[str, float], name: str, old: FloatArray, new: FloatArray) -> None:
    """Add the mean relative change of a figure over the parts of two runs, if it is more than chance."""
    changes = log(new / old)
    mean = float(changes.mean())
    if mean and abs(mean) >= T_OF_5 * float(changes.std(ddof=1)) / math.sqrt(PARTS):
        found[name] = math.expm1(mean)


def of_one_seed(scenario: Scenario, record: RunRecord, metrics: RequestMetrics, slo: SloConfig) -> Assumed | None:
    """Return what another seed may change; None for a scenario without chance, or a run too short to tell."""
    found = spreads(scenario, record, metrics)
    if not found:
        return None
    turns, done = False, _in_order(record)
    for name in _LATENCIES:
        limit = getattr(slo, name)
        if limit is not None:
            at, width = _spread(_values(metrics, name, done), slo.percentile)
            turns = turns or abs(limit - at) < width
    effect = {name: half for name, half in found.items() if half >= 1e-4}
    return Assumed("one seed", f"seed {scenario.seed}", "another", effect, turns, "batches")


def _in_order(record: RunRecord) -> npt.NDArray[np.intp]:
    """Return the completed requests in order of arrival."""
    done = np.flatnonzero(record.status == STATUS_COMPLETED)
    return done[np.argsort(record.arrival_ns[done], kind="stable")]


def _values(metrics: RequestMetrics, name: str, done: npt.NDArray[np.intp]) -> FloatArray:
    """Return a latency of requests, in seconds."""
    seconds = metrics.tpot_s if name == "tpot" else getattr(metrics, f"{name}_ns") / NS_PER_S
    return np.asarray(seconds[done])


def _random(workload: Any) -> bool:
    prompt = workload.lengths.model_dump().get("prompt")
    kinds = {workload.lengths.kind, prompt["kind"] if isinstance(prompt, dict) else "fixed"}
    return workload.arrivals.kind in _DRAWN or not kinds <= {"fixed", "trace"}


def _spread(values: FloatArray, percentile: float) -> tuple[float, float]:
    """Return a percentile, and half of its 95% interval; zeros where there is nothing to spread."""
    known = values[~np.isnan(values) & (values >= 0)]
    if len(known) < PARTS * FEWEST:
        return 0.0, 0.0
    parts = np.array([np.percentile(part, percentile) for part in np.array_split(known, PARTS)])
    return float(np.percentile(known, percentile)), T_OF_5 * float(parts.std(ddof=1)) / math.sqrt(PARTS)
