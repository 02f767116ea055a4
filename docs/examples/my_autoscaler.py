from typing import Literal

from hermes.config import Duration
from hermes.fleet.autoscalers import AUTOSCALERS, Autoscaler, AutoscalerView


@AUTOSCALERS.register("office_hours")
class OfficeHours(Autoscaler):
    """More replicas from one time of the day to another."""

    kind: Literal["office_hours"] = "office_hours"
    by_day: int = 4
    by_night: int = 1
    opens: Duration = 8 * 3600.0
    closes: Duration = 18 * 3600.0
    day: Duration = 24 * 3600.0

    def run(self, view: AutoscalerView):
        midnight = 0.0
        while True:
            yield view.until(midnight + self.opens)
            view.scale(self.by_day, "office opens")
            yield view.until(midnight + self.closes)
            view.scale(self.by_night, "office closes")
            midnight += self.day
