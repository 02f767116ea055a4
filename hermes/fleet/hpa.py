"""Kubernetes' horizontal pod autoscaler on scraped metrics of the engines (`kind: hpa`).

Every 15 s it compares each metric with its target and takes the largest number of replicas that a metric asks for. What
it sees is late: the metrics pipeline scrapes each replica once a period, and a scrape shows the last step that had
ended. A replica that starts counts as a pod whose value is missing, for a vLLM pod that loads is running and has no
metrics. A replica that waits for a slot counts as a pending pod.

`hermes.fleet.hpa_rules` has the rules. What is simpler than in a cluster: a metric has no age limit, and a draining pod
is not ready.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, Self

from pydantic import Field, model_validator

from hermes.config import ConfigModel, Duration
from hermes.errors import InputError, Verbatim
from hermes.fleet.autoscalers import AUTOSCALERS, Acts, Autoscaler, AutoscalerView, Pod
from hermes.fleet.hpa_rules import (
    Limits,
    PodValue,
    Stabiliser,
    Unruled,
    milli,
    replicas_by_average,
    replicas_by_pods,
    replicas_by_value,
)
from hermes.units import s_to_ns

__all__ = ["Behaviour", "Controller", "Done", "Hpa", "Metric", "Ruled", "ScaleDown", "ScaleUp", "Settling"]

Done = Callable[[int, int], bool]


def always(time_ns: int, replicas: int) -> bool:
    """Say that a change was carried out."""
    return True


class Metric(ConfigModel):
    """A metric of the engines and its target."""

    metric: Literal["waiting", "running", "kv_use"]
    """What a scrape shows: sequences in the queue, sequences in the batch, the share of KV blocks in use."""
    type: Literal["pods", "object", "external"] = "pods"
    """`pods`: the mean over the pods is compared with the target. `object` and `external`: the sum over all pods that
    have been scraped, as a query of Prometheus gives it."""
    target: float = Field(ge=0.001, le=1e6)
    """Target; it counts in thousandths, as values do."""
    average: bool = True
    """Whether the target is one for each replica (AverageValue: KEDA and WVA) or for the sum (Value: the ratio of sum
    and target multiplies the ready pods). `pods` always has an average."""

    @model_validator(mode="after")
    def _pods_are_averaged(self) -> Self:
        if self.type == "pods" and not self.average:
            raise InputError(Verbatim("a metric of type pods has an average; take `type: external`"), field="average")
        return self

    def replicas(self, pods: list[Pod], current: int, tolerance: float) -> int | None:
        """Return the replicas that the metric asks for; None if it has no value."""
        place = Pod._fields.index("sample")
        values = [None if pod[place] is None else milli(getattr(pod[place], self.metric)) for pod in pods]
        target = round(self.target * 1000)
        if self.type == "pods":
            return replicas_by_pods([PodValue(value, pod.pending, pod.leaving)
                                     for pod, value in zip(pods, values, strict=True)], target, current, tolerance)
        found = [value for value in values if value is not None]
        if not found:
            return None
        if self.average:
            return replicas_by_average(sum(found), target, current, tolerance)
        return replicas_by_value(sum(found), target, current, sum(pod.ready for pod in pods), tolerance)


class ScaleUp(ConfigModel):
    """How fast replicas may rise. Without a limit, both: 4 pods or 100%; with one given, this one alone."""

    window: Duration = Field(default=0.0, ge=0, le=3600)
    """Stabilisation window: replicas rise to the lowest recommendation of so long."""
    pods: int | None = Field(default=None, ge=1, le=100_000)
    """Replicas more within a period."""
    percent: float | None = Field(default=None, gt=0, le=100_000)
    """Percent more within a period. Of two limits the one that allows more counts."""
    period: Duration = Field(default=15.0, gt=0, le=1800)
    """Period of the limits; they count from the replicas at its start."""

    @model_validator(mode="before")
    @classmethod
    def _both_limits(cls, data: Any) -> Any:   # Any: what the user wrote
        if isinstance(data, dict) and data.get("pods") is None and data.get("percent") is None:
            return {**data, "pods": 4, "percent": 100.0}
        return data

    @property
    def limits(self) -> Limits:
        return Limits(self.pods, self.percent, s_to_ns(self.period))


class ScaleDown(ConfigModel):
    """How fast replicas may fall. Left out, 100% within a period."""

    window: Duration = Field(default=300.0, ge=0, le=3600)
    """Stabilisation window: replicas fall to the highest recommendation of so long."""
    pods: int | None = Field(default=None, ge=1, le=100_000)
    """Replicas fewer within a period."""
    percent: float | None = Field(default=None, gt=0, le=100)
    """Percent fewer within a period. Of two limits the one that allows more counts."""
    period: Duration = Field(default=15.0, gt=0, le=1800)
    """Period of the limits; they count from the replicas at its start."""

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, data: Any) -> Any:   # Any: what the user wrote
        if isinstance(data, dict) and data.get("pods") is None and data.get("percent") is None:
            return {**data, "percent": 100.0}
        return data

    @property
    def limits(self) -> Limits:
        return Limits(self.pods, self.percent, s_to_ns(self.period))


class Ruled(Autoscaler):
    """What a HorizontalPodAutoscaler may say of its speed (`behavior`): with one side written, the other has its
    defaults; with none there are other rules."""

    scale_up: ScaleUp | None = None
    """How fast replicas may rise. Left out with `scale_down`: to max(2n, 4) at each sync."""
    scale_down: ScaleDown | None = None
    """How fast replicas may fall. Left out with `scale_up`: to the highest recommendation of 300 s."""

    @model_validator(mode="before")
    @classmethod
    def _both_sides(cls, data: Any) -> Any:   # Any: what the user wrote
        sides = ("scale_up", "scale_down")
        if isinstance(data, dict) and any(data.get(side) is not None for side in sides):
            return {**data, **{side: {} for side in sides if data.get(side) is None}}
        return data


@AUTOSCALERS.register("hpa")
class Hpa(Ruled):
    """Kubernetes' horizontal pod autoscaler (v2) on metrics of the engines."""

    kind: Literal["hpa"] = "hpa"
    metrics: list[Metric] = Field(min_length=1, max_length=100)
    """Metrics; the one that asks for most replicas decides. If one has no value, the replicas do not fall."""
    min: int = Field(default=1, ge=1, le=100_000)
    """Fewest replicas."""
    max: int | None = Field(default=None, ge=1, le=100_000)
    """Most replicas. Left out, the group's `count`."""
    period: Duration = Field(default=15.0, gt=0)
    """Time between two decisions (`--horizontal-pod-autoscaler-sync-period`), the first one at the start."""
    scrape: Duration = Field(default=15.0, gt=0)
    """Time between two scrapes of a replica. When in it a replica is scraped is drawn once for each."""
    tolerance: float = Field(default=0.1, ge=0, lt=1)
    """Nothing changes if the ratio to the target is as near to 1."""

    @model_validator(mode="after")
    def _min_below_max(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise InputError(f"at least {self.min}, the `min`", self.max, field="max")
        return self

    def check(self, most: int) -> None:
        for name, value in (("min", self.min), ("max", self.max)):
            if value is not None and value > most:
                raise InputError(f"at most {most} replicas, the group's count", value, field=name)

    def run(self, view: AutoscalerView) -> Acts:
        controller, rounds = Controller(self, view.most), 0
        view.watch(self.scrape)
        while True:
            replicas, reason = controller.decide(s_to_ns(view.now_s), view.wanted, view.pods(), view.done)
            view.asks(controller.asked)
            if replicas != view.wanted:
                view.scale(replicas, reason)
            rounds += 1
            yield view.until(rounds * self.period)


class Behaviour(Protocol):
    """Fields of a configuration that says how a horizontal pod autoscaler acts."""

    @property
    def max(self) -> int | None:
        """Most replicas; None for the group's `count`."""
        ...

    @property
    def scale_up(self) -> ScaleUp | None:
        """How fast replicas may rise; None with `scale_down` without `behavior`."""
        ...

    @property
    def scale_down(self) -> ScaleDown | None:
        """How fast replicas may fall."""
        ...


class Settling:
    """From what metrics ask for to the number of replicas: bounds, windows and limits per period.

    Args:
        count: The group's.
        least: Fewest replicas.
    """

    def __init__(self, config: Behaviour, count: int, least: int) -> None:
        self._most, self._least = config.max or count, least
        up, down = config.scale_up, config.scale_down
        self._stabiliser: Stabiliser | Unruled
        if up is None or down is None:
            self._stabiliser = Unruled(least, self._most)
        else:
            self._stabiliser = Stabiliser(up.limits, down.limits, s_to_ns(up.window), s_to_ns(down.window), least,
                                          self._most)
        self._last: tuple[int, int] | None = None   # time and replicas of the change before
        self._max = config.max
        self.asked: int | None = None   # by the metrics at the last look, up to its own `max`

    def settle(self, now_ns: int, current: int, asked: Sequence[tuple[int | None, str]], done: Done = always,
               ) -> tuple[int, str]:
        """Return the replicas that are wanted from now on, and why, if each of these metrics asks for so many (None if
        it has no value). A change that was not `done` does not count for the limits (`AutoscalerView.done`)."""
        self._stabiliser.begin(now_ns, current)
        if self._last is not None and not done(*self._last):
            self._stabiliser.undo()
        self._last = None
        most = max((replicas for replicas, _ in asked if replicas is not None), default=None)
        self.asked = most if most is None or self._max is None else min(most, self._max)
        replicas, reason = self._wanted(now_ns, current, asked)
        if replicas != current:
            self._stabiliser.changed(now_ns, replicas - current)
            self._last = now_ns, replicas
        return replicas, reason

    def _wanted(self, now_ns: int, current: int, asked: Sequence[tuple[int | None, str]]) -> tuple[int, str]:
        if current > self._most:
            return self._most, "above max"
        if current < self._least:
            return self._least, "below min"
        valid = [(replicas, name) for replicas, name in asked if replicas is not None]
        if not valid:
            return current, "no metric has a value"
        recommended, name = max(valid, key=lambda item: item[0])
        if recommended < current and len(valid) < len(asked):
            return current, "a metric has no value"
        replicas = self._stabiliser.moved(now_ns, current, recommended)
        return replicas, f"{name} above target" if replicas > current else "all metrics below target"


class Controller(Settling):
    """The decisions of one autoscaler. count: The group's."""

    def __init__(self, config: Hpa, count: int) -> None:
        super().__init__(config, count, config.min)
        self._config = config

    def decide(self, now_ns: int, current: int, pods: list[Pod], done: Done = always) -> tuple[int, str]:
        """Return the replicas that are wanted from now on, and why. done: See `settle`."""
        if not current:   # as Kubernetes: the first replica is another controller's
            return 0, "off without a replica"
        return self.settle(now_ns, current, [(metric.replicas(pods, current, self._config.tolerance), metric.metric)
                                             for metric in self._config.metrics], done)
