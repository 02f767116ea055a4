"""AIBrix's router `prefix-cache`: the best match among the clients that are not much busier than the mean.

Rules of https://github.com/vllm-project/aibrix at e3e10f9e (pkg/plugins/gateway/algorithms/prefix_cache.go,
pkg/utils/prefixcacheindexer/hash.go), with the values of its shipped manifests. Loads are the gateway's own requests in
flight.

1. If the largest load is more than `spread` above the smallest, only the least loaded are looked at.
2. The request goes to the client with the longest match, of equal ones to the least loaded, among those whose load is
   at most the mean and `deviations` standard deviations of all loads.
3. Without such a client, to the least loaded.

Ties go to one at random. The match is counted in whole blocks of 128 characters there, of 32 tokens here (4 characters
a token), as whole percents of the prompt. What was not sent again for 20 minutes is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from hermes.config import ConfigModel, Duration
from hermes.core.client import Client
from hermes.core.router import RouterContext
from hermes.core.stage import Stage
from hermes.routing.decisions import settled
from hermes.routing.own import OwnBooks
from hermes.routing.prefixes import Prompts, SentPrefixes
from hermes.routing.ties import Draws
from hermes.units import s_to_ns

__all__ = ["AibrixPrefix", "AibrixPrefixConfig"]


class AibrixPrefixConfig(ConfigModel):
    """AIBrix's `prefix-cache`: the client with the longest prefix of the prompt that is not much busier than the mean,
    ties at random."""

    kind: Literal["aibrix_prefix"] = "aibrix_prefix"
    block: int = Field(default=32, ge=1, le=2**20)
    """Tokens of a block of the router (128 characters there)."""
    spread: int = Field(default=16, ge=0, le=2**40)
    """Difference of the largest and the smallest load above which only the least loaded clients are looked at."""
    deviations: float = Field(default=2.0, ge=0, le=1e6)
    """Standard deviations above the mean load up to which a client with a match is taken."""
    ttl: Duration = Field(default=1200.0, gt=0)
    """Time after which a prompt that was not sent again is forgotten."""
    capacity: int = Field(default=200_000, ge=1, le=2**40)
    """Most blocks believed of a client (there: of all clients together)."""

    def build(self, context: RouterContext) -> AibrixPrefix:
        return AibrixPrefix(self, context)


class AibrixPrefix:
    """See the module's docstring."""

    def __init__(self, config: AibrixPrefixConfig, context: RouterContext) -> None:
        self._config, self._context = config, context
        self._candidates = list(context.candidates)
        self.books = OwnBooks(context)
        self.observe = self.books.observe
        self._draws = Draws(context.rng)
        self._prompts = Prompts(config.block)
        self.sent = SentPrefixes([config.capacity] * len(self._candidates), context.now_ns, ttl_ns=s_to_ns(config.ttl))
        self.changed(context.candidates)

    def changed(self, members: Sequence[Client]) -> None:
        """Choose among the members; numbers drawn ahead are dropped."""
        self._draws.drop()
        self._places = [self.books.place_of[client.index] for client in members]
        self._where = np.array(self._places, dtype=np.int64)

    def choose(self, stage: Stage) -> Client:
        prompt = self._prompts.hashed(stage)
        matches = self.sent.matches(prompt)
        percents = {place: blocks * 100 // prompt.blocks for place, blocks in matches.items()}
        place = self._place(percents)
        if self._context.decisions is not None:
            place = settled(self._context, stage, self._places, place, lambda: {
                "matched %": [percents.get(each, 0) for each in self._places],
                "in flight": self.books.in_flight[self._where].tolist()})
        self._context.believed(stage, self._prompts.tokens_of(matches.get(place, 0), prompt))
        self.books.sent(stage, place)
        self.sent.sent(place, prompt)
        return self._candidates[place]

    def _place(self, percents: dict[int, int]) -> int:
        """Return the chosen place, given the percents of the prompt that clients are believed to hold."""
        loads = self.books.in_flight[self._where]
        least = np.flatnonzero(loads == loads.min())
        if loads.max() - loads.min() > self._config.spread:
            percents = {place: percents[place] for each in least if (place := self._places[int(each)]) in percents}
        if percents:
            deviation = loads.std(ddof=1) if len(loads) > 1 else 0.0
            limit = loads.mean() + self._config.deviations * deviation
            fit = [(-percent, int(load), place) for place, load in zip(self._places, loads.tolist(), strict=True)
                   if load <= limit and (percent := percents.get(place)) is not None]
            if fit:
                best = min(fit)[:2]
                equal = [place for *rank, place in fit if tuple(rank) == best]
                return equal[self._draws.below(len(equal))]
        return self._places[int(least[self._draws.below(len(least))])]
