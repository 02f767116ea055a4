"""The rules of llm-d's Workload Variant Autoscaler (V1 analyser), as functions of numbers.

Source: llm-d/llm-d-workload-variant-autoscaler b08b1c7, internal/saturation/analyzer.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hermes.sums import float_sum

__all__ = ["Analysis", "Replica", "Thresholds", "Variant", "analyse", "targets"]


class Thresholds(NamedTuple):
    """From where on a replica is saturated, and how much all others should have to spare."""

    kv: float = 0.8
    queue: float = 5.0
    kv_spare: float = 0.1
    queue_spare: float = 3.0


class Replica(NamedTuple):
    """What a replica of a variant reports: the share of its KV blocks in use, and the length of its queue."""

    kv: float
    queue: float
    variant: str = ""


class Analysis(NamedTuple):
    """A look at all replicas of a model.

    Attributes:
        unsaturated: Replicas that are not saturated.
        spare_kv, spare_queue: Their mean distance from the thresholds; 0 if all are saturated.
        up: Whether one more is wanted.
        down: Whether the others would hold without one.
    """

    unsaturated: int
    spare_kv: float
    spare_queue: float
    up: bool
    down: bool


class Variant(NamedTuple):
    """A variant of a model, which has replicas.

    Attributes:
        current: Replicas of its Deployment, starting ones included.
        desired: The number that was published last; None if none was.
        reporting: Replicas that report.
        pending: Of `current`, those that are not ready.
    """

    name: str
    cost: float
    current: int
    desired: int | None
    reporting: int
    pending: int


def analyse(replicas: Sequence[Replica], limits: Thresholds) -> Analysis:
    """Return what the replicas of all variants of a model call for. Without any replica nothing is called for."""
    if not replicas:
        return Analysis(0, 0.0, 0.0, up=False, down=False)
    free = [one for one in replicas if one.kv < limits.kv and one.queue < limits.queue]
    n = len(free)
    spare_kv = _mean([(one.variant, limits.kv - one.kv) for one in free])
    spare_queue = _mean([(one.variant, limits.queue - one.queue) for one in free])
    up = spare_kv < limits.kv_spare or spare_queue < limits.queue_spare
    down = False
    if n >= 2:   # the load of one goes to the others
        more = n / (n - 1)
        down = (limits.kv - (limits.kv - spare_kv) * more >= limits.kv_spare
                and limits.queue - (limits.queue - spare_queue) * more >= limits.queue_spare)
    return Analysis(n, spare_kv, spare_queue, up, down)


def _mean(values: Sequence[tuple[str, float]]) -> float:
    """Return the mean over all variants of their own means, weighted by replicas: rounded as there, which decides where
    a spare is just the threshold."""
    if not values:
        return 0.0
    by_variant: dict[str, list[float]] = {}
    for variant, value in values:
        by_variant.setdefault(variant, []).append(value)
    return float_sum(float_sum(own) / len(own) * len(own) for own in by_variant.values()) / len(values)


def targets(found: Analysis, variants: Sequence[Variant]) -> dict[str, int]:
    """Return the number of replicas of each variant to be published.

    Only variants of which a replica reports are looked at; without any, all stay as they are. While the Deployment of
    one has not come to the published number, or not all of its replicas report, nothing changes. Up: one more of the
    cheapest variant, the first by name. Down: one fewer of the dearest, the last by name, that has more than one.
    """
    if not any(one.reporting for one in variants):
        return {one.name: one.current for one in variants}
    variants = [one for one in variants if one.reporting]
    moving = any((one.desired and one.desired != one.current) or one.reporting != one.current for one in variants)
    now = {one.name: (one.desired or one.current) if moving else one.reporting for one in variants}
    if moving:
        return now
    if found.up:
        able = [one for one in variants if not one.pending]
        if able:
            now[min(able, key=lambda one: (one.cost, one.name)).name] += 1
    elif found.down:
        able = [one for one in variants if now[one.name] > 1]
        if able:
            now[max(able, key=lambda one: (one.cost, one.name)).name] -= 1
    return now
