"""KV retrieval: past context comes from a hierarchy of stores instead of being computed again.

A client has tiers, nearest first. A tier belongs to the client alone or is shared by all clients of its platform, rack
or of the whole system (by the tier's name): capacity, entries and bandwidth are then common.

- *expected*: every fetch takes the expected time of the hierarchy (`hermes.memory.tiers.expected_s`) from given hit
  rates; past the last tier the context is recomputed, at the price of a prefill.
- *stateful*: tiers hold entries. A fetch looks from the nearest on, and reads where it finds its key; concurrent reads
  and writes share a tier's bandwidth. What no tier has is recomputed by the generation that needs it: the stage says
  how many tokens it brought (`cached_tokens`). `store_kv` writes back.

Entries are whole contexts, by the key that the request brings along (`hermes.workload.contexts`; else its session), or
the blocks of its prompt, by their chained hashes (a prompt's leading blocks are found, wherever each is).

With `overlap` a generation starts while its KV is still being read, layer by layer: only what the prefill cannot hide
is waited for (`hermes.network.exposed_bytes`). The rest is read all the same, and others feel it. How much can be
hidden is judged from the tier's load when the read starts, and again before the generation is let go.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hermes.clients.kv_tier import Hierarchy, Read, Tier, block_keys, tiers_of
from hermes.clients.task import TaskClient, TaskClientConfig
from hermes.clients.tier_config import KvTierConfig, refuse_hit_rates
from hermes.clients.usage import PowerConfig
from hermes.config import Component, ConfigModel
from hermes.core.client import ClientEvents
from hermes.core.clock import STEP_END, Clock
from hermes.core.columns import RowLog
from hermes.core.request_table import Population
from hermes.core.stage import ServiceStage, Stage
from hermes.errors import InputError, inside
from hermes.hardware import HARDWARE, StepStats
from hermes.hardware.devices import MachineSpec
from hermes.hardware.models import ModelDescription, load_model
from hermes.memory.admission import HotKeys
from hermes.memory.tiers import Level, expected_s
from hermes.network import exposed_bytes
from hermes.units import NS_PER_S, s_to_ns

__all__ = ["KvRetrievalClient", "KvRetrievalClientConfig"]


class KvRetrievalClient(TaskClient):
    """See the module's docstring and `hermes.clients.base.Client`.

    home: (number of the client in its group, clients of the group); prefill: what computes the model's prompts, for
    the price of what is missing and for overlap. It may be set until the clock runs.
    """

    stages = frozenset(("fetch_kv", "store_kv"))

    def __init__(
        self, env: Clock, index: int, name: str, events: ClientEvents, tiers: list[Tier],
        config: KvRetrievalClientConfig,
        model: ModelDescription, prefill: Any, *, platform: str, home: tuple[int, int],
    ) -> None:
        super().__init__(env, index, name, events, MachineSpec(1, 0.0, 0.0, 0), model=config.model, platform=platform)
        self.tiers, self.config, self.prefill, self.home = tiers, config, prefill, home
        self.kv_bytes_per_token = float(model.kv_bytes_per_token(config.kv_bits / 8))
        self.num_layers = model.num_layers
        self._hierarchy = Hierarchy(tiers, write=config.write, promote=config.promote, demote=config.demote)
        warming = config.warming
        self._hot = None if warming is None else HotKeys(warming.entries, warming.sample)
        self._fetches = 0

    @property
    def starts_with(self) -> tuple[int, int] | None:
        """Which contexts it holds at first: those whose key modulo the second number is the first; None for others."""
        return self.home if self.config.start == "home" else None

    @property
    def needs_prefill(self) -> bool:
        """Whether what a prefill costs has to be known."""
        last = self.config.tiers[-1].hit_rate
        return self.config.overlap or (self.config.mode == "expected" and last != 1)

    def submit(self, stage: Stage) -> None:
        """A fetch or a write-back arrives; as many as there are run side by side."""
        assert isinstance(stage, ServiceStage)
        stage.start_ns = self.env._now
        if stage.kind == "store_kv":
            self._keep(stage)
        elif self.config.mode == "expected":
            self._expect(stage)
        elif self.config.entries == "blocks":
            self._find_blocks(stage)
        else:
            self._find_context(stage)

    # -- expected ------------------------------------------------------------------------------------------------

    def _expect(self, stage: ServiceStage) -> None:
        tokens = stage.tokens
        num_bytes = round(tokens * self.kv_bytes_per_token)
        levels = [Level(t.config.lookup, t.config.bandwidth, t.config.hit_rate or 0.0) for t in self.tiers]
        recompute_s = self._prefill_s(tokens, 0) if self.needs_prefill else 0.0
        exposed: Callable[[float], float] | None = None
        if self.config.overlap:
            hidden_s = self._prefill_s(stage.request.prompt_tokens, tokens)
            stage.overlap = self.num_layers, hidden_s
            exposed = partial(exposed_bytes, num_bytes, self.num_layers, hidden_s)
        stage.cached_tokens = tokens
        seconds = expected_s(num_bytes, levels, recompute_s, exposed) if tokens else 0.0
        self._after(s_to_ns(seconds), lambda: self.events.done(self, stage))

    def _prefill_s(self, tokens: int, past: int) -> float:
        """A prompt of so many new tokens, alone."""
        if not tokens:
            return 0.0
        attention = tokens * past + tokens * (tokens + 1) // 2
        stats = StepStats(prefill_seqs=1, prefill_tokens=tokens, prefill_past=past, prefill_attn=attention, sampled=1)
        return float(self.prefill.step_ns(stats)) / NS_PER_S

    # -- stateful ------------------------------------------------------------------------------------------------

    def _find_context(self, stage: ServiceStage) -> None:
        key, wait_ns = self._key(stage), 0
        self._ask([key])
        for depth, tier in enumerate(self.tiers):
            found = tier.store.get(key)
            if found is None:
                wait_ns += tier.lookup_ns if self.config.charge_misses else 0
                continue
            stage.cached_tokens = min(stage.tokens, int(found / self.kv_bytes_per_token + 0.5))
            size = round(stage.cached_tokens * self.kv_bytes_per_token)
            self._judge_overlap(stage, stage.request.prompt_tokens + stage.tokens - stage.cached_tokens)
            self._read(stage, [Read(tier, depth, size, [(key, found)])], wait_ns + tier.lookup_ns)
            return
        self._read(stage, [], wait_ns)

    def _find_blocks(self, stage: ServiceStage) -> None:
        unit = self.config.block_tokens
        keys = block_keys(stage.content, stage.tokens, unit, self.model)
        self._ask(keys)
        reads, num_found = self._hierarchy.find(keys, round(unit * self.kv_bytes_per_token))
        stage.cached_tokens = num_found * unit
        self._judge_overlap(stage, max(1, stage.tokens - stage.cached_tokens))
        tiers = self.tiers if self.config.charge_misses else [read.tier for read in reads]
        self._read(stage, reads, sum(tier.lookup_ns for tier in tiers))

    def _read(self, stage: ServiceStage, reads: list[Read], wait_ns: int) -> None:
        """After so long, read from several tiers side by side; the stage is done when nothing is left to wait for."""
        done = partial(self.events.done, self, stage)
        self._after(wait_ns, partial(self._hierarchy.fetch, reads, done, stage.overlap))

    def _ask(self, keys: list[Hashable]) -> None:
        """These are about to be looked for: count them, and every so often bring the hottest near."""
        warming = self.config.warming
        if self._hot is None or warming is None:
            return
        for key in keys:
            self._hot.seen(key)
        self._fetches += 1
        if self._fetches % warming.every == 0:
            self._hierarchy.warm(self._hot.keys())

    def _judge_overlap(self, stage: ServiceStage, new_tokens: int) -> None:
        if self.config.overlap:
            stage.overlap = self.num_layers, self._prefill_s(new_tokens, stage.cached_tokens)

    def _key(self, stage: ServiceStage) -> Hashable:
        """What its entry is kept under; with the model, since a tier may hold the KV of several."""
        request = stage.request
        if request.context is not None:
            return (self.model, *request.context)
        return (self.model, "session", request.session) if request.session >= 0 else (self.model, "request", request.id)

    def _keep(self, stage: ServiceStage) -> None:
        if self.config.mode == "expected":   # nothing is known to be missing; alone, the nearest tier takes this long
            seconds = stage.tokens * self.kv_bytes_per_token / self.tiers[0].config.bandwidth
            self._after(s_to_ns(seconds), lambda: self.events.done(self, stage))
        else:
            self._after(0, lambda: self._store(stage))

    def _store(self, stage: ServiceStage) -> None:
        if self.config.entries == "blocks":
            unit = self.config.block_tokens
            size = round(unit * self.kv_bytes_per_token)
            # the last block first: it is to be the first to go
            keys = block_keys(stage.content, stage.tokens, unit, self.model)
            entries: list[tuple[Hashable, int]] = [(key, size) for key in reversed(keys)]
        else:
            entries = [(self._key(stage), round(stage.tokens * self.kv_bytes_per_token))]
        self._hierarchy.keep(entries, lambda: self.events.done(self, stage))

    def _after(self, delay_ns: int, act: Callable[[], None]) -> None:
        self.env.tick_at(self.env._now + delay_ns, STEP_END + self.index, lambda tick: act())

    # -- before the run ------------------------------------------------------------------------------------------

    def prepare(self, clients: Iterable[Any], populations: Iterable[Population]) -> None:
        """Learn from the other clients what a prefill costs, and begin with the contexts it is to begin with.

        Raises `InputError` where no client computes prompts of its model.
        """
        if self.needs_prefill and self.prefill is None:
            engines = [c for c in clients if c.role in ("both", "prefill") and c.model in ("", self.model)]
            if not engines:
                raise InputError(f"what a prefill costs, or an LLM client of model {self.model!r}", None,
                                 field="clients.recompute")
            self.prefill = engines[0].hardware   # clients of these roles are engines, which have one
        for population in populations if self.config.start != "empty" else ():
            self.fill(population)

    def fill(self, population: Population) -> None:
        """Let the tiers hold what they can of a population, the most asked for first."""
        first, step = (0, 1) if self.config.start == "popular" else self.home
        keys = range(first, len(population.tokens), step)
        for tier in self.tiers:
            store, chosen, room = tier.store, [], tier.store.capacity_bytes - tier.store.used_bytes
            for key in keys:
                size = round(int(population.tokens[key]) * self.kv_bytes_per_token)
                if size > room:
                    break
                if (self.model, population.name, key) not in store:
                    room -= size
                    chosen.append((key, size))
            for key, size in reversed(chosen):   # the most asked for is the one used last
                store.put((self.model, population.name, key), size)


class WarmingConfig(ConfigModel):
    """Hot entries are brought to the nearest tier before they are asked for again."""

    every: int = Field(default=100, ge=1, le=2**40)
    """Fetches between two rounds."""
    entries: int = Field(default=100, ge=1, le=10_000_000)
    """Keys of a round: those asked for most, by a Count-Min sketch."""
    sample: int = Field(default=10_000, ge=1, le=2**40)
    """Accesses after which the sketch's counts halve."""


