"""The clock: a SimPy environment with integer nanoseconds and a fixed order of events at equal times.

SimPy's heap orders by (time, priority, creation). The priorities below set the order at equal times: step ends (by
client), transfers, failures, clients that join or leave, autoscalers, time-outs, arrivals, what a gateway sends out,
starts of steps (by client). Step ends are ordered by client rather than by creation because a run of steps and the same
steps one by one create their events at different moments, and must still agree exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, TypeAlias

from simpy.core import Environment
from simpy.events import Event, Process, ProcessGenerator

from hermes.compiled import mypyc_attr

__all__ = [
    "ARRIVAL", "AUTOSCALER", "DISPATCH", "EXPIRY", "FAILURE", "MAX_CLIENTS", "MEMBERSHIP", "SCRAPE", "SETTLED", "START",
    "STEP_END", "TRANSFER", "Acting", "Call", "Clock", "Tick", "at", "bind_at", "happen",
]

MAX_CLIENTS = 1_000_000
STEP_END = 0                    # + client index
TRANSFER = MAX_CLIENTS
FAILURE = TRANSFER + 1
MEMBERSHIP = TRANSFER + 2       # clients join and leave
SCRAPE = TRANSFER + 3           # of no event: reads from here on see a scrape of their instant
AUTOSCALER = TRANSFER + 4
EXPIRY = TRANSFER + 6           # time-outs of a gateway
ARRIVAL = 2 * MAX_CLIENTS       # and attempts again
DISPATCH = ARRIVAL + 1          # what waited at a gateway
START = 3 * MAX_CLIENTS         # + client index
SETTLED = 6 * MAX_CLIENTS       # after all other events of an instant
_new = object.__new__
_MANY = range(1 << 16)          # events between two looks at the progress
_NEVER = 1 << 62                # after all times and priorities
_BEGUN = Event(Environment())   # the event that starts a process
_BEGUN._ok, _BEGUN._value = True, None

Call: TypeAlias = list[Callable[..., None]]
"""An event that nothing waits for: the list of its one callback, the cheapest object that is one of its kind."""


@mypyc_attr(native_class=False)
class Tick(Event):
    """An event with one callback that happens at its scheduled time and cannot fail."""

    _ok = True
    _value = None

    def __init__(self, env: Environment, callback: Callable[[Tick], None]) -> None:
        self.env = env
        self.callbacks = [callback]


@mypyc_attr(native_class=False)
class Acting(Process):
    """A SimPy process that begins at once. SimPy's own begins with an event, and its first action would lose its place
    among other events of the same time."""

    def __init__(self, env: Environment, generator: ProcessGenerator) -> None:
        self.env = env
        self.callbacks = []
        self._generator = generator
        self._resume(_BEGUN)


def _nothing(tick: Tick) -> None:
    pass


def happen(tick: Tick) -> None:
    """Trigger an unscheduled event at once, ahead of all events scheduled for now.

    Processes that wait for it continue before this returns; later ones find that it has happened.
    """
    callbacks, tick.callbacks = tick.callbacks, None  # type: ignore[assignment]
    for callback in callbacks:
        callback(tick)


class Clock(Environment):
    """SimPy's environment, with the inner loop and the scheduling call inlined for speed.

    Every SimPy event, timeout and process works on it. `_queue`, `_eid` and `_now` are the fields that SimPy's own
    `schedule` and `step` use (SimPy 4.1, pinned below 5).
    """

    _now: int

    def __init__(self) -> None:
        super().__init__(initial_time=0)
        self._priority = 0   # of the event that happens
        self.shared: dict[Hashable, Any] = {}   # Any: stores, links, what clients share by name
        self.halted = False
        self._end = Tick(self, _nothing)   # behind all other events of a run

    def tick_at(self, time_ns: int, priority: int, callback: Callable[[Tick], None]) -> Tick:
        """Call `callback(tick)` at `time_ns`, which must not be in the past."""
        tick: Tick = _new(Tick)   # `__init__` inlined
        tick.env = self
        tick.callbacks = [callback]
        heappush(self._queue, (time_ns, priority, next(self._eid), tick))  # type: ignore[misc]
        return tick

    def call_at(self, time_ns: int, priority: int, callback: Callable[..., None]) -> Call:
        """Do what `tick_at` does, for the events that each request has: half the cost, and no event of SimPy."""
        call: Call = [callback]
        heappush(self._queue, (time_ns, priority, next(self._eid), call))  # type: ignore[misc]
        return call

    def step(self) -> None:
        """Process one event (SimPy's `run` calls it; the kernel calls `drain`)."""
        first: object = self._queue[0][3] if self._queue else None
        if not isinstance(first, list):
            super().step()
            return
        now, self._priority, _count, _call = heappop(self._queue)
        self._now = int(now)
        first[0](first)

    def pending(self) -> Tick:
        """Return an event for a process to wait for, which `happen` triggers."""
        tick: Tick = _new(Tick)
        tick.env = self
        tick.callbacks = []
        return tick

    def moment(self, time_ns: int, priority: int) -> Tick:
        """Return an event for a process to wait for, at `time_ns`, which must not be in the past."""
        tick = self.pending()
        heappush(self._queue, (time_ns, priority, next(self._eid), tick))  # type: ignore[misc]
        return tick

    def halt(self) -> None:
        """End the run, after the event that happens now: nothing that was to happen will."""
        self.halted = True
        self._queue[:] = [(self._now, -1, next(self._eid), self._end)]  # type: ignore[list-item]

    def drain(self, until_ns: int | None = None, watch: Callable[[], None] | None = None) -> None:
        """Run until the queue is empty or the next event is after `until_ns`; call `watch()` every 65,536 events."""
        queue: list[Any] = self._queue   # Any: of events, and of calls
        # An event behind all others ends it: to look at the next one's time costs more than to compare each with this.
        end = self._end = Tick(self, _nothing)
        entry = (_NEVER if until_ns is None else until_ns, _NEVER, next(self._eid), end)
        heappush(queue, entry)
        try:
            while True:
                for _ in _MANY:
                    time_ns, priority, _count, event = heappop(queue)
                    if type(event) is list:
                        self._now, self._priority = time_ns, priority
                        event[0](event)
                        continue
                    if event is end:
                        return
                    self._now, self._priority = time_ns, priority
                    callbacks, event.callbacks = event.callbacks, None
                    for callback in callbacks:
                        callback(event)
                    if not event._ok and not hasattr(event, "_defused"):
                        exception = event._value
                        assert isinstance(exception, BaseException)
                        raise exception
                if watch is not None:
                    watch()
        except BaseException:
            queue[:] = [each for each in queue if each[3] is not end]
            heapify(queue)
            raise


def at(env: Environment, time_ns: int, priority: int, callback: Callable[[Tick], None]) -> Tick:
    """Call `callback(tick)` at `time_ns` (not in the past) on any SimPy environment with integer times."""
    return bind_at(env)(time_ns, priority, callback)


def bind_at(env: Environment) -> Callable[[int, int, Callable[[Tick], None]], Tick]:
    """Return `at` for one environment, with the choice of implementation made once."""
    return env.tick_at if isinstance(env, Clock) else partial(_schedule, env)


def _schedule(env: Environment, time_ns: int, priority: int, callback: Callable[[Tick], None]) -> Tick:
    tick = Tick(env, callback)
    env.schedule(tick, priority, time_ns - env.now)  # type: ignore[arg-type]  # SimPy takes any int
    return tick
