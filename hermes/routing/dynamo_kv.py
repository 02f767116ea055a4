"""Dynamo's KV router: the lowest sum of prefill and decode blocks, with credit for blocks that are cached.

Rules of https://github.com/ai-dynamo/dynamo at 01690d4 (lib/kv-router/src/scheduling/selector.rs). In blocks of the
engine:

    cost = prefill_load_scale x max(active prefill + prompt - credit, 0) + decode

- credit: 1 for each block cached on the device, 0.75 for those behind that are in host memory.
- active prefill: tokens of the prompts sent there whose first token has not come, less those cached then.
- decode: distinct blocks of all prompts in flight there, and those that the prompt would add.
- With `temperature` 0 the lowest cost wins, ties at random. Otherwise a client is drawn with weights
  exp(-(cost - lowest) / ((highest - lowest) x temperature)).

Loads are the router's own books, from its choice on. Where KV comes from another client, the decode blocks decide
alone, and clients that only prefill have none.

What is cached is seen by the engines' events (Dynamo's default), or is what the router sent within 120 s (without
events).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from hermes.arrays import FloatArray, exp
from hermes.config import ConfigModel
from hermes.core.client import Client
from hermes.core.router import RouterContext
from hermes.core.stage import Stage
from hermes.routing.active_blocks import ActiveBlocks
from hermes.routing.caches import ApproximateView, CacheView, view_of
from hermes.routing.decisions import settled
from hermes.routing.own import OwnBooks, continues
from hermes.routing.prefixes import Hashed, Prompts
from hermes.routing.ties import Draws

__all__ = ["DynamoKv", "DynamoKvConfig"]

DEFAULT_BLOCK = 16   # tokens of a block of clients that show none
_NOTHING: Mapping[int, int] = {}


class DynamoKvConfig(ConfigModel):
    """Dynamo's KV router: the client with the lowest sum of prefill and decode blocks, less those cached."""

    kind: Literal["dynamo_kv"] = "dynamo_kv"
    caches: CacheView = ApproximateView(ttl=120.0)
    """What the router knows of the clients' prefix caches: `{kind: approximate, ttl: 120 s}` (what it sent, as without
    KV events), `{kind: events}` (Dynamo's default) or `exact`."""
    overlap_credit: float = Field(default=1.0, ge=0, le=1e6)
    """Credit for each block cached in the device's memory."""
    host_credit: float = Field(default=0.75, ge=0, le=1e6)
    """Credit for each block behind those that can be loaded from host memory (`memory.kv_offload`), which
    `caches: exact` sees."""
    prefill_load_scale: float = Field(default=1.0, ge=0, le=1e6)
    """Weight of the prefill blocks."""
    temperature: float = Field(default=0.0, ge=0, le=1e6)
    """Spread of the draw among the clients; 0 takes the lowest cost."""

    def build(self, context: RouterContext) -> DynamoKv:
        return DynamoKv(self, context)


class DynamoKv:
    """See the module's docstring."""

    def __init__(self, config: DynamoKvConfig, context: RouterContext) -> None:
        self._config, self._context = config, context
        self._candidates = list(context.candidates)
        self.books, self.active = OwnBooks(context), ActiveBlocks(len(self._candidates))
        self._draws = Draws(context.rng)
        self._prompts = Prompts(self._candidates[0].view().block_tokens or DEFAULT_BLOCK)
        self._caches = view_of(config.caches, context, self._prompts)
        self._decodes = np.array([client.role != "prefill" for client in self._candidates])
        self.changed(context.candidates)

    def changed(self, members: Sequence[Client]) -> None:
        """Choose among the members, and forget what the others held; numbers drawn ahead are dropped."""
        self._draws.drop()
        self._places = [self.books.place_of[client.index] for client in members]
        everywhere = self._places == list(range(len(self._candidates)))
        self._where = None if everywhere else np.array(self._places, dtype=np.int64)
        self._caches.changed(set(self._places))

    def observe(self, event: str, client: Client, stage: Stage) -> None:
        """See `hermes.core.router.Router`."""
        if self.books.seen(event, client, stage) is not None:
            self.active.remove(stage.arrival_order)

    def choose(self, stage: Stage) -> Client:
        prompt = self._prompts.hashed(stage)
        cached = {} if continues(stage) else self._caches.matches(stage, prompt)
        in_host = {} if continues(stage) or not self._config.host_credit else self._caches.in_host(stage, cached)
        costs = self.costs(stage, prompt, cached, in_host)
        if self._where is not None:
            costs = costs[self._where]
        place = self._places[self._pick(costs)]
        if self._context.decisions is not None:
            place = settled(self._context, stage, self._places, place, lambda: {
                "cost": costs.tolist(), "cached blocks": [cached.get(each, 0) for each in self._places],
                "decode blocks": self.active.blocks[self._places].tolist()}, lowest=True)
        here, there = cached.get(place, 0), in_host.get(place, 0)
        if not continues(stage):
            self._context.believed(stage, self._prompts.tokens_of(here + there, prompt))
        spared = round((here + self._config.host_credit * there) * self._prompts.block_tokens)
        self.books.sent(stage, place, max(0, prompt.tokens - spared))
        self.active.remove(stage.arrival_order)
        self.active.add(stage.arrival_order, place, prompt)
        self._caches.sent(place, prompt)
        return self._candidates[place]

    def costs(self, stage: Stage, prompt: Hashed, cached: dict[int, int],
              in_host: Mapping[int, int] = _NOTHING) -> FloatArray:
        """Return the cost of every candidate. cached, in_host: Blocks of the prompt that candidates hold on the device,
        and behind them in host memory, by place."""
        config, size = self._config, self._prompts.block_tokens
        decode = self.active.blocks + prompt.blocks
        for place, blocks in self.active.shared(prompt).items():
            decode[place] -= blocks
        decode *= self._decodes
        if continues(stage):
            return decode.astype(np.float64)
        prefill = (self.books.computing + prompt.tokens) / size
        for place, blocks in cached.items():
            prefill[place] -= config.overlap_credit * blocks
        for place, blocks in in_host.items():
            prefill[place] -= config.host_credit * blocks
        costs: FloatArray = config.prefill_load_scale * np.maximum(prefill, 0.0) + decode
        return costs

    def _pick(self, costs: FloatArray) -> int:
        """Return the position of the chosen cost."""
        lowest = costs.min()
        temperature = self._config.temperature
        if not temperature:
            best = (costs == lowest).nonzero()[0]
            return int(best[self._draws.below(len(best))])
        spread = costs.max() - lowest
        if not spread:
            return self._draws.below(len(costs))
        weights = exp((lowest - costs) / (spread * temperature))
        sums = np.cumsum(weights / weights.sum())
        return min(int(np.searchsorted(sums, self._draws.number())), len(costs) - 1)
