"""KV retrieval: past context comes from a hierarchy of stores instead of being computed again.

A client has tiers, nearest first. A tier belongs to the client alone or is shared by all clients of its platform, rack
or of the whole system (by the tier's name): capacity, entries and bandwidth are then common.

- *expected*: every fetch takes the expected time of the hierarchy (`hermes.memory.tiers.expected_s`) from given hit
  rates; past the last tier the context is recomputed, at the price of a prefill on `recompute`.
- *stateful*: tiers hold keys. A fetch looks from the nearest on, and reads where it finds its key; concurrent reads
  share a tier's bandwidth. What no tier has is recomputed by the generation that needs it: the stage says how many
  tokens it brought (`cached_tokens`). `store_kv` writes back.

A fetch's key is the request's session (`private`), or one of `keys` drawn by Zipf's law (`shared`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hermes.clients.base import CLIENTS
from hermes.clients.task import TaskClient
from hermes.clients.usage import PowerConfig
from hermes.config import Bandwidth, Bytes, Component, ConfigModel, Duration, Named
from hermes.errors import InputError, inside
from hermes.hardware import HARDWARE, StepStats
from hermes.hardware.models import load_model
from hermes.kernel import STEP_END, Clock
from hermes.memory.eviction import EVICTION
from hermes.memory.tiers import Level, Store, expected_s
from hermes.network.flows import FlowEngine
from hermes.recorder import RowLog
from hermes.services import MachineSpec
from hermes.stages import Stage
from hermes.units import NS_PER_S, s_to_ns

__all__ = ["KvRetrievalClient", "KvRetrievalClientConfig", "KvTierConfig"]


class KvTierConfig(ConfigModel):
    """One level of the hierarchy."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """Name; shared tiers of one name are one."""
    capacity: Bytes
    """Bytes it holds."""
    bandwidth: Bandwidth
    """Bytes/s it can be read at, by all that share it together."""
    lookup: Duration = 0.0
    """Time to find out whether it has a key, charged where it has."""
    scope: Literal["client", "platform", "rack", "all"] = "client"
    """Who shares it: nobody, clients of one platform, of one rack (the platform up to its first slash), or all."""
    policy: Annotated[str, Named(EVICTION)] = "lru"
    """Who goes when it is full."""
    hit_rate: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the fetches that get here and find theirs; `expected` needs it."""


class Tier:
    """A tier at work: what it holds, and its link."""

    def __init__(self, config: KvTierConfig, env: Clock) -> None:
        self.config = config
        self.store = Store(config.capacity, EVICTION.get(config.policy)())
        self.link = FlowEngine(env, [config.bandwidth])
        self.lookup_ns = s_to_ns(config.lookup)


