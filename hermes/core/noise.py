"""Noise of repeated measurements: mean, coefficient of variation, confidence interval and class.

Variance-aware benchmarking (SVAB): repeat, and report with the mean its coefficient of variation (sample standard
deviation over mean) and 95% confidence interval (Student's t). The coefficient of variation gives the class: below 10%
excellent, below 20% good, below 50% flaky, otherwise rejected. Calibration, benchmarks and regression checks report
through this module. It needs numpy, and scipy for intervals only: collectors run without it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

__all__ = [
    "BOUNDS",
    "T_OF_5",
    "T_OF_20",
    "Class",
    "Spread",
    "classify",
    "peak_rss_bytes",
    "spread",
    "t_quantile",
    "tally",
]

Class = Literal["excellent", "good", "flaky", "rejected"]

BOUNDS: tuple[tuple[float, Class], ...] = ((0.10, "excellent"), (0.20, "good"), (0.50, "flaky"))
"""Upper bounds (exclusive) of the coefficient of variation; above the last one the class is rejected."""


# `t_quantile` of 5 and of 20 samples, for the summary of a run: importing scipy takes as long as a short simulation
T_OF_5, T_OF_20 = 2.776, 2.093


def t_quantile(samples: int) -> float:
    """Return the factor from standard error to 95% interval: Student's t of so many samples, at least 2."""
    from scipy.special import stdtrit  # here: a simulation does not need it

    return float(stdtrit(samples - 1, 0.975))


def classify(cv: float) -> Class:
    """Return the class of a coefficient of variation."""
    return next((name for bound, name in BOUNDS if cv < bound), "rejected")


@dataclass(frozen=True)
class Spread:
    """Statistics of one repeated measurement, in the unit of its values."""

    samples: int
    mean: float
    cv: float
    """Sample standard deviation over mean; 0 for a single sample, whose spread is unknown."""
    p50: float
    p95: float
    p99: float

    @property
    def ci95(self) -> float:
        """Half width of the 95% confidence interval of the mean; infinite for a single sample."""
        n = self.samples
        return t_quantile(n) * self.cv * self.mean / n**0.5 if n > 1 else float("inf")

    @property
    def verdict(self) -> Class | Literal["single"]:
        """The class, or `single` if the measurement was not repeated."""
        return classify(self.cv) if self.samples > 1 else "single"

    def as_dict(self) -> dict[str, Any]:   # Any: numbers, and one word
        """Return plain values, `class` included."""
        return {
            "samples": self.samples, "mean": self.mean, "cv": self.cv, "ci95": self.ci95, "class": self.verdict,
            "p50": self.p50, "p95": self.p95, "p99": self.p99,
        }


def spread(values: Iterable[float]) -> Spread:
    """Return the statistics of at least one finite value with a positive mean; `ValueError` otherwise."""
    data = np.asarray(list(values), dtype=np.float64)
    if len(data) == 0 or not np.isfinite(data).all() or data.mean() <= 0:
        raise ValueError("values need at least one finite number and a positive mean")
    mean, n = float(data.mean()), len(data)
    deviation = float(data.std(ddof=1)) if n > 1 else 0.0
    p50, p95, p99 = (float(q) for q in np.percentile(data, (50, 95, 99)))
    return Spread(samples=n, mean=mean, cv=deviation / mean, p50=p50, p95=p95, p99=p99)


def tally(verdicts: Iterable[str]) -> str:
    """Return the number of measurements in each class, best first: `40 excellent, 3 good, 1 flaky`."""
    counts = Counter(verdicts)
    order = [*(name for _, name in BOUNDS), "rejected", "single"]
    return ", ".join(f"{counts[name]} {name}" for name in order if counts[name]) or "none"


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this process; 0 where the system does not report it (Windows)."""
    try:  # not getrusage on Linux: its figure starts at the parent process's
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:
        return 0
    peak = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return peak if sys.platform == "darwin" else 1024 * peak
