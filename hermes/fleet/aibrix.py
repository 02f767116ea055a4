"""Base of AIBrix's autoscalers `kpa` and `apa`: their controller, which asks the pods for a metric every 10 s."""

from __future__ import annotations

from typing import Literal, Protocol, Self

from pydantic import Field, model_validator

from hermes.config import Duration
from hermes.errors import InputError
from hermes.fleet.aibrix_rules import Rates, Recommendations, Tolerance
from hermes.fleet.autoscalers import Acts, Autoscaler, AutoscalerView, Beats
from hermes.units import s_to_ns

__all__ = ["AibrixAutoscaler", "Decider"]


class Decider(Protocol):
    """The memory of one autoscaler."""

    def asks(self, now_ns: int, current: int, values: list[float]) -> int:
        """Return the replicas that it asks for, with these values of the pods, at least one."""
        ...


class AibrixAutoscaler(Autoscaler):
    """What `kpa` and `apa` have in common. A subclass writes `decider`."""

    metric: Literal["waiting", "running", "kv_use"]
    """What a pod shows: sequences in the queue, sequences in the batch, the share of KV blocks in use."""
    target: float = Field(ge=1e-6, le=1e6)
    """Target of a pod (`targetValue`)."""
    min: int = Field(default=1, ge=1, le=100_000)
    """Fewest replicas."""
    max: int | None = Field(default=None, ge=1, le=100_000)
    """Most replicas. Left out, the group's `count`."""
    period: Duration = Field(default=10.0, gt=0)
    """Time between two decisions, the first one at the start. The pods are asked at the same time."""
    window: Duration = Field(default=180.0, gt=0, le=86400)
    """Length of the window whose mean counts (`observeWindowSeconds`)."""
    max_scale_up_rate: float = Field(default=2.0, ge=1, le=1e6)
    """Replicas rise at most to this many times as many in one step."""
    max_scale_down_rate: float = Field(default=2.0, ge=1, le=1e6)
    """Replicas fall at most to the same divided by this in one step."""
    up_cooldown: Duration = Field(default=0.0, ge=0, le=86400)
    """Replicas rise to the highest number asked for within so long."""
    down_cooldown: Duration = Field(default=300.0, ge=0, le=86400)
    """Replicas fall to the lowest number asked for within so long; as intended, to the highest."""
    up_tolerance: float = Field(default=0.1, ge=0, le=1e6)
    """Replicas do not rise up to this share above the target (`up-fluctuation-tolerance`); `kpa` as documented has no
    tolerances."""
    down_tolerance: float = Field(default=0.1, ge=0, lt=1)
    """Replicas do not fall up to this share below the target (`down-fluctuation-tolerance`)."""
    intended: bool = False
    """Whether the documented rules hold instead of those that are executed."""

    @model_validator(mode="after")
    def _min_below_max(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise InputError(f"at least {self.min}, the `min`", self.max, field="max")
        return self

    @property
    def rates(self) -> Rates:
        return Rates(self.max_scale_up_rate, self.max_scale_down_rate)

    @property
    def tolerance(self) -> Tolerance:
        return Tolerance(self.up_tolerance, self.down_tolerance)

    def check(self, most: int) -> None:
        for name, value in (("min", self.min), ("max", self.max)):
            if value is not None and value > most:
                raise InputError(f"at most {most} replicas, the group's count", value, field=name)

    def decider(self) -> Decider:
        """Return a new memory."""
        raise NotImplementedError

    def run(self, view: AutoscalerView) -> Acts:
        most, decider, beats = self.max or view.most, self.decider(), Beats(view)
        settled = Recommendations(s_to_ns(self.up_cooldown), s_to_ns(self.down_cooldown), intended=self.intended)
        view.watch(self.period, 0.0)
        while True:
            current, now = view.wanted, beats.now_ns
            values = [getattr(pod.sample, self.metric) for pod in view.pods() if pod.sample is not None]
            if not current:
                pass   # without a replica it does nothing
            elif not self.min <= current <= most:
                view.scale(min(max(current, self.min), most), "outside min and max")
            elif values:
                asked = decider.asks(now, current, values)
                view.asks(asked if self.max is None else min(asked, self.max))
                replicas = min(max(settled.settled(now, current, asked), self.min), most)
                if replicas != current:
                    view.scale(replicas, f"{self.metric} {'above' if replicas > current else 'below'} target")
            yield beats.next(self.period)
