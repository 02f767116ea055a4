"""How far a latency may be off, from how far the step times may be.

An error of all steps to the same side grows on its way to a result: a TTFT contains the wait for the batch before, and
a p99 the longest queues. A result's range is the steps' range to a power, by what the result is and by the steps'
class. The powers are what 90 to 95% of the cells of the accuracy page needed; `hermes accuracy` finds them again
without each campaign, site, card, engine and precision, and prints how many of its cells lie inside.
"""

from __future__ import annotations

from hermes.hardware.term_trust import class_of
from hermes.hardware.trust import Kind, Trust

__all__ = ["FAMILIES", "LEAST", "MOST", "POWERS", "family_of", "range_by_power", "result_range"]

FAMILIES = ("times", "times p99", "ttft", "ttft p99")
"""Kinds of results: TPOT, ITL, E2E and rates; their p99; TTFT; its p99."""

MOST = {"measured": 0.06, "near": 0.15}
"""Largest distance from the prediction of a result of each class; wider ones are a guess."""

POWERS: dict[Kind, dict[str, float]] = {
    "measured": {"times": 0.75, "times p99": 1.3, "ttft": 1.1, "ttft p99": 5.4},
    "near": {"times": 1.0, "times p99": 2.7, "ttft": 2.2, "ttft p99": 4.2},
    "guess": {"times": 1.2, "times p99": 2.1, "ttft": 3.5, "ttft p99": 4.8},
}
"""Power of the steps' range, by their class."""

LEAST: dict[Kind, dict[str, float]] = {
    "measured": {"times": 0.75, "ttft": 1.1},
    "near": {"times p99": 1.5, "ttft": 2.0},
    "guess": {"times p99": 1.5, "ttft": 2.0},
}
"""Smallest power by the steps' class, 1 for others. A mean is not surer than its steps, but for those whose terms are
measured, which are not all off to the same side. A first token waits for others: at half of what an engine can serve, a
wait grows by twice what its steps do, and a p99 contains waits; 2 and 1.5 were chosen with the coverage in view."""


def family_of(metric: str, stat: str) -> str:
    """Return the kind of result of a latency or a rate."""
    kind = "ttft" if metric == "ttft" else "times"
    return f"{kind} p99" if stat == "p99" else kind


def result_range(steps: Trust, family: str) -> Trust:
    """Return class and range of a result, as factors of the predicted latency (of a rate: of one over it)."""
    return range_by_power(steps, family, POWERS[steps.kind][family])


def range_by_power(steps: Trust, family: str, power: float) -> Trust:
    """Return the same by a given power. Means of times have the class of the steps, and are kept to its width; others
    that come out *near* have all of its width: of those within 8%, a third were not."""
    low, high = steps.low**power, steps.high**power
    if family == "times" and steps.kind in MOST:
        most = MOST[steps.kind]
        return Trust(steps.kind, max(low, 1.0 - most), min(high, 1.0 + most))
    kind = class_of(low, high, MOST)
    if kind == "near" and family != "times":
        low, high = min(low, 1.0 - MOST[kind]), max(high, 1.0 + MOST[kind])
    return Trust(kind, low, high)
