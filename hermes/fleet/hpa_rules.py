"""The rules of Kubernetes' horizontal pod autoscaler, as functions of numbers: how many replicas a metric asks for, and
how far a recommendation may move the number that there is.

Source: kubernetes v1.33, pkg/controller/podautoscaler: replica_calculator.go
(`calcPlainMetricReplicas`, `groupPods`, `getUsageRatioReplicaCount`, `GetExternalPerPodMetricReplicas`) and
horizontal.go (`stabilizeRecommendationWithBehaviors`, `calculateScaleUpLimitWithScalingRules`,
`calculateScaleDownLimitWithBehaviors`; without `behavior`: `stabilizeRecommendation`, `calculateScaleUpLimit`).

Values and targets are integers in thousandths, as the metrics API has them; a mean is rounded down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hermes.units import NS_PER_S

__all__ = ["Limits", "PodValue", "Stabiliser", "Unruled", "milli", "replicas_by_average", "replicas_by_pods",
           "replicas_by_value"]

_ANY_NUMBER = 1 << 31
_DOWN_WINDOW_NS = 300 * NS_PER_S   # --horizontal-pod-autoscaler-downscale-stabilization


class PodValue(NamedTuple):
    """A pod of a Pods metric.

    Attributes:
        value: In thousandths; None if its value is missing.
        pending: Whether it is in the phase Pending.
        leaving: Whether it is being deleted: it does not count.
    """

    value: int | None
    pending: bool = False
    leaving: bool = False


def milli(value: float) -> int:
    """Return a value in thousandths, rounded down as metrics adapters do."""
    return int(value * 1000)


def _within(ratio: float, tolerance: float) -> bool:
    return 1.0 - tolerance <= ratio <= 1.0 + tolerance


def _ratio(values: Sequence[int], target: int) -> float:
    """Return the mean over the target."""
    return (sum(values) // len(values)) / target


def replicas_by_pods(pods: Sequence[PodValue], target: int, current: int, tolerance: float) -> int | None:
    """Return the replicas for a Pods metric; None if no pod has a value.

    A pod without a value counts as the target if the others are below it, and as 0 if not; a pending one as 0 if the
    others are above it, and else not at all. If these change the direction, nothing changes.
    """
    values = [pod.value for pod in pods if not pod.leaving and not pod.pending and pod.value is not None]
    missing = sum(not pod.leaving and not pod.pending and pod.value is None for pod in pods)
    pending = sum(pod.pending and not pod.leaving for pod in pods)
    if not values:
        return None
    ratio = _ratio(values, target)
    if ratio <= 1.0:
        pending = 0
    if not pending and not missing:
        return current if _within(ratio, tolerance) else math.ceil(ratio * len(values))
    values += [target if ratio < 1.0 else 0] * missing + [0] * pending
    again = _ratio(values, target)
    if _within(again, tolerance) or (again - 1.0) * (ratio - 1.0) < 0:
        return current
    wanted = math.ceil(again * len(values))
    return current if (again - 1.0) * (wanted - current) < 0 else wanted


def replicas_by_value(total: int, target: int, current: int, ready: int, tolerance: float) -> int:
    """Return the replicas for an Object or External metric with a target of type Value.

    ready: Pods that are ready.
    """
    ratio = total / target
    return current if _within(ratio, tolerance) else math.ceil(ratio * ready)


def replicas_by_average(total: int, target: int, current: int, tolerance: float) -> int:
    """Return the replicas for an Object or External metric with a target of type AverageValue."""
    near = current > 0 and _within(total / (target * current), tolerance)
    return current if near else math.ceil(total / target)


class Limits(NamedTuple):
    """How far replicas may change within a period; of several limits the one that allows the larger change counts.

    Attributes:
        pods: Replicas; None without this limit.
        percent: Percent of the replicas at the start of the period; None without this limit.
    """

    pods: int | None
    percent: float | None
    period_ns: int

    def up(self, start: int) -> int:
        """Return the most replicas, with so many at the start of the period."""
        by_percent = 0 if self.percent is None else math.ceil(start * (1 + self.percent / 100))
        return max(0 if self.pods is None else start + self.pods, by_percent)

    def down(self, start: int) -> int:
        """Return the fewest replicas, with so many at the start of the period."""
        by_percent = _ANY_NUMBER if self.percent is None else int(start * (1 - self.percent / 100))
        return min(_ANY_NUMBER if self.pods is None else start - self.pods, by_percent)


class Stabiliser:
    """Moves the replicas towards recommendations: by stabilisation windows, then by limits per period.

    Args:
        up, down: Limits of either direction.
        up_window_ns, down_window_ns: Replicas rise to the lowest and fall to the highest recommendation so long ago.
    """

    def __init__(self, up: Limits, down: Limits, up_window_ns: int, down_window_ns: int, least: int, most: int) -> None:
        self._up, self._down, self._windows = up, down, (up_window_ns, down_window_ns)
        self._least, self._most = least, most
        self._recommended: list[tuple[int, int]] = []   # time, replicas
        self._changes: list[tuple[int, int]] = []       # time, replicas more

    def begin(self, now_ns: int, current: int) -> None:
        """Take the present number as the first recommendation. Called at each sync; only the first one counts."""
        if not self._recommended:
            self._recommended.append((now_ns, current))

    def moved(self, now_ns: int, current: int, recommended: int) -> int:
        """Return the replicas from now on. The recommendation is remembered; a change is if `changed` is called."""
        up_window, down_window = self._windows
        high = min([recommended, *(n for at, n in self._recommended if at > now_ns - up_window)])
        low = max([recommended, *(n for at, n in self._recommended if at > now_ns - down_window)])
        self._recommended = [(at, n) for at, n in self._recommended if at > now_ns - max(self._windows)]
        self._recommended.append((now_ns, recommended))
        wanted = min(max(current, high), low)
        if wanted > current:
            most = max(self._up.up(self._start(now_ns, current, self._up.period_ns)), current)
            return min(wanted, most, self._most)
        if wanted < current:
            least = min(self._down.down(self._start(now_ns, current, self._down.period_ns)), current)
            return max(wanted, least, self._least)
        return current

    def changed(self, now_ns: int, more: int) -> None:
        """Remember a change of the number of replicas."""
        longest = max(self._up.period_ns, self._down.period_ns)
        self._changes = [(at, n) for at, n in self._changes if at > now_ns - longest]
        self._changes.append((now_ns, more))

    def undo(self) -> None:
        """Forget the latest change: nobody carried it out."""
        self._changes.pop()

    def _start(self, now_ns: int, current: int, period_ns: int) -> int:
        """Return the replicas at the start of the period that ends now."""
        return current - sum(more for at, more in self._changes if at > now_ns - period_ns)


class Unruled:
    """Moves the replicas where no `behavior` is written: to the highest recommendation of 300 s, in both directions,
    and up to at most twice as many, or 4, at each sync. Its methods are those of `Stabiliser`."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._recommended: list[tuple[int, int]] = []   # time, replicas

    def begin(self, now_ns: int, current: int) -> None:
        """Take the present number as the first recommendation. Called at each sync; only the first one counts."""
        if not self._recommended:
            self._recommended.append((now_ns, current))

    def moved(self, now_ns: int, current: int, recommended: int) -> int:
        """Return the replicas from now on. A recommendation that is just 300 s old still counts."""
        self._recommended = [(at, n) for at, n in self._recommended if at >= now_ns - _DOWN_WINDOW_NS]
        self._recommended.append((now_ns, recommended))
        wanted = min(max(n for _, n in self._recommended), max(2 * current, 4))
        return max(min(wanted, self._most), self._least)

    def changed(self, now_ns: int, more: int) -> None:
        """No change is remembered: no limit counts them."""

    def undo(self) -> None:
        """There is none."""
