from typing import Literal

from hermes.config import Duration
from hermes.fleet.start_ups import START_UPS, Place, Starter, Starting, StartUp


@START_UPS.register("one_by_one")
class OneByOne(StartUp):
    """An operator that starts one replica after the other."""

    kind: Literal["one_by_one"] = "one_by_one"
    each: Duration = 10.0
    """Time of each start."""

    def build(self, place: Place):
        return Operator(place, self.each)


class Operator(Starter):
    def __init__(self, place: Place, each: float):
        self.place, self.each, self.waiting = place, each, []

    def start(self, one: Starting):
        one.held()
        self.waiting.append(one)
        if len(self.waiting) == 1:
            self.place.after(self.each, self.next)
        return lambda: self.waiting.__setitem__(self.waiting.index(one), None)

    def next(self):
        one = self.waiting.pop(0)   # None for a start that was given up, which takes its time nevertheless
        if one is not None:
            one.ready("started")
        if self.waiting:
            self.place.after(self.each, self.next)
