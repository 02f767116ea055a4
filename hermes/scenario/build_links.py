"""Failures of links: the scenario's, on the clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from hermes.config.streams import stream as random_stream
from hermes.core.clock import FAILURE, Clock, Tick
from hermes.errors import inside
from hermes.fleet.failure_times import FailureClock
from hermes.network.base import BaseNetwork, LinkFailure
from hermes.units import s_to_ns

__all__ = ["fail_links"]

Ends = tuple[str, str] | None


class _Links:
    """The links of a network, with the failures that they have now.

    Args:
        goes_on: Returns whether the run does.
    """

    def __init__(self, env: Clock, network: BaseNetwork, goes_on: Callable[[], int]) -> None:
        self._env, self._network, self._goes_on = env, network, goes_on
        self._factors: dict[Ends, list[float]] = {None: []}   # by link; None: of all

    def knows(self, ends: Ends) -> None:
        """Note that a link may fail. Raises `InputError` if there is none."""
        self._network.check_link(ends)
        self._factors.setdefault(ends, [])

    def fails(self, failure: LinkFailure, ends: Ends, tick: Tick | None = None) -> None:
        """Let a failure begin, and later end."""
        if not self._goes_on():
            return
        factor = math.inf if failure.factor is None else failure.factor
        self._factors[ends].append(factor)
        self._set(ends)
        if failure.lasts is not None:
            self._env.tick_at(self._env._now + s_to_ns(failure.lasts), FAILURE, partial(self._ends_one, ends, factor))

    def _ends_one(self, ends: Ends, factor: float, tick: Tick) -> None:
        self._factors[ends].remove(factor)
        self._set(ends)

    def _set(self, ends: Ends) -> None:
        """Let a link have the worst of its failures and those of all links."""
        of_all = max(self._factors[None], default=1.0)
        if ends is None:
            self._network.set_link(None, of_all)
        for one in ([one for one in self._factors if one is not None] if ends is None else [ends]):
            self._network.set_link(one, max([of_all, *self._factors[one]]))


def fail_links(env: Clock, network: BaseNetwork, failures: list[LinkFailure], seed: int, goes_on: Callable[[], int],
               ) -> None:
    """Let the links of a network fail at their times. Raises `InputError` for ends of no link."""
    links = _Links(env, network, goes_on)
    for number, failure in enumerate(failures):
        ends: Ends = None
        if failure.between is not None:
            first, second = sorted(failure.between)
            ends = first, second
        with inside(f"failures.{number}.between"):
            links.knows(ends)
        every = failure.every
        if failure.at is not None:
            env.tick_at(s_to_ns(failure.at), FAILURE, partial(links.fails, failure, ends))
        elif every is not None:
            rng = random_stream(seed, f"failure/{' - '.join(ends or ('all links',))}/link")
            FailureClock(env, 1, partial(every.draw_ns, rng), partial(links.fails, failure, ends), goes_on).hold(True)
