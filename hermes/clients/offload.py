"""LLM clients with an offloaded prefix cache: tiers in host memory, on disks, or in a shared store.

The client looks up an arriving sequence in the device's prefix cache and from there on in the tiers, block by block by
chained hashes. It reads what a tier has, and the sequence waits for it outside the queue (with `overlap`, only for what
its prefill cannot hide). These tokens then need no prefill. At the end of the generation (or of the prefill, if another
client decodes) the blocks that the tiers lack are written back in the background: those of the prompt, and in a
conversation those of the answer, which the next turn repeats.

Simplification: blocks that the device had when the sequence arrived count as found even if they are evicted before the
sequence is admitted.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hermes.clients.kv_tier import Hierarchy, Tier, block_keys
from hermes.clients.llm import LLMClient
from hermes.clients.tier_config import OffloadConfig
from hermes.core.clock import TRANSFER
from hermes.core.reasons import Reason
from hermes.core.stage import Stage
from hermes.hardware.base import StepStats
from hermes.units import NS_PER_S

__all__ = ["OffloadingClient"]


class OffloadingClient(LLMClient):
    """See the module's docstring and `hermes.clients.llm.LLMClient`."""

    __slots__ = ("_fetching", "_fetching_ns", "_hierarchy", "_offload", "layers", "tier_bytes_per_token")

    def __init__(
        # Any: arguments of `LLMClient`, passed on
        self, *args: Any, tiers: list[Tier], offload: OffloadConfig, kv_bytes_per_token: float, layers: int,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.tiers, self._offload, self.layers = tiers, offload, layers
        self.tier_bytes_per_token = kv_bytes_per_token
        self._hierarchy = Hierarchy(tiers, write=offload.write, promote=offload.promote, demote=offload.demote)
        self._fetching = self._fetching_ns = 0   # sequences that wait for tiers, and since when some do

    @property
    def idle(self) -> bool:
        return not self._fetching and super().idle

    def _accept(self, stage: Stage) -> None:
        """Take a sequence into the engine, after reading what the tiers have of its prompt."""
        unit = self._offload.block_tokens
        if stage.transferred or stage.num_computed or stage.content is None:
            super()._accept(stage)
            return
        self._catch_up()
        here = self.scheduler.pool.hit_tokens(stage)
        # the last prompt token is always computed: it gives the first output token
        keys = block_keys(stage.content, stage.prompt_tokens - 1, unit, self.model)[here // unit:]
        reads, found = self._hierarchy.find(keys, round(unit * self.tier_bytes_per_token))
        have = (here // unit + found) * unit
        if have <= here:
            super()._accept(stage)
            return
        overlap = None
        if self._offload.overlap:
            new = stage.prompt_tokens - have
            stats = StepStats(prefill_seqs=1, prefill_tokens=new, prefill_past=have,
                              prefill_attn=new * have + new * (new + 1) // 2, sampled=1)
            overlap = self.layers, float(self.hardware.step_ns(stats)) / NS_PER_S
        if not self._fetching:
            self._fetching_ns = self.env._now
        self._fetching += 1
        wait_ns = sum(read.tier.lookup_ns for read in reads)
        fetch = partial(self._hierarchy.fetch, reads, partial(self._fetched, stage, have), overlap)
        self.env.tick_at(self.env._now + wait_ns, TRANSFER, lambda tick: fetch())

    def _fetched(self, stage: Stage, have: int) -> None:
        self._fetching -= 1
        if not self._fetching and self.env._now > self._fetching_ns:
            self.stalls.append((int(Reason.TIER), self._fetching_ns, self.env._now))
        stage.num_computed = stage.cached_tokens = have
        super()._accept(stage)

    def _done(self, stage: Stage) -> None:
        """Write the blocks of its prompt back in the background."""
        if not stage.transferred and stage.content is not None and stage.branch <= 0:   # the prompt of branches once
            unit = self._offload.block_tokens
            size = round(unit * self.tier_bytes_per_token)
            computed = max(stage.prompt_tokens, stage.num_tokens - 1)   # the last token of an answer is not computed
            keys = block_keys(stage.content, computed, unit, self.model)
            if keys:   # the last block first, so that it is evicted first
                self._hierarchy.keep([(key, size) for key in reversed(keys)], _nothing)
        super()._done(stage)


def _nothing() -> None:
    pass
