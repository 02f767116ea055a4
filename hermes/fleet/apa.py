"""AIBrix's APA (`kind: apa`): replicas x use / target on a metric of the engines, unless the ratio is near to 1.

Every 10 s the controller asks the pods for the metric and notes the mean over them; the mean of a window is the use.
`intended: true` gives the documented rule on the way down (`hermes.fleet.aibrix_rules`).
"""

from __future__ import annotations

from typing import Literal

from hermes.fleet.aibrix import AibrixAutoscaler
from hermes.fleet.aibrix_rules import Window, apa_replicas
from hermes.fleet.autoscalers import AUTOSCALERS
from hermes.sums import float_sum
from hermes.units import s_to_ns

__all__ = ["Apa"]


@AUTOSCALERS.register("apa")
class Apa(AibrixAutoscaler):
    """AIBrix's APA: replicas x use / target."""

    kind: Literal["apa"] = "apa"

    def decider(self) -> _Apa:
        return _Apa(self)


class _Apa:
    """What one autoscaler remembers. See `hermes.fleet.aibrix.Decider`."""

    def __init__(self, config: Apa) -> None:
        self._config, self._use = config, Window(s_to_ns(config.window))

    def asks(self, now_ns: int, current: int, values: list[float]) -> int:
        config = self._config
        self._use.add(now_ns, float_sum(values) / len(values))
        return apa_replicas(self._use.mean(), config.target, current, config.tolerance, config.rates)
