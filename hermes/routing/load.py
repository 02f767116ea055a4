"""Load-based routers: least loaded, heavy-light split, power of two choices.

Load is one of five (hermes.clients.base.LOADS): the number of requests assigned and not done, their input tokens, their
output tokens, KV tokens in memory, output tokens left to emit. The first three change only when a request is assigned
or done, and are kept in an array. The other two change with every step and are evaluated as of now. Clients that
generate no tokens have a number of tasks, and the tokens of these tasks as every other load.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

from pydantic import Field

from hermes.config import ConfigModel
from hermes.core.client import Client
from hermes.core.router import RouterContext
from hermes.core.stage import Stage
from hermes.routing.tracking import LoadTrack

__all__ = ["HeavyLightConfig", "LeastLoadedConfig", "PowerOfTwoConfig", "least_loaded"]

TokenLoad = Literal["input_tokens", "output_tokens", "kv_tokens", "tokens_left"]
Load = Literal["input_tokens", "output_tokens", "kv_tokens", "tokens_left", "requests"]
_STATIC = ("input_tokens", "output_tokens", "requests")
_FEW = 32   # up to this many clients are asked one by one, which is cheaper than tracking their events


def least_loaded(context: RouterContext, load: str, start: int = 0, stop: int | None = None) -> Callable[[], Client]:
    """Return a function that returns the least loaded of candidates[start:stop]; ties go to the first."""
    candidates = list(context.candidates[start:stop])
    if load != "requests" and all(getattr(client, "role", "") == "service" for client in candidates):
        load = "input_tokens"   # the only other load of service clients
    if load in _STATIC:
        argmin = context.watch(load)[start:stop].argmin
        return lambda: candidates[argmin()]
    if len(candidates) <= _FEW:
        return partial(_least_of, candidates, load)
    track, now_ns = LoadTrack(candidates, load), context.now_ns
    return lambda: track.least(now_ns())


def _least_of(candidates: list[Client], load: str) -> Client:
    chosen, least = candidates[0], candidates[0].load(load)
    for client in candidates[1:]:
        value = client.load(load)
        if value < least:
            chosen, least = client, value
    return chosen


class LeastLoadedConfig(ConfigModel):
    """Send a stage to the client with the least load; ties go to the first."""

    kind: Literal["least_loaded"] = "least_loaded"
    load: Load = "tokens_left"
    """Load to compare; `requests` is the "least connections" of a load balancer."""

    def build(self, context: RouterContext) -> LeastLoaded:
        return LeastLoaded(least_loaded(context, self.load))


class LeastLoaded:
    def __init__(self, least: Callable[[], Client]) -> None:
        self._least = least

    def choose(self, stage: Stage) -> Client:
        return self._least()


class HeavyLightConfig(ConfigModel):
    """Send requests above a threshold to a heavy subset of the clients, others to the rest; least loaded in each."""

    kind: Literal["heavy_light"] = "heavy_light"
    load: TokenLoad = "input_tokens"
    """Size that makes a request heavy, and load to compare within a subset."""
    threshold: int = Field(ge=0, le=2**40)
    """Requests with more tokens than this are heavy."""
    heavy_share: float = Field(default=0.5, gt=0, lt=1)
    """Share of the clients that serve heavy requests: the last ones, at least one and not all."""

    def build(self, context: RouterContext) -> HeavyLight:
        count = len(context.candidates)
        light = min(max(count - math.ceil(self.heavy_share * count), 1), max(count - 1, 1))
        if count == 1:
            only = least_loaded(context, self.load)
            return HeavyLight(self, only, only)
        return HeavyLight(self, least_loaded(context, self.load, 0, light), least_loaded(context, self.load, light))


class HeavyLight:
    def __init__(self, config: HeavyLightConfig, light: Callable[[], Client], heavy: Callable[[], Client]) -> None:
        self._load, self._threshold, self._light, self._heavy = config.load, config.threshold, light, heavy

    def choose(self, stage: Stage) -> Client:
        return self._heavy() if stage.size(self._load) > self._threshold else self._light()


class PowerOfTwoConfig(ConfigModel):
    """Draw two clients at random and take the less loaded one (Mitzenmacher 2001)."""

    kind: Literal["power_of_two"] = "power_of_two"
    load: Load = "tokens_left"
    """Load to compare."""

    def build(self, context: RouterContext) -> PowerOfTwo:
        return PowerOfTwo(self, context)


class PowerOfTwo:
    _BLOCK = 1024

    def __init__(self, config: PowerOfTwoConfig, context: RouterContext) -> None:
        self._candidates, self._rng, self._load = list(context.candidates), context.rng, config.load
        self._draws: list[list[int]] = []

    def choose(self, stage: Stage) -> Client:
        count = len(self._candidates)
        if count == 1:
            return self._candidates[0]
        if not self._draws:
            first = self._rng.integers(0, count, self._BLOCK)
            other = (first + self._rng.integers(1, count, self._BLOCK)) % count
            self._draws = [first.tolist(), other.tolist()]
        a, b = self._candidates[self._draws[0].pop()], self._candidates[self._draws[1].pop()]
        if not self._draws[0]:
            self._draws = []
        return b if b.load(self._load) < a.load(self._load) else a
