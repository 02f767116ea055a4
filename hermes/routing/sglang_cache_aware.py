"""SGLang's model gateway with its policy "cache_aware": the longest match among prompts sent, or the shortest queue.

Rules of https://github.com/sgl-project/sglang at 053b63f (sgl-model-gateway/src/policies/cache_aware.rs, tree.rs), with
the defaults of its command line. Loads are the gateway's own requests in flight.

1. If the largest load is more than `balance_abs_threshold` above the smallest, and more than `balance_rel_threshold`
   times it, the request goes to the shortest queue.
2. Else, if more than `cache_threshold` of the prompt stands in the tree, to the worker with the longest match.
3. Else to the least loaded.

The policy gets the available workers alone (src/routers/http/router.rs, `select_worker_for_model`): those that are
down, or have never been there, count for nothing. They keep their part of the tree until one has the longest match of a
prompt: then all of its part goes, and the request to the *first* available one, which is not noted in the tree. Ties go
to the first.

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
        self._places = [self.books.place_of[client.index] for client in members]
        self._where = np.array(self._places, dtype=np.int64)
        self._is_there = set(self._places)

    def choose(self, stage: Stage) -> Client:
        now = self._context.now_ns()
        if now - self._evicted >= self._interval_ns:
            self._evicted = now - now % self._interval_ns
            self.tree.trim(self._config.max_tree_size)
        prompt = self._prompts.hashed(stage)
        matches = self.tree.matches(prompt)
        place = self._place(prompt.tokens, matches)
        if self._context.decisions is not None:
            got = settled(self._context, stage, self._places, place, lambda: {
                "in flight": self.books.in_flight[self._where].tolist(),
                "matched tokens": [matches.get(each, 0) for each in self._places]}, lowest=True)
            self._fell_back &= got == place
            place = got
        self._context.believed(stage, matches.get(place, 0))
        self.books.sent(stage, place)
        if not self._fell_back:
            self.tree.sent(place, prompt)
        return self._candidates[place]

    def _place(self, tokens: int, matches: dict[int, int]) -> int:
        """Return the chosen place. Sets whether it is the first one, for want of the one with the match."""
        config, loads = self._config, self.books.in_flight[self._where]
        self._fell_back = False
        most, least = int(loads.max()), int(loads.min())
        if most - least > config.balance_abs_threshold and most > config.balance_rel_threshold * least:
            return self._shortest()
        longest = max(matches.values(), default=0)
        if not tokens or longest / tokens <= config.cache_threshold:
            return self._shortest()
        place = min(place for place, matched in matches.items() if matched == longest)
        if place in self._is_there:
            return place
        self.tree.forget(place)
        self._fell_back = True
        return self._places[0]

    def _shortest(self) -> int:
        return self._places[int(self.books.in_flight[self._where].argmin())]
