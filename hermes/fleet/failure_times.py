"""Failures at random times: clocks that count the time in which devices are held."""

from __future__ import annotations

import math
from collections.abc import Callable

from hermes.core.clock import FAILURE, Clock, Tick

__all__ = ["FailureClock"]

_NEVER_NS = 1 << 61   # beyond the end of any simulation


class FailureClock:
    """Counts the device time of one replica's slot, and strikes.

    Args:
        devices: Of the replica.
        draw: Returns the device time until the next failure in ns.
        strike: Called when it has passed.
        goes_on: Returns whether the run does.
    """

    def __init__(self, env: Clock, devices: int, draw: Callable[[], float], strike: Callable[[], None],
                 goes_on: Callable[[], int]) -> None:
        self._env, self._devices, self._draw, self._strike, self._goes_on = env, devices, draw, strike, goes_on
        self._left, self._since_ns, self._turn, self._held = draw(), 0, 0, False

    def hold(self, held: bool) -> None:
        """Note that the devices are held from now on, or are not."""
        if held == self._held:
            return
        self._held = held
        self._turn += 1
        if held:
            self._set()
        else:
            self._left -= (self._env._now - self._since_ns) * self._devices

    def _set(self) -> None:
        self._since_ns = self._env._now
        due = self._since_ns + math.ceil(max(self._left, 0.0) / self._devices)
        if due < _NEVER_NS:
            turn = self._turn
            self._env.tick_at(due, FAILURE, lambda tick: self._due(turn, tick))

    def _due(self, turn: int, tick: Tick) -> None:
        if turn != self._turn or not self._goes_on():
            return
        self._left = self._draw()
        self._set()
        self._strike()
