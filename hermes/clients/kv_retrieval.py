"""KV retrieval: past context is read from a hierarchy of stores instead of being computed again.

A client has tiers, nearest first. A tier belongs to one client, or all clients of a platform, of a rack or of the whole
system share it (by the tier's name). A shared tier has one capacity, one set of entries and one bandwidth.

- *expected*: times come from given hit rates and are those of a read by itself: no reads share bandwidth. With
  `misses: averaged` every fetch takes the expected time of the hierarchy (`hermes.memory.tiers.expected_s`), past the
  last tier that of a prefill; no LLM client is loaded by it. With `misses: recompute` every fetch draws the tier that
  has its context (`hermes.memory.tiers.drawn_level`). It takes that tier's time, or the LLM client computes the
  context with the prompt.
- *stateful*: tiers hold entries. A fetch looks up its key from the nearest tier on, and reads where it finds it.
  Concurrent reads and writes share a tier's bandwidth. The generation that needs a context recomputes what no tier has:
  the stage says how many tokens it brought (`cached_tokens`). `store_kv` writes back.

Entries are whole contexts, under the key that the request carries (`hermes.workload.contexts`, or its session), or the
blocks of its prompt, under their chained hashes (a prompt's leading blocks are found in whichever tier each is).

With `overlap` a generation starts while its KV is still being read, layer by layer: it waits only for the bytes that
the prefill cannot hide (`hermes.network.exposed_bytes`). The rest is still read, and takes bandwidth from other reads.
The client judges how much can be hidden from the tier's load when the read starts, and again before the generation
starts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

from pydantic import Field, model_validator

from hermes.clients.kv_tier import Hierarchy, Read, Tier, block_keys, build_tiers
from hermes.clients.resources import PowerConfig
from hermes.clients.task import TaskClient, TaskClientConfig
from hermes.clients.tier_config import TiersConfig
from hermes.config import Component, ConfigModel, request_stream
from hermes.core.client import Client, ClientEvents
from hermes.core.clock import STEP_END, Clock
from hermes.core.columns import RowLog
from hermes.core.request_table import Population
from hermes.core.stage import ServiceStage, Stage
from hermes.errors import InputError, Verbatim, inside
from hermes.hardware import HARDWARE, StepStats
from hermes.hardware.descriptions.devices import MachineSpec
from hermes.hardware.descriptions.models import ModelDescription, load_model
from hermes.memory.admission import HotKeys
from hermes.memory.tiers import Level, drawn_level, expected_s, hit_s
from hermes.network import exposed_bytes
from hermes.sums import float_sum
from hermes.units import NS_PER_S, s_to_ns

if TYPE_CHECKING:
    from hermes.clients.llm import LLMClient

__all__ = ["KvRetrievalClient", "KvRetrievalClientConfig"]


class KvRetrievalClient(TaskClient):
    """See the module's docstring and `hermes.clients.base.Client`.

    Attributes:
        home: (number of the client in its group, clients of the group).
        prefill: Hardware model that computes the model's prompts, for the cost of missing tokens and for overlap. May
            be set until the clock runs.
    """

    stages = frozenset(("fetch_kv", "store_kv"))

    def __init__(
        self, env: Clock, index: int, name: str, events: ClientEvents, tiers: list[Tier],
        config: KvRetrievalClientConfig,
        # Any: hardware, of a plug-in too, or None until `prepare`
        model: ModelDescription, prefill: Any, *, platform: str, home: tuple[int, int], seed: int,
    ) -> None:
        super().__init__(env, index, name, events, MachineSpec(1, 0.0, 0.0, 0), model=config.model, platform=platform)
        self.tiers, self.config, self.prefill, self.home, self._seed = tiers, config, prefill, home, seed
        self.kv_bytes_per_token = float(model.kv_bytes_per_token(config.kv_bits / 8))
        self.num_layers = model.num_layers
        self._hierarchy = Hierarchy(tiers, config.tiers, index)
        self._levels = [Level(tier.lookup + tier.rates.latency_s, tier.rates.alone, tier.hit_rate or 0.0)
                        for tier in config.tiers.levels]   # hit rates: `expected` only
        warming = config.warming
        self._hot = None if warming is None else HotKeys(warming.entries, warming.sample)
        self._fetches = 0

    @property
    def starts_with(self) -> tuple[int, int] | None:
        """(r, n) if it holds at first the contexts whose key modulo n is r; None for other contents."""
        return self.home if self.config.start == "home" else None

    @property
    def needs_prefill(self) -> bool:
        """Whether it needs the duration of a prefill."""
        charged = self.config.mode == "expected" and self.config.misses == "averaged"
        return self.config.tiers.overlap or (charged and self.config.tiers.levels[-1].hit_rate != 1)

    def submit(self, stage: Stage) -> None:
        """Take a fetch or a write-back. Any number of them run in parallel."""
        assert isinstance(stage, ServiceStage)
        stage.start_ns = self.env._now
        if stage.kind == "store_kv":
            self._keep(stage)
        elif self.config.mode == "expected" and self.config.misses == "recompute":
            self._draw(stage)
        elif self.config.mode == "expected":
            self._expect(stage)
        elif self.config.entries == "blocks":
            self._find_blocks(stage)
        else:
            self._find_context(stage)

    # -- expected ------------------------------------------------------------------------------------------------

    def _expect(self, stage: ServiceStage) -> None:
        """Complete a fetch after the expected time of the hierarchy, with all of its context."""
        tokens = stage.tokens
        num_bytes = round(tokens * self.kv_bytes_per_token)
        recompute_s = self._prefill_s(tokens, 0) if self.needs_prefill else 0.0
        stage.cached_tokens = tokens
        exposed = self._exposed(stage, num_bytes)
        seconds = expected_s(num_bytes, self._levels, recompute_s, exposed) if tokens else 0.0
        self._after(s_to_ns(seconds), lambda: self.events.done(self, stage))

    def _draw(self, stage: ServiceStage) -> None:
        """Complete a fetch after the time of the tier drawn, or at once without its context.

        The draws belong to the request, not to the client: runs of one seed draw the same numbers whatever the stores,
        so that a higher hit rate finds all that a lower one does.
        """
        request, levels = stage.request, self._levels
        request.fetches += 1
        rng = request_stream(self._seed, f"kv hits/{request.id}/{request.fetches}")
        depth = drawn_level(levels, rng.random) if stage.tokens else 0
        for tier in self.tiers[:depth]:
            tier.store.misses += 1
        asked = levels[:depth] if self.config.charge_misses else []
        seconds = float_sum(level.lookup_s for level in asked)
        if depth < len(levels) and stage.tokens:
            num_bytes = round(stage.tokens * self.kv_bytes_per_token)
            stage.cached_tokens = stage.tokens
            self.tiers[depth].store.hits += 1
            self.tiers[depth].read_bytes += num_bytes
            seconds += hit_s(num_bytes, levels[depth], self._exposed(stage, num_bytes))
        self._after(s_to_ns(seconds), lambda: self.events.done(self, stage))

    def _exposed(self, stage: ServiceStage, num_bytes: int) -> Callable[[float], float] | None:
        """Return a function from bytes/s to the bytes of a read that the prefill cannot hide; None without overlap."""
        if not self.config.tiers.overlap:
            return None
        hidden_s = self._prefill_s(stage.request.prompt_tokens, stage.tokens)
        stage.overlap = self.num_layers, hidden_s
        return partial(exposed_bytes, num_bytes, self.num_layers, hidden_s)

    def _prefill_s(self, tokens: int, past: int) -> float:
        """Return the duration of a prompt with `tokens` new tokens, alone."""
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
        unit = self.config.tiers.block_tokens
        keys = block_keys(stage.content, stage.tokens, unit, self.model)
        self._ask(keys)
        reads, num_found = self._hierarchy.find(keys, round(unit * self.kv_bytes_per_token))
        stage.cached_tokens = num_found * unit
        self._judge_overlap(stage, max(1, stage.tokens - stage.cached_tokens))
        tiers = self.tiers if self.config.charge_misses else [read.tier for read in reads]
        self._read(stage, reads, sum(tier.lookup_ns for tier in tiers))

    def _read(self, stage: ServiceStage, reads: list[Read], wait_ns: int) -> None:
        """Read from several tiers in parallel after `wait_ns`; complete the stage when nothing is left to wait for."""
        done = partial(self.events.done, self, stage)
        self._after(wait_ns, partial(self._hierarchy.fetch, reads, done, stage.overlap))

    def _ask(self, keys: list[Hashable]) -> None:
        """Count the keys of a lookup, and periodically copy the most requested to the nearest tier."""
        warming = self.config.warming
        if self._hot is None or warming is None:
            return
        for key in keys:
            self._hot.seen(key)
        self._fetches += 1
        if self._fetches % warming.every == 0:
            self._hierarchy.warm(self._hot.keys())

    def _judge_overlap(self, stage: ServiceStage, new_tokens: int) -> None:
        if self.config.tiers.overlap:
            stage.overlap = self.num_layers, self._prefill_s(new_tokens, stage.cached_tokens)

    def _key(self, stage: ServiceStage) -> Hashable:
        """Return the key of its entry. It includes the model, since a tier may hold the KV of several."""
        request = stage.request
        if request.context is not None:
            return (self.model, *request.context)
        return (self.model, "session", request.session) if request.session >= 0 else (self.model, "request", request.id)

    def _keep(self, stage: ServiceStage) -> None:
        if self.config.mode == "expected":   # no entry is known to be missing; alone, the nearest tier takes this long
            seconds = stage.tokens * self.kv_bytes_per_token / self.tiers[0].config.rates.alone
            self._after(s_to_ns(seconds), lambda: self.events.done(self, stage))
        else:
            self._after(0, lambda: self._store(stage))

    def _store(self, stage: ServiceStage) -> None:
        if self.config.entries == "blocks":
            unit = self.config.tiers.block_tokens
            size = round(unit * self.kv_bytes_per_token)
            # the last block first, so that it is evicted first
            keys = block_keys(stage.content, stage.tokens, unit, self.model)
            entries: list[tuple[Hashable, int]] = [(key, size) for key in reversed(keys)]
        else:
            entries = [(self._key(stage), round(stage.tokens * self.kv_bytes_per_token))]
        self._hierarchy.keep(entries, lambda: self.events.done(self, stage))

    def _after(self, delay_ns: int, act: Callable[[], None]) -> None:
        self.env.tick_at(self.env._now + delay_ns, STEP_END + self.index, lambda tick: act())

    # -- before the run ------------------------------------------------------------------------------------------

    def prepare(self, clients: Iterable[Client], populations: Iterable[Population]) -> None:
        """Get the cost of a prefill from the other clients, and fill the tiers with their initial contexts.

        Raises `InputError` if no client computes prompts of its model.
        """
        if self.needs_prefill and self.prefill is None:
            engines = [c for c in clients if c.role in ("both", "prefill") and c.model in ("", self.model)]
            if not engines:
                raise InputError(Verbatim(f"missing: give the hardware of a prefill, or an LLM client of model "
                                          f"{self.model!r}"), field="clients.recompute")
            self.prefill = cast("LLMClient", engines[0]).hardware   # the clients of these roles are engines
        for population in populations if self.config.start != "empty" else ():
            self.fill(population)

    def fill(self, population: Population) -> None:
        """Fill the tiers with the most requested part of a population."""
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
            for key, size in reversed(chosen):   # the most requested is used last
                store.put((self.model, population.name, key), size)


class WarmingConfig(ConfigModel):
    """Copy of hot entries to the nearest tier before the next request for them."""

    every: int = Field(default=100, ge=1, le=2**40)
    """Fetches between two rounds of copying."""
    entries: int = Field(default=100, ge=1, le=10_000_000)
    """Keys per round: the most requested ones, by a Count-Min sketch."""
    sample: int = Field(default=10_000, ge=1, le=2**40)
    """Accesses after which the sketch halves its counts."""


class KvRetrievalClientConfig(TaskClientConfig):
    """Clients that fetch past KV from a hierarchy of stores."""

    kind: Literal["kv_retrieval"] = "kv_retrieval"
    model: Annotated[str, Field(min_length=1, max_length=4096)]
    """Model whose KV the client holds; its description gives the bytes of a token."""
    kv_bits: float = Field(default=16, gt=0, le=64)
    """Bits per KV element."""
    tiers: TiersConfig
    """The hierarchy, and what moves in it."""
    mode: Literal["expected", "stateful"] = "stateful"
    """`expected`: times from given hit rates. `stateful`: tiers hold keys."""
    misses: Literal["averaged", "recompute"] = "averaged"
    """Cost of a miss, for `expected`. `averaged`: every fetch takes the mean time of hits and misses, a miss that of a
    prefill alone; no LLM client is loaded. `recompute`: each fetch draws whether it hits, and the LLM client computes
    what is missing."""
    entries: Literal["contexts", "blocks"] = "contexts"
    """Unit of storage: the context that a request carries, as one entry, or the blocks of its prompt, by their hashes
    (traces with block hashes, prefix groups)."""
    recompute: Annotated[Any, Component(HARDWARE)] | None = None   # Any: of a plug-in, too
    """Hardware model for the cost of a prefill, for `misses: averaged` and `overlap`. Left out, that of the first LLM
    client of the model."""
    warming: WarmingConfig | None = None
    """Write the most requested entries that are in lower tiers only to the nearest tier, in the background."""
    charge_misses: bool = False
    """Charge the time of a lookup that finds nothing (the formula of `misses: averaged` does not)."""
    start: Literal["empty", "home", "popular"] = "empty"
    """Contents of the tiers at the beginning. `popular`: each tier holds the contexts requested most. `home`: each
    holds the most requested of its client's own contexts, those whose key modulo `count` is the client's number; the
    router `context` sends requests there."""
    power: PowerConfig | None = None
    """Watts of one machine; fetching draws `prefill`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mode == "expected":
            for i, tier in enumerate(self.tiers.levels):
                if tier.hit_rate is None:
                    raise InputError(Verbatim("missing: mode `expected` needs the hit rate of every tier"),
                                     field=f"tiers.levels.{i}.hit_rate")
        else:
            with inside("tiers"):
                self.tiers.without_hit_rates()
            if self.misses != "averaged":
                raise InputError(Verbatim("applies to `mode: expected` only: in stateful tiers the LLM client always "
                                          "computes what is missing; leave it out"), field="misses")
        if self.warming is not None and (self.mode != "stateful" or len(self.tiers.levels) < 2):
            raise InputError(Verbatim("needs mode: stateful and at least two tiers; leave it out"), field="warming")
        if self.start != "empty" and (self.mode, self.entries) != ("stateful", "contexts"):
            raise InputError(Verbatim(f"{self.start} needs mode: stateful and entries: contexts; write start: empty"),
                             field="start")
        return self

    def build(self, env: Clock, first_index: int, runs: RowLog, events: ClientEvents, *, every_step: bool,
              base_dir: Path | None,
              moves_kv: Literal["", "full", "layerwise"] = "", seed: int = 0) -> list[KvRetrievalClient]:
        """Build the group's clients, numbered from `first_index`."""
        with inside("model"):
            model = load_model(self.model, base_dir)
        recompute = None
        if self.recompute is not None:
            with inside("recompute"):
                recompute = self.recompute.build(base_dir)
        clients = []
        for i, (name, platform) in enumerate(zip(self.names, self.platforms, strict=True)):
            tiers = build_tiers(self.tiers.levels, env, first_index + i, name, platform)
            clients.append(KvRetrievalClient(
                env, first_index + i, name, events, tiers, self, model, recompute, platform=platform,
                home=(i, self.count), seed=seed,
            ))
        return clients
