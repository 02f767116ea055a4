"""SGLang's model gateway with its policy "cache_aware": the longest match among prompts sent, or the shortest queue.

Rules of https://github.com/sgl-project/sglang at 053b63f (sgl-model-gateway/src/policies/cache_aware.rs, tree.rs), with
the defaults of its command line. Loads are the gateway's own requests in flight.

1. If the largest load is more than `balance_abs_threshold` above the smallest, and more than `balance_rel_threshold`
   times it, the request goes to the shortest queue. All workers count for this, unhealthy ones too.
2. Else, if more than `cache_threshold` of the prompt stands in the tree, to the worker with the longest match.
3. Else to the least loaded.

A longest match at an unhealthy worker sends the request to the *first* healthy one, and leaves the tree as it is. Ties
go to the first. Workers that are no members count as unhealthy: they keep their part of the tree.

The tree is of characters there, of tokens here. Every `eviction_interval` the leaves that were sent longest ago are cut
off, until no worker has more than `max_tree_size`.
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
from hermes.units import s_to_ns

__all__ = ["SglangCacheAware", "SglangCacheAwareConfig"]


class SglangCacheAwareConfig(ConfigModel):
    """SGLang's model gateway (the policy "cache_aware"): the client with the longest prefix of the prompt, or the
    shortest queue where loads differ much or the match is short."""

    kind: Literal["sglang_cache_aware"] = "sglang_cache_aware"
    cache_threshold: float = Field(default=0.3, ge=0, le=1)
    """Share of the prompt above which the longest match decides."""
    balance_abs_threshold: int = Field(default=64, ge=0, le=2**40)
    """Difference of the largest and the smallest load above which the shortest queue decides, if the next holds too."""
    balance_rel_threshold: float = Field(default=1.5, ge=0, le=1e9)
    """Ratio of the largest to the smallest load above which the shortest queue decides, if the last holds too."""
    eviction_interval: Duration = Field(default=120.0, gt=0)
    """Time between two evictions from the tree."""
    max_tree_size: int = Field(default=2**26, ge=1, le=2**60)
    """Tokens of a client in the tree (characters there) down to which it is cut."""

    def build(self, context: RouterContext) -> SglangCacheAware:
        return SglangCacheAware(self, context)


class SglangCacheAware:
    """See the module's docstring."""

    def __init__(self, config: SglangCacheAwareConfig, context: RouterContext) -> None:
        self._config, self._context = config, context
        self._candidates = list(context.candidates)
        self.books = OwnBooks(context)
        self.observe = self.books.observe
        self._prompts = Prompts(1)
        self.tree = SentPrefixes([None] * len(self._candidates), context.now_ns, tail_first=True)
        self._interval_ns, self._evicted = s_to_ns(config.eviction_interval), 0
        self.changed(context.candidates)

    def changed(self, members: Sequence[Client]) -> None:
        self._healthy = [self.books.place_of[client.index] for client in members]
        self._where = np.array(self._healthy, dtype=np.int64)
        self._is_healthy = set(self._healthy)

    def choose(self, stage: Stage) -> Client:
        now = self._context.now_ns()
        if now - self._evicted >= self._interval_ns:
            self._evicted = now - now % self._interval_ns
            self.tree.trim(self._config.max_tree_size)
        prompt = self._prompts.hashed(stage)
        matches = self.tree.matches(prompt)
        place = self._place(prompt.tokens, matches)
        if self._context.decisions is not None:
            got = settled(self._context, stage, self._healthy, place, lambda: {
                "in flight": self.books.in_flight[self._where].tolist(),
                "matched tokens": [matches.get(each, 0) for each in self._healthy]}, lowest=True)
            self._fell_back &= got == place
            place = got
        self._context.believed(stage, matches.get(place, 0))
        self.books.sent(stage, place)
        if place in self._is_healthy and not self._fell_back:
            self.tree.sent(place, prompt)
        return self._candidates[place]

    def _place(self, tokens: int, matches: dict[int, int]) -> int:
        """Return the chosen place. Sets whether it is the first healthy one, for want of the one with the match."""
        config, loads = self._config, self.books.in_flight
        self._fell_back = False
        most, least = int(loads.max()), int(loads.min())
        if most - least > config.balance_abs_threshold and most > config.balance_rel_threshold * least:
            return self._shortest()
        longest = max(matches.values(), default=0)
        if not tokens or longest / tokens <= config.cache_threshold:
            return self._shortest()
        place = min(place for place, matched in matches.items() if matched == longest)
        if place in self._is_healthy:
            return place
        self._fell_back = True
        return self._healthy[0]

    def _shortest(self) -> int:
        return self._healthy[int(self.books.in_flight[self._where].argmin())]
