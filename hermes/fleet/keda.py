"""KEDA's scaler (`kind: keda`): a horizontal pod autoscaler on sums of metrics, and the steps to and from no replica.

KEDA asks its triggers every 30 s whether one is active. From no replica to the first ones it acts itself, at once. It
goes back when no trigger has been active for the cooldown period. Between one replica and the most the horizontal pod
autoscaler acts, on External metrics with a target of type AverageValue; it is off while there is no replica.

Source: kedacore/keda v2.17, pkg/scaling/executor/scale_scaledobjects.go (`RequestScale`, `scaleToZeroOrIdle`,
`scaleFromZeroOrIdle`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from hermes.config import ConfigModel, Duration
from hermes.errors import InputError, Verbatim
from hermes.fleet.autoscalers import AUTOSCALERS, Acts, AutoscalerView, Beats, Pod
from hermes.fleet.hpa import Ruled, Settling
from hermes.fleet.hpa_rules import milli, replicas_by_average
from hermes.sums import float_sum
from hermes.units import s_to_ns

__all__ = ["Activity", "Keda", "Trigger"]


class Trigger(ConfigModel):
    """A metric, its target for each replica, and from where on it is active."""

    metric: Literal["queue", "waiting", "running", "kv_use"]
    """`queue`: the requests that wait at the gateway for a ready replica. The others: the sum over all replicas that
    have been scraped, of sequences in the queue, sequences in the batch, the share of KV blocks in use."""
    target: float = Field(ge=0.001, le=1e6)
    """Target for each replica (`threshold`); it counts in thousandths, as values do."""
    activation: float = Field(default=0.0, ge=0, le=1e9)
    """The trigger is active above this value (`activationThreshold`)."""

    def value(self, pods: list[Pod], queued: int) -> float:
        """Return the value: of nothing that is scraped the sum is 0."""
        if self.metric == "queue":
            return queued
        return float(float_sum(getattr(pod.sample, self.metric) for pod in pods if pod.sample is not None))


class Activity(NamedTuple):
    """What KEDA remembers of its triggers. active_ns: When one was last active; None if none was yet."""

    active_ns: int | None = None


@AUTOSCALERS.register("keda")
class Keda(Ruled):
    """KEDA: an HPA on sums of metrics, and the steps to and from no replica."""

    kind: Literal["keda"] = "keda"
    triggers: list[Trigger] = Field(min_length=1, max_length=100)
    """Triggers; the one that asks for most replicas decides, and one that is active is enough for the first."""
    min: int = Field(default=0, ge=0, le=100_000)
    """Fewest replicas (`minReplicaCount`). 0 needs a queue at the gateway."""
    max: int | None = Field(default=None, ge=1, le=100_000)
    """Most replicas. Left out, the group's `count` (KEDA: 100)."""
    idle: Literal[0] | None = None
    """Replicas while no trigger is active (`idleReplicaCount`), below `min`. Left out, `min`."""
    polling: Duration = Field(default=30.0, gt=0)
    """Time between two looks at whether a trigger is active (`pollingInterval`), the first one at the start."""
    cooldown: Duration = Field(default=300.0, ge=0)
    """Time since a trigger was last active, for the last step to no replica (`cooldownPeriod`)."""
    initial_cooldown: Duration = Field(default=0.0, ge=0)
    """The same while no trigger has been active yet, since the start (`initialCooldownPeriod`)."""
    sync: Duration = Field(default=15.0, gt=0)
    """Time between two decisions of the horizontal pod autoscaler, the first one at the start."""
    scrape: Duration = Field(default=15.0, gt=0)
    """Time between two scrapes of a replica. When in it a replica is scraped is drawn once for each."""
    tolerance: float = Field(default=0.1, ge=0, lt=1)
    """The horizontal pod autoscaler changes nothing if the ratio to the target is as near to 1."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise InputError(f"at least {self.min}, the `min`", self.max, field="max")
        if self.idle is not None and not self.min:
            raise InputError(Verbatim("is `min` already; leave it out, or give `min`"), field="idle")
        return self

    def check(self, most: int) -> None:
        for name, value in (("min", self.min), ("max", self.max)):
            if value is not None and value > most:
                raise InputError(f"at most {most} replicas, the group's count", value, field=name)

    def to_zero(self) -> str:
        return "idle" if self.idle is not None else "min" if not self.min else ""

    def polled(self, now_ns: int, current: int, activity: Activity, *, active: bool) -> tuple[int, Activity]:
        """Return the replicas after a look at the triggers, and what is remembered."""
        first = max(self.min, 1)
        if active:
            rises = current == 0 or (self.idle is not None and current < self.min)
            return first if rises else current, Activity(now_ns)
        least = self.min if self.idle is None else self.idle
        if current > least == 0:
            since, period = activity.active_ns, self.cooldown
            if since is None:
                since, period = 0, self.initial_cooldown
            return (0 if since + s_to_ns(period) < now_ns else current), activity
        return max(current, least), activity

    def run(self, view: AutoscalerView) -> Acts:
        settling, activity, beats = Settling(self, view.most, max(self.min, 1)), Activity(), Beats(view)
        view.watch(self.scrape)
        queues = any(trigger.metric == "queue" for trigger in self.triggers)
        while True:
            queued = view.queued if queues else 0
            values = [trigger.value(view.pods(), queued) for trigger in self.triggers]
            if beats.due(self.polling):
                active = any(value > trigger.activation
                             for value, trigger in zip(values, self.triggers, strict=True))
                replicas, activity = self.polled(beats.now_ns, view.wanted, activity, active=active)
                if replicas != view.wanted:
                    view.scale(replicas, "a trigger is active" if active else "no trigger is active")
            if beats.due(self.sync) and (current := view.wanted):
                asked = [(replicas_by_average(milli(value), round(trigger.target * 1000), current, self.tolerance),
                          trigger.metric) for value, trigger in zip(values, self.triggers, strict=True)]
                replicas, reason = settling.settle(beats.now_ns, current, asked, view.done)
                view.asks(settling.asked)
                if replicas != current:
                    view.scale(replicas, reason)
            yield beats.next(self.polling, self.sync)
