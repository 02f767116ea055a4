"""The SLO minute by minute: in which minutes of arrival too few requests stay within their limits.

A run's verdict is one for all of its requests. Where replicas come and go, the question is for how long the service was
out of its limits: the minutes in which a burst had come and the new replicas were still starting.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hermes.arrays import BoolArray, FloatArray, IntArray
from hermes.core.record import STATUS_COMPLETED, RunRecord
from hermes.results.metrics import RequestMetrics
from hermes.results.slo import SloConfig, SloGroup, within_slo, without_limit
from hermes.units import NS_PER_S

__all__ = ["MINUTE_NS", "SloMinutes", "share_asked", "slo_minutes"]

MINUTE_NS = 60 * NS_PER_S
_P99 = 0.99   # requests are compared with the p99 limits over the baselines where no limit per request is given


class SloMinutes(NamedTuple):
    """Minutes in which requests with limits arrive, in order of time; every array has shape (minutes,).

    Attributes:
        minute: Number of the minute of simulated time: minute k is [60 k s, 60 (k + 1) s).
        requests: Requests with a limit that arrived in it.
        within: Those of them that completed within all their limits.
        out: Whether it is out of limit: of some group of requests with the same limits, a smaller share was within
            them than the group's percentile asks for.
        asked: The shares that the groups ask for, distinct and in order.
    """

    minute: IntArray
    requests: IntArray
    within: IntArray
    out: BoolArray
    asked: tuple[float, ...]

    @property
    def share(self) -> FloatArray:
        """Share of the requests within their limits, shape (minutes,)."""
        return self.within / self.requests


def slo_minutes(groups: list[SloGroup], metrics: RequestMetrics, record: RunRecord) -> SloMinutes:
    """Return the minutes of arrival of a run, and which are out of limit (docs/reference/metrics.md).

    A request that was rejected, or has not ended, is not within its limits. One to which no limit applies is in no
    minute: its group has none, or it gave no tokens and has only limits of tokens.
    """
    completed = record.status == STATUS_COMPLETED
    good = within_slo(groups, metrics, completed)
    judged = (record.arrival_ns >= 0) & ~without_limit(groups, metrics, completed)
    limited = [group for group in groups if group.slo.given]
    minute, place = np.unique(record.arrival_ns // MINUTE_NS, return_inverse=True)
    requests, within = np.zeros(len(minute), dtype=np.int64), np.zeros(len(minute), dtype=np.int64)
    out = np.zeros(len(minute), dtype=bool)
    asked = []
    for group in limited:
        mine = judged & group.rows
        if not mine.any():
            continue
        share = share_asked(group.slo)
        arrived, met = (np.bincount(place[rows], minlength=len(minute)) for rows in (mine, mine & good))
        out |= met < share * arrived - 1e-9 * arrived
        requests, within = requests + arrived, within + met
        asked.append(share)
    some = requests > 0
    return SloMinutes(minute[some], requests[some], within[some], out[some], tuple(sorted(set(asked))))


def share_asked(slo: SloConfig) -> float:
    """Return the share of requests that must be within the limits per request of a group."""
    own = any(limit is not None for limit in (slo.ttft, slo.tpot, slo.e2e))
    return slo.percentile / 100 if own else _P99
