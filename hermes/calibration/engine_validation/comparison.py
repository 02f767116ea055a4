"""Ours beside the engine's: statistics of each metric, errors, and the noise among repetitions of the real run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hermes.calibration.engine_validation.result import METRICS, FloatArray, Times
from hermes.core.noise import Spread, spread

__all__ = ["STATS", "Row", "compare", "statistic"]

STATS = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True)
class Row:
    """One statistic of one metric, in seconds.

    engine_s: mean over the repetitions; error: ours / engine_s - 1; noise: among the repetitions
    """

    metric: str
    stat: str
    ours_s: float
    engine_s: float
    error: float
    noise: Spread

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "metric": self.metric, "stat": self.stat, "ours_s": self.ours_s, "engine_s": self.engine_s,
            "error": self.error, "noise": {k: v if np.isfinite(v) else None for k, v in self.noise.as_dict().items()
                                           if not isinstance(v, str)} | {"class": self.noise.verdict},
        }


def statistic(values: FloatArray, stat: str) -> float:
    """Mean, or a percentile (linear interpolation, as in `hermes.results`)."""
    return float(values.mean()) if stat == "mean" else float(np.percentile(values, float(stat[1:])))


def compare(ours: Times, engine: Sequence[Times]) -> list[Row]:
    """Every metric and statistic; metrics that no request has are left out. `engine` holds at least one repetition."""
    rows = []
    for metric in METRICS:
        if not len(ours.metric(metric)):
            continue
        for stat in STATS:
            measured = spread(statistic(times.metric(metric), stat) for times in engine)
            predicted = statistic(ours.metric(metric), stat)
            rows.append(Row(metric, stat, predicted, measured.mean, predicted / measured.mean - 1, measured))
    return rows
