"""Tiers that extend an LLM client's prefix cache: host memory, disks, or a shared store.

The client looks up an arriving sequence in the device's prefix cache and from there on in the tiers, block by block by
chained hashes. It reads what a tier has, and the sequence waits for it outside the queue (with `overlap`, only for what
its prefill cannot hide). These tokens then need no prefill. At the end of the generation (or of the prefill, if another
client decodes) the blocks that the tiers lack are written back in the background: those of the prompt, and in a
conversation those of the answer, which the next turn repeats.

Simplification: blocks that the device had when the sequence arrived count as found even if they are evicted before the
sequence is admitted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from hermes.clients.kv_tier import Hierarchy, Tier, block_keys, build_tiers
from hermes.clients.memory import describe_model
from hermes.clients.parts import ClientPart
from hermes.clients.tier_config import TiersConfig
from hermes.core.clock import TRANSFER
from hermes.core.generation import Generation
from hermes.core.reasons import Reason
from hermes.errors import InputError
from hermes.hardware.base import StepStats
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    from hermes.clients.build import Place
    from hermes.clients.llm import LLMClient

__all__ = ["KvTiers", "tiers_of"]


class KvTiers(ClientPart):
    """See the module's docstring.

    Args:
        index: Of the client, whose ports it reads through.
        kv_bytes_per_token: Of the whole client.
        layers: Layers of the model, for reads that overlap with the prefill.
    """

    def __init__(
        self, tiers: list[Tier], config: TiersConfig, index: int, kv_bytes_per_token: float, layers: int,
    ) -> None:
        self._tiers, self._config, self.layers = tiers, config, layers
        self.bytes_per_token = kv_bytes_per_token
        self._hierarchy = Hierarchy(tiers, config, index)
        self._fetching = self._fetching_ns = 0   # sequences that wait for tiers, and since when some do
        self._stopped = False

    def attach(self, client: LLMClient) -> None:
        super().attach(client)
        client.tiers = self._tiers

    def waits(self) -> bool:
        return self._fetching > 0

    def keeps(self, client: LLMClient, stage: Generation, go_on: Callable[[], None]) -> bool:
        """Read what the tiers have of a prompt, if it is more than the device has."""
        unit = self._config.block_tokens
        if stage.transferred or stage.num_computed or stage.content is None:
            return False
        client._catch_up()
        here = client.scheduler.pool.hit_tokens(stage)
        # the last prompt token is always computed: it gives the first output token
        keys = block_keys(stage.content, stage.prompt_tokens - 1, unit, client.model)[here // unit:]
        reads, found = self._hierarchy.find(keys, round(unit * self.bytes_per_token))
        have = (here // unit + found) * unit
        if have <= here:
            return False
        overlap = None
        if self._config.overlap:
            new = stage.prompt_tokens - have
            stats = StepStats(prefill_seqs=1, prefill_tokens=new, prefill_past=have,
                              prefill_attn=new * have + new * (new + 1) // 2, sampled=1)
            overlap = self.layers, client.hardware.step_ns(stats) / NS_PER_S
        if not self._fetching:
            self._fetching_ns = client.env._now
        self._fetching += 1
        wait_ns = sum(read.tier.lookup_ns for read in reads)
        fetch = partial(self._hierarchy.fetch, reads, partial(self._fetched, client, stage, have, go_on), overlap)
        client.env.tick_at(client.env._now + wait_ns, TRANSFER, lambda tick: None if self._stopped else fetch())
        return True

    def stopped(self, client: LLMClient) -> None:
        self._stopped = True
        self._hierarchy.stop()

    def _fetched(self, client: LLMClient, stage: Generation, have: int, go_on: Callable[[], None]) -> None:
        self._fetching -= 1
        if not self._fetching and client.env._now > self._fetching_ns:
            client.stalls.append((int(Reason.TIER), self._fetching_ns, client.env._now))
        stage.num_computed = stage.cached_tokens = have
        go_on()

    def done(self, client: LLMClient, stage: Generation) -> None:
        """Write the blocks of its prompt back in the background."""
        if stage.transferred or stage.content is None or stage.branch > 0:   # the prompt of branches once
            return
        unit = self._config.block_tokens
        size = round(unit * self.bytes_per_token)
        # The last token of an answer is not computed. One that a stop token ends may still be in the decode group.
        computed = client.scheduler.group.clock + stage.base if stage.grouped else stage.num_tokens - 1
        computed = max(stage.prompt_tokens, computed)
        keys = block_keys(stage.content, computed, unit, client.model)
        if keys:   # the last block first, so that it is evicted first
            self._hierarchy.keep([(key, size) for key in reversed(keys)], _nothing)


def tiers_of(tiers: TiersConfig, place: Place) -> KvTiers:
    """Return one client's tiers. Raises `InputError` for entries that are not whole blocks."""
    config, info, base_dir = place.config, place.info, place.base_dir
    if tiers.block_tokens % config.memory.tokens_per_block:
        raise InputError(f"a multiple of the client's block size, {config.memory.tokens_per_block}",
                         tiers.block_tokens, field="tiers.block_tokens")
    levels = build_tiers(tiers.levels, place.env, place.number, place.name, place.platform)
    model = config.memory_model(info, base_dir)
    return KvTiers(levels, tiers, place.number, config.moved_kv_bytes(info, base_dir),
                   describe_model(model, base_dir).num_layers if tiers.overlap else 1)


def _nothing() -> None:
    pass
