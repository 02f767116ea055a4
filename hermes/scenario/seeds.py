"""How far another seed could move the headlines of a run: the spread of the run's own parts.

The requests, in order of arrival, are cut into five parts. The spread of the parts' percentiles over the root of their
number is the standard error of the run's (batch means); 2.78 of it is half of the 95% interval. Five, because
neighbours share batches and queues: against twelve seeds, ten parts found 0.3 to 1.2 of the spread, five 0.3 to 1.4.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hermes.core.record import STATUS_COMPLETED, RunRecord
from hermes.results.assumes import Assumed
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    from hermes.results.metrics import RequestMetrics
    from hermes.results.slo import SloConfig
    from hermes.scenario.schema import Scenario

__all__ = ["of_one_seed"]

PARTS = 5
STUDENT_T = 2.776   # 97.5% of Student's t with 4 degrees of freedom
FEWEST = 40         # requests of a part
_DRAWN = {"poisson", "gamma", "normal", "mmpp", "uniform"}   # arrivals that depend on the seed


def of_one_seed(scenario: Scenario, record: RunRecord, metrics: RequestMetrics, slo: SloConfig) -> Assumed | None:
    """Return what another seed may change; None for a scenario without chance, or a run too short to tell."""
    if not any(_random(workload) for workload in scenario.workload):
        return None
    done = np.flatnonzero(record.status == STATUS_COMPLETED)
    done = done[np.argsort(record.arrival_ns[done], kind="stable")]
    if len(done) < PARTS * FEWEST:
        return None
    effect, turns = {}, False
    for name in ("ttft", "tpot", "e2e"):
        values = metrics.tpot_s[done] if name == "tpot" else getattr(metrics, f"{name}_ns")[done] / NS_PER_S
        value, half = _spread(values, 99.0)
        if value > 0 and half / value >= 1e-4:
            effect[f"{name}_p99"] = half / value
        limit = getattr(slo, name)
        if limit is not None:
            at, width = _spread(values, slo.percentile)
            turns = turns or abs(limit - at) < width
    return Assumed("one seed", f"seed {scenario.seed}", "another", effect, turns, "batches")


def _random(workload: Any) -> bool:
    kinds = {workload.lengths.kind, getattr(getattr(workload.lengths, "prompt", None), "kind", "fixed")}
    return workload.arrivals.kind in _DRAWN or not kinds <= {"fixed", "trace"}


def _spread(values: npt.NDArray[np.float64], percentile: float) -> tuple[float, float]:
    """Return a percentile, and half of its 95% interval; zeros where there is nothing to spread."""
    known = values[~np.isnan(values) & (values >= 0)]
    if len(known) < PARTS * FEWEST:
        return 0.0, 0.0
    parts = np.array([np.percentile(part, percentile) for part in np.array_split(known, PARTS)])
    return float(np.percentile(known, percentile)), STUDENT_T * float(parts.std(ddof=1)) / math.sqrt(PARTS)
