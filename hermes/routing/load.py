"""Load-based routers: least loaded, heavy-light split, power of two choices.

Load is one of five (hermes.clients.base.LOADS): the number of requests assigned and not done, their input tokens, their
output tokens, KV tokens in memory, output tokens left to emit. The first three change only when a request is assigned
or done, and are kept in an array. The other two change with every step and are evaluated as of now. Clients that
generate no tokens have a number of tasks, and the tokens of these tasks as every other load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hermes.config import ConfigModel
from hermes.core.client import Client
from hermes.core.router import RouterContext
from hermes.core.scraped import SCRAPED
from hermes.core.stage import Stage
from hermes.errors import InputError, Verbatim
from hermes.routing.own import OWN_LOADS, OwnBooks
from hermes.routing.tracking import LoadTrack
from hermes.routing.views import SCRAPED_LOADS, ScrapedView, View, least_of_scraped, not_shown

__all__ = ["HeavyLightConfig", "Least", "LeastLoadedConfig", "PowerOfTwoConfig"]

TokenLoad = Literal["input_tokens", "output_tokens", "kv_tokens", "tokens_left"]
Load = Literal["input_tokens", "output_tokens", "kv_tokens", "tokens_left", "requests"]
ScrapedLoad = Literal[
    "input_tokens", "output_tokens", "kv_tokens", "tokens_left", "requests", "waiting", "running", "kv_use"]
_STATIC = ("input_tokens", "output_tokens", "requests")
_FEW = 32   # up to this many clients are asked one by one, which is cheaper than tracking their events


class Least:
    """Finds the least loaded of a router's candidates, or of some of them; ties go to the first."""

    def __init__(self, context: RouterContext, load: str) -> None:
        candidates = context.candidates
        if load != "requests" and all(getattr(client, "role", "") == "service" for client in candidates):
            load = "input_tokens"   # the only other load of service clients
        self._load, self._now_ns = load, context.now_ns
        self._place = {client.index: place for place, client in enumerate(candidates)}
        self._values = context.watch(load) if load in _STATIC else None
        self._track = None if load in _STATIC or len(candidates) <= _FEW else LoadTrack(candidates, load)
        self._all = len(candidates)

    def of(self, clients: Sequence[Client]) -> Callable[[], Client]:
        """Return a function that returns the least loaded of these candidates."""
        chosen, values, track, now_ns = list(clients), self._values, self._track, self._now_ns
        places = [self._place[client.index] for client in chosen]
        if values is None and track is None:
            return partial(_least_of, chosen, self._load)
        if track is not None and len(places) == self._all:
            return lambda: track.least(now_ns())
        if values is not None and places == list(range(places[0], places[0] + len(places))):
            argmin = values[places[0]:places[0] + len(places)].argmin
            return lambda: chosen[argmin()]
        where = np.array(places)
        if track is not None:
            return lambda: track.least(now_ns(), where)
        assert values is not None
        return lambda: chosen[values[where].argmin()]


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
    load: ScrapedLoad = "tokens_left"
    """Load to compare; `requests` is the "least connections" of a load balancer. `waiting`, `running` and `kv_use` need
    a scraped view, which sees these, `requests` and `kv_tokens` alone."""
    view: View = "exact"
    """What the router knows of the clients: `exact` (their loads as of now), `{kind: scraped, period: 50 ms}` (what it
    saw when it last asked each of them for its metrics), or `own` (what it sent to each: `requests` without an end,
    `input_tokens` of prompts without a first token, `kv_tokens` of prompts without an end)."""

    @model_validator(mode="after")
    def _seen(self) -> Self:
        if self.view == "exact" and self.load in SCRAPED:
            raise InputError(Verbatim(f"{self.load} needs `view: {{kind: scraped}}`"), field="load")
        if self.view == "own" and self.load not in OWN_LOADS:
            raise InputError(Verbatim(f"the router's own books do not show {self.load}; take {', '.join(OWN_LOADS)}, "
                                      "or another `view`"), field="load")
        if isinstance(self.view, ScrapedView) and self.load not in SCRAPED_LOADS:
            raise InputError(Verbatim(not_shown(self.load)), field="load")
        return self

    def build(self, context: RouterContext) -> LeastLoaded | LeastSent:
        if self.view == "own":
            return LeastSent(self.load, context)
        if self.view == "exact":
            return LeastLoaded(Least(context, self.load).of, context)
        return LeastLoaded(least_of_scraped(context, self.load, self.view), context)


class LeastLoaded:
    def __init__(self, of: Callable[[Sequence[Client]], Callable[[], Client]], context: RouterContext) -> None:
        self._of = of
        self._least = of(context.candidates)

    def choose(self, stage: Stage) -> Client:
        return self._least()

    def changed(self, members: Sequence[Client]) -> None:
        self._least = self._of(members)


class LeastSent:
    """Least loaded by the router's own books; ties go to the first."""

    def __init__(self, load: str, context: RouterContext) -> None:
        self._books = OwnBooks(context)
        self._values = self._books.load(load)
        self.observe = self._books.observe
        self.changed(context.candidates)

    def changed(self, members: Sequence[Client]) -> None:
        self._members = list(members)
        self._where = np.array([self._books.place_of[client.index] for client in members], dtype=np.int64)

    def choose(self, stage: Stage) -> Client:
        client = self._members[int(self._values[self._where].argmin())]
        self._books.sent(stage, self._books.place_of[client.index])
        return client


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
        return HeavyLight(self, context)


class HeavyLight:
    def __init__(self, config: HeavyLightConfig, context: RouterContext) -> None:
        self._load, self._threshold, self._heavy_share = config.load, config.threshold, config.heavy_share
        self._of = Least(context, config.load).of
        self.changed(context.candidates)

    def changed(self, members: Sequence[Client]) -> None:
        """Divide the members anew."""
        count = len(members)
        light = min(max(count - math.ceil(self._heavy_share * count), 1), max(count - 1, 1))
        self._light = self._of(members[:light])
        self._heavy = self._light if count == 1 else self._of(members[light:])

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

    def changed(self, members: Sequence[Client]) -> None:
        """Draw among the members; numbers drawn ahead are dropped."""
        self._candidates, self._draws = list(members), []

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
