"""The clock: SimPy with integer nanoseconds, and the order of things that happen at the same time.

SimPy's heap orders by (time, priority, creation). The priorities below make the order at equal times: step ends (by
client), then transfers, then arrivals, then new steps start (by client). Ordering step ends by client rather than by
creation is what lets a run of steps and its single steps agree exactly: the two create their events at different
moments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simpy.core import Environment
from simpy.events import Event

__all__ = ["ARRIVAL", "MAX_CLIENTS", "START", "STEP_END", "TRANSFER", "Tick", "at"]

MAX_CLIENTS = 1_000_000
STEP_END = 0                    # + client index
TRANSFER = MAX_CLIENTS
ARRIVAL = 2 * MAX_CLIENTS
START = 3 * MAX_CLIENTS         # + client index


class Tick(Event):
    """A plain event with one callback: it is going to happen at the time it is scheduled for, and cannot fail."""

    _ok = True
    _value = None

    def __init__(self, env: Environment, callback: Callable[[Any], None]) -> None:
        self.env = env
        self.callbacks = [callback]


def at(env: Environment, time_ns: int, priority: int, callback: Callable[[Any], None]) -> Tick:
    """Call `callback(tick)` at `time_ns` (not before now)."""
    tick = Tick(env, callback)
    env.schedule(tick, priority, time_ns - env.now)  # type: ignore[arg-type]  # SimPy takes any int
    return tick