class KvRetrievalClientConfig(TaskClientConfig):
    """Clients that fetch past KV from a hierarchy of stores."""

    kind: Literal["kv_retrieval"] = "kv_retrieval"
    model: Annotated[str, Field(min_length=1, max_length=4096)]
    """Whose KV it is: the model's description says how many bytes a token takes."""
    kv_bits: float = Field(default=16, gt=0, le=64)
    """Bits per KV element."""
    tiers: list[KvTierConfig] = Field(min_length=1)
    """The hierarchy, nearest first."""
    mode: Literal["expected", "stateful"] = "stateful"
    """Expected times from hit rates, or real keys."""
    entries: Literal["contexts", "blocks"] = "contexts"
    """What is kept and found: the context a request brings along, as one entry; or the blocks of its prompt, by their
    hashes (traces with block hashes, prefix groups)."""
    block_tokens: int = Field(default=512, ge=1, le=2**20)
    """Tokens of a block, for `entries: blocks`."""
    recompute: Annotated[Any, Component(HARDWARE)] | None = None
    """What a prefill costs, for `expected` and `overlap`; as on the first LLM client of the model where left out."""
    overlap: bool = False
    """Whether a generation starts while the rest of its KV is read, layer by layer: what the prefill hides is not
    waited for."""
    write: Literal["all", "nearest"] = "all"
    """Which tiers a write-back goes to. It moves what a tier does not have yet."""
    promote: bool = True
    """Whether what a lower tier had is written to those above it, once read."""
    demote: bool = False
    """Whether what a tier evicts is written to the one below."""
    warming: WarmingConfig | None = None
    """Whether what is asked for most, and lies in a lower tier only, is written to the nearest in the background."""
    charge_misses: bool = False
    """Whether a lookup that finds nothing takes its time (the formula does not charge it)."""
    start: Literal["empty", "home", "popular"] = "empty"
    """What tiers hold at the beginning. `popular`: every one the contexts asked for most. `home`: the same of its
    client's own contexts, those whose key modulo `count` is the client's number; the router `context` asks there."""
    power: PowerConfig | None = None
    """Watts of one machine; fetching draws `prefill`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mode == "expected":
            for i, tier in enumerate(self.tiers):
                if tier.hit_rate is None:
                    raise InputError("a hit rate, for expected times", field=f"tiers.{i}.hit_rate")
        else:
            refuse_hit_rates(self.tiers, "tiers")
        if self.warming is not None and (self.mode != "stateful" or len(self.tiers) < 2):
            raise InputError("none, but for two stateful tiers or more", field="warming")
        if self.start != "empty" and (self.mode, self.entries) != ("stateful", "contexts"):
            raise InputError("empty, but for stateful tiers of contexts", self.start, field="start")
        return self

    def build(self, env: Clock, first_index: int, runs: RowLog, events: ClientEvents, *, every_step: bool,
              base_dir: Path | None,
              moves_kv: Literal["", "full", "layerwise"] = "") -> list[KvRetrievalClient]:
        """The group's clients, numbered from `first_index`."""
        with inside("model"):
            model = load_model(self.model, base_dir)
        recompute = None
        if self.recompute is not None:
            with inside("recompute"):
                recompute = self.recompute.build(base_dir)
        clients = []
        for i, (name, platform) in enumerate(zip(self.names, self.platforms, strict=True)):
            tiers = tiers_of(self.tiers, env, first_index + i, name, platform)
            clients.append(KvRetrievalClient(
                env, first_index + i, name, events, tiers, self, model, recompute, platform=platform,
                home=(i, self.count),
            ))
        return clients
