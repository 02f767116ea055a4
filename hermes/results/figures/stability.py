"""Stability of a system under its load: mean requests in the system early and late in the time of arrivals.

In a stable system the number of requests settles; in an unstable one it grows as long as requests arrive. Both figures
are time averages over a quarter of the window from the first arrival to the last: the second quarter, when the system
has filled, and the last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hermes.core.record import STATUS_UNFINISHED, RunRecord
from hermes.units import NS_PER_S

__all__ = ["Stability", "stability"]

GROWTH, NOISE = 1.25, 3.0


@dataclass(frozen=True)
class Stability:
    """Verdict on the stability of a run.

    Attributes:
        in_system_early, in_system_late: Mean requests in the system in the second and the last quarter of the arrivals.
        stable: False if the late figure exceeds the early one by more than a quarter and three times its square root
            (its variation with Poisson arrivals alone). None if the window is too short: a quarter of it is shorter
            than the requests' mean time in service, so that the system was still filling, or nothing arrived over time.
    """

    in_system_early: float
    in_system_late: float
    window_s: float
    stable: bool | None


def stability(record: RunRecord, service_ns: float) -> Stability:
    """Judge a run. service_ns: Mean time in service of its requests, without waiting."""
    arrived = record.arrival_ns >= 0
    start = record.arrival_ns[arrived].astype(np.float64)
    if not len(start) or start.max() <= start.min():
        return Stability(0.0, 0.0, 0.0, None)
    end = record.finish_ns[arrived].astype(np.float64)
    end[record.status[arrived] == STATUS_UNFINISHED] = np.inf
    end = np.where(end < 0, start, end)   # rejected requests leave at once
    first, width = start.min(), (start.max() - start.min()) / 4
    early, late = (
        float(np.clip(np.minimum(end, first + (k + 1) * width) - np.maximum(start, first + k * width), 0, None).sum())
        / width for k in (1, 3)
    )
    stable = late <= GROWTH * early + NOISE * np.sqrt(max(early, 1.0))
    known = width >= service_ns   # otherwise growth may be the system filling
    return Stability(early, late, 4 * width / NS_PER_S, bool(stable) if known else None)
