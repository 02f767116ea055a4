"""The rules of AIBrix's pod autoscalers, as functions of numbers, as they are executed and as they are documented.

Source: vllm-project/aibrix e3e10f9e, pkg/controller/podautoscaler: algorithm/kpa.go, algorithm/apa.go,
metrics/client.go (windows) and podautoscaler_controller.go (`stabilizeRecommendation`). The documented rules are those
of Knative's autoscaler, which the code's comments repeat: the sum over pods, panic by replicas, none fewer in a panic,
the highest recommendation of the last minutes on the way down.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hermes.sums import float_sum

__all__ = ["Panic", "Rates", "Recommendations", "Tolerance", "Window", "apa_replicas", "in_panic", "kpa_replicas"]


class Rates(NamedTuple):
    """By which factors replicas may rise and fall in one step."""

    up: float = 2.0
    down: float = 2.0

    def most(self, current: int) -> int:
        return max(1, math.ceil(self.up * current))

    def fewest(self, current: int) -> int:
        return math.floor(current / self.down)


class Tolerance(NamedTuple):
    """How far a value may be from its target without a change: shares above and below it."""

    up: float = 0.1
    down: float = 0.1

    def holds(self, ratio: float) -> bool:
        return 1 - self.down <= ratio <= 1 + self.up


class Window:
    """Values of so long, and their mean. One that is exactly as old still counts."""

    def __init__(self, length_ns: int) -> None:
        self._length_ns = length_ns
        self._values: list[tuple[int, float]] = []

    def add(self, now_ns: int, value: float) -> None:
        self._values = [one for one in self._values if one[0] >= now_ns - self._length_ns]
        self._values.append((now_ns, value))

    def mean(self) -> float:
        return float_sum(value for _, value in self._values) / len(self._values)


def kpa_replicas(stable: float, panic: float, target: float, current: int, rates: Rates,
                 tolerance: Tolerance | None = None, *, panics: bool) -> int:
    """Return what `kpa` asks for: by the mean of the long window, in a panic by the larger one.

    tolerance: Ratios to the target at which the present number is asked for; None for none, as documented.
    """
    def bounded(value: float) -> int:
        near = tolerance is not None and tolerance.holds(value / target)
        return current if near else min(max(math.ceil(value / target), rates.fewest(current)), rates.most(current))

    return max(bounded(stable), bounded(panic)) if panics else bounded(stable)


def in_panic(stable: float, panic: float, threshold: float) -> bool:
    """Whether `kpa` panics, as executed: by the ratio of the means of the two windows."""
    return stable <= 0 or panic / stable > threshold


class Panic:
    """A panic as documented: it begins when the short window asks for `threshold` times the present replicas, and ends
    when it has not for the length of the long window. Meanwhile replicas do not fall."""

    def __init__(self, threshold: float, stable_ns: int) -> None:
        self._threshold, self._stable_ns = threshold, stable_ns
        self._since_ns: int | None = None
        self._most = 0

    def look(self, now_ns: int, panic: float, target: float, current: int) -> bool:
        """Return whether there is a panic now."""
        if math.ceil(panic / target) / max(1, current) >= self._threshold:
            if self._since_ns is None:
                self._most = current
            self._since_ns = now_ns
        elif self._since_ns is not None and self._since_ns + self._stable_ns < now_ns:
            self._since_ns, self._most = None, 0
        return self._since_ns is not None

    def held(self, replicas: int) -> int:
        """Return the replicas in a panic: the most that were asked for in it."""
        self._most = max(self._most, replicas)
        return self._most


def apa_replicas(use: float, target: float, current: int, tolerance: Tolerance, rates: Rates) -> int:
    """Return what `apa` asks for: current x use / target, rounded up, unless the ratio is near to 1."""
    ratio = use / target
    if tolerance.holds(ratio):
        return current
    asked = math.ceil(current * ratio)
    return min(asked, math.ceil(rates.up * current)) if ratio > 1 else max(asked, rates.fewest(current))


class Recommendations:
    """What was asked for within the cooldown windows. On the way up the highest of the window counts, on the way down
    the lowest: the code takes the minimum where it means the maximum, so that one low value acts at once, and again.

    Args:
        intended: Whether the highest counts on the way down, too.
    """

    def __init__(self, up_ns: int, down_ns: int, *, intended: bool) -> None:
        self._up_ns, self._down_ns, self._intended = up_ns, down_ns, intended
        self._asked: list[tuple[int, int]] = []

    def settled(self, now_ns: int, current: int, asked: int) -> int:
        """Return the replicas after the cooldown windows."""
        self._asked = [one for one in self._asked if one[0] > now_ns - max(self._up_ns, self._down_ns)]
        self._asked.append((now_ns, asked))
        if asked == current:
            return current
        window_ns = self._up_ns if asked > current else self._down_ns
        within = [n for at, n in self._asked if at > now_ns - window_ns] or [asked]
        if asked > current:
            return max(within)
        return min(max(within), current) if self._intended else min(within)
