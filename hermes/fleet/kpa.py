"""AIBrix's KPA (`kind: kpa`): Knative's pod autoscaler on a metric of the engines, with a stable and a panic window.

Every 10 s the controller asks the pods for the metric and notes the mean over them. What it executes differs from what
it documents; `intended: true` gives the documented rules (`hermes.fleet.aibrix_rules`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hermes.config import Duration
from hermes.fleet.aibrix import AibrixAutoscaler
from hermes.fleet.aibrix_rules import Panic, Window, in_panic, kpa_replicas
from hermes.fleet.autoscalers import AUTOSCALERS
from hermes.sums import float_sum
from hermes.units import s_to_ns

__all__ = ["Kpa"]


@AUTOSCALERS.register("kpa")
class Kpa(AibrixAutoscaler):
    """AIBrix's KPA: a stable and a panic window."""

    kind: Literal["kpa"] = "kpa"
    panic_window: Duration = Field(default=60.0, gt=0, le=86400)
    """Length of the short window (`panicWindowSeconds`)."""
    panic_threshold: float = Field(default=2.0, gt=0, le=1e6)
    """Panic above this ratio of the short window's mean to the long one's; as intended, from this ratio of the replicas
    that the short window asks for to those that there are."""

    def decider(self) -> _Kpa:
        return _Kpa(self)


class _Kpa:
    """What one autoscaler remembers. See `hermes.fleet.aibrix.Decider`."""

    def __init__(self, config: Kpa) -> None:
        self._config = config
        self._stable, self._short = Window(s_to_ns(config.window)), Window(s_to_ns(config.panic_window))
        self._panic = Panic(config.panic_threshold, s_to_ns(config.window))

    def asks(self, now_ns: int, current: int, values: list[float]) -> int:
        config = self._config
        value = float_sum(values) if config.intended else float_sum(values) / len(values)
        self._stable.add(now_ns, value)
        self._short.add(now_ns, value)
        stable, panic = self._stable.mean(), self._short.mean()
        if not config.intended:
            panics = in_panic(stable, panic, config.panic_threshold)
            return kpa_replicas(stable, panic, config.target, current, config.rates, config.tolerance,
                                panics=panics)
        panics = self._panic.look(now_ns, panic, config.target, current)
        asked = kpa_replicas(stable, panic, config.target, current, config.rates, panics=panics)
        return self._panic.held(asked) if panics else asked