class KvRetrievalClient(TaskClient):
    """See the module's docstring and `hermes.clients.base.Client`."""

    stages = frozenset(("fetch_kv", "store_kv"))

    def __init__(
        self, env: Clock, index: int, name: str, tiers: list[Tier], config: KvRetrievalClientConfig,
        kv_bytes_per_token: float, recompute: Any, *, platform: str,
    ) -> None:
        super().__init__(env, index, name, MachineSpec(1, 0.0, 0.0, 0), model=config.model, platform=platform)
        self.tiers, self.config = tiers, config
        self.kv_bytes_per_token, self.recompute = kv_bytes_per_token, recompute
        self._weights = _zipf(config.keys, config.zipf) if config.population == "shared" else None

    @property
    def idle(self) -> bool:
        return not self.num_assigned

    def submit(self, stage: Stage) -> None:
        """A fetch or a write-back arrives; as many as there are run side by side."""
        stage.start_ns = self.env._now
        num_bytes = round(stage.tokens * self.kv_bytes_per_token)
        if stage.kind == "store_kv":
            tier = self.tiers[0]
            self._after(0, lambda: self._flow(tier, num_bytes, lambda: self._stored(stage, num_bytes)))
        elif self.config.mode == "expected":
            levels = [Level(t.config.lookup, t.config.bandwidth, t.config.hit_rate or 0.0) for t in self.tiers]
            seconds = expected_s(num_bytes, levels, self._recompute_s(stage.tokens))
            stage.cached_tokens = stage.tokens
            self._after(s_to_ns(seconds), lambda: self.on_done(self, stage))
        else:
            self._look(stage, num_bytes)

    def _recompute_s(self, tokens: int) -> float:
        if self.recompute is None or not tokens:
            return 0.0
        stats = StepStats(prefill_seqs=1, prefill_tokens=tokens, prefill_attn=tokens * (tokens + 1) // 2)
        return float(self.recompute.step_ns(stats)) / NS_PER_S

    def _look(self, stage: Stage, num_bytes: int) -> None:
        key = self._key(stage)
        wait_ns = 0
        for depth, tier in enumerate(self.tiers):
            found = tier.store.get(key)
            if found is None:
                wait_ns += tier.lookup_ns if self.config.charge_misses else 0
                continue
            tokens = min(stage.tokens, int(found / self.kv_bytes_per_token + 0.5))
            stage.cached_tokens = tokens
            size = round(tokens * self.kv_bytes_per_token)
            if self.config.promote:
                for upper in self.tiers[:depth]:
                    upper.store.put(key, found)
            read = partial(self._flow, tier, size, partial(self.on_done, self, stage))
            self._after(wait_ns + tier.lookup_ns, read)
            return
        self._after(wait_ns, lambda: self.on_done(self, stage))

    def _key(self, stage: Stage) -> Hashable:
        request = stage.request
        if self._weights is None:
            return request.session if request.session >= 0 else ("request", request.id)
        rng = random.Random(f"{self.config.name}/{request.stream.name}/{request.id}")
        return int(np.searchsorted(self._weights, rng.random(), side="right"))

    def _stored(self, stage: Stage, num_bytes: int) -> None:
        key = self._key(stage)
        for tier in self.tiers:
            tier.store.put(key, num_bytes)
        self.on_done(self, stage)

    def _flow(self, tier: Tier, num_bytes: int, done: Callable[[], None]) -> None:
        if num_bytes > 0:
            tier.link.start((0,), num_bytes, done)
        else:
            done()

    def _after(self, delay_ns: int, act: Callable[[], None]) -> None:
        self.env.tick_at(self.env._now + delay_ns, STEP_END + self.index, lambda tick: act())


@CLIENTS.register("kv_retrieval")
class KvRetrievalClientConfig(ConfigModel):
    """Clients that fetch past KV from a hierarchy of stores."""

    kind: Literal["kv_retrieval"] = "kv_retrieval"
    role: Literal["service"] = "service"
    """It neither prefills nor decodes."""
    name: Annotated[str, Field(min_length=1, max_length=200)]
    """Name; clients of a group are called NAME-0, NAME-1, ..."""
    count: int = Field(default=1, ge=1, le=100_000)
    """Number of equal clients."""
    model: Annotated[str, Field(min_length=1, max_length=4096)]
    """Whose KV it is: the model's description says how many bytes a token takes."""
    kv_bits: float = Field(default=16, gt=0, le=64)
    """Bits per KV element."""
    tiers: list[KvTierConfig] = Field(min_length=1)
    """The hierarchy, nearest first."""
    mode: Literal["expected", "stateful"] = "stateful"
    """Expected times from hit rates, or real keys."""
    recompute: Annotated[Any, Component(HARDWARE)] | None = None
    """What a prefill of the missing context costs, for `expected`."""
    population: Literal["private", "shared"] = "private"
    """Keys: one per session, or `keys` of them drawn by Zipf's law."""
    keys: int = Field(default=1000, ge=1, le=10**7)
    """Number of shared keys."""
    zipf: float = Field(default=1.0, ge=0, le=10)
    """Exponent of Zipf's law: 0 draws evenly."""
    promote: bool = True
    """Whether what a lower tier had is kept in those above it from then on."""
    charge_misses: bool = False
    """Whether a lookup that finds nothing takes its time (the formula does not charge it)."""
    platform: str | None = None
    """Group of clients that are local to each other; `{i}` stands for the client's number."""
    devices: int = Field(default=1, ge=1, le=2**20)
    """Machines of one client, for power and cost."""
    power: PowerConfig | None = None
    """Watts of one machine; fetching draws `prefill`."""
    price_per_hour: float | None = Field(default=None, ge=0, le=1e6)
    """Dollars per hour of one machine."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mode == "expected":
            for i, tier in enumerate(self.tiers):
                if tier.hit_rate is None:
                    raise InputError("a hit rate, for expected times", field=f"tiers.{i}.hit_rate")
            if self.tiers[-1].hit_rate != 1 and self.recompute is None:
                raise InputError("what recomputing costs, as the last tier does not always hit", field="recompute")
        return self

    @property
    def names(self) -> list[str]:
        """Names of the group's clients."""
        return [self.name] if self.count == 1 else [f"{self.name}-{i}" for i in range(self.count)]

    def build(self, env: Clock, first_index: int, runs: RowLog, *, every_step: bool, base_dir: Path | None,
              moves_kv: Literal["", "full", "layerwise"] = "") -> list[KvRetrievalClient]:
        """The group's clients, numbered from `first_index`."""
        with inside("model"):
            kv_bytes = float(load_model(self.model, base_dir).kv_bytes_per_token(self.kv_bits / 8))
        recompute = None
        if self.recompute is not None:
            with inside("recompute"):
                recompute = self.recompute.build(base_dir)
        clients = []
        for i, name in enumerate(self.names):
            platform = (self.platform or "").replace("{i}", str(i))
            scopes = {"client": name, "platform": platform, "rack": platform.split("/")[0], "all": ""}
            tiers = []
            for tier in self.tiers:
                key = ("kv tier", tier.name, tier.scope, scopes[tier.scope])
                if key not in env.shared:
                    env.shared[key] = Tier(tier, env)
                tiers.append(env.shared[key])
            clients.append(
                KvRetrievalClient(env, first_index + i, name, tiers, self, kv_bytes, recompute, platform=platform)
            )
        return clients


def _zipf(keys: int, exponent: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Cumulative probabilities of keys 0, 1, ..., shape (keys,)."""
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    return np.asarray(np.cumsum(weights) / weights.sum())
