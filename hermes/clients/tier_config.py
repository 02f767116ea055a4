"""Configuration of KV tiers: capacity, bandwidth, sharing, eviction and admission; and of the host memory to which an
engine offloads KV itself (vLLM's OffloadingConnector)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, PrivateAttr, model_validator

from hermes.config import Bandwidth, Bytes, ConfigModel, Duration, Name, Named, NameOrFile
from hermes.errors import InputError, Verbatim, inside
from hermes.memory.eviction import EVICTION, EvictionPolicy, Recency

if TYPE_CHECKING:
    from hermes.memory.blocks import BlockPool
    from hermes.memory.host_cache import HostCache

__all__ = ["HostOffloadConfig", "KvTierConfig", "TierRates", "TiersConfig"]

PAGE = 4096   # bytes; a chunk takes whole pages of host memory


class TierRates(NamedTuple):
    """Rates of a tier. bandwidth: of all clients together; port: of one; latency: before the first byte of a read."""

    bandwidth: float
    port: float | None = None
    latency_s: float = 0.0

    @property
    def alone(self) -> float:
        """Bytes/s of a read by itself."""
        return self.bandwidth if self.port is None else min(self.bandwidth, self.port)


class KvTierConfig(ConfigModel):
    """One tier of the hierarchy."""

    name: Name
    """Name. Shared tiers of one name are one tier."""
    capacity: Annotated[Bytes, Field(gt=0)]
    """Capacity in bytes."""
    bandwidth: Annotated[Bandwidth | NameOrFile, Field(union_mode="left_to_right")]
    """Bytes/s of all its reads and writes together; or a memory (`hw_profiles/memories`, or a file), which also has the
    bytes/s of one client and a latency, added to `lookup`."""
    lookup: Duration = 0.0
    """Time of a lookup, charged if it finds the key."""
    scope: Literal["client", "platform", "rack", "all"] = "client"
    """Clients that share the tier: one client alone, those of one platform, of one rack (the platform up to its first
    slash), or all."""
    eviction: Annotated[str, Named(EVICTION)] = "lru"
    """Eviction policy: which entry leaves a full tier."""
    recency: Recency = "rank"
    """Meaning of recency in `eviction: tamm`: the place in the order of last use (`rank`), 1 / accesses since the last
    use (`age`), or the number of the access that was the last use (`counter`)."""
    admission: Literal["all", "frequency"] = "all"
    """Admission to a full tier: every entry, or (TinyLFU) entries requested more often than the one that would be
    evicted, by a Count-Min sketch of recent accesses."""
    admission_sample: int = Field(default=10_000, ge=1, le=2**40)
    """Accesses after which the sketch halves its counts."""
    hit_rate: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the fetches reaching this tier that find their entry; only for `mode: expected`."""
    _rates: TierRates = PrivateAttr()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.recency != "rank" and self.eviction != "tamm":
            raise InputError(Verbatim("applies to `eviction: tamm` only; leave it out"), field="recency")
        if isinstance(self.bandwidth, str):
            from hermes.hardware.descriptions.memories import load_memory

            with inside("bandwidth"):
                memory = load_memory(self.bandwidth)
            self._rates = TierRates(memory.bandwidth, memory.port, memory.latency)
        else:
            self._rates = TierRates(self.bandwidth)
        return self

    @property
    def rates(self) -> TierRates:
        """Its rates: as given, or those of the memory that `bandwidth` names."""
        return self._rates

    def build_eviction(self) -> EvictionPolicy:
        """Return a new eviction policy for a store of this tier."""
        options = {"recency": self.recency} if self.eviction == "tamm" else {}
        made: EvictionPolicy = EVICTION.get(self.eviction)(**options)
        return made


class TiersConfig(ConfigModel):
    """Tiers that hold KV outside the device, and what moves between them."""

    levels: list[KvTierConfig] = Field(min_length=1)
    """The tiers, nearest first."""
    block_tokens: int = Field(default=512, ge=1, le=2**20)
    """Tokens of an entry: whole blocks of this size are stored and found."""
    overlap: bool = False
    """Start a prefill while the rest of its KV is read, layer by layer; it does not wait for what it hides."""
    write: Literal["all", "nearest"] = "all"
    """Tiers that what is stored goes to. Only what a tier does not have yet is moved."""
    promote: bool = True
    """Write what a lower tier had to the tiers above it, once read."""
    demote: bool = False
    """Write what a tier evicts to the tier below."""

    def without_hit_rates(self) -> Self:
        """Return this. Raises `InputError` for hit rates of stateful tiers: their entries determine what they find."""
        for i, tier in enumerate(self.levels):
            if tier.hit_rate is not None:
                raise InputError(Verbatim("applies to `mode: expected` only: the entries of a stateful tier determine "
                                          "its hits; leave it out"), field=f"levels.{i}.hit_rate")
        return self


class HostOffloadConfig(ConfigModel):
    """Copies of KV blocks in host memory, made and read by the engine (vLLM's OffloadingConnector)."""

    cpu_bytes_to_use: Bytes
    """Host memory for one client, all its devices together."""
    blocks_per_chunk: int = Field(default=1, ge=1, le=2**20)
    """KV blocks of a chunk: whole chunks are stored and found."""
    eviction_policy: Literal["lru", "arc"] = "lru"
    """Chunk that leaves a full host memory: the least recently used one, or the one that adaptive replacement chooses.
    """
    offload_prompt_only: bool = True
    """Store blocks of prompts only, not those with outputs."""
    store_threshold: int = Field(default=0, ge=0, le=2**31)
    """Number of offers of a chunk after which it is stored. 0 and 1: at once."""
    bandwidth: Bandwidth | None = None
    """Bytes/s between one device and the host, one direction. Left out, the device's `host_bandwidth`."""
    latency: Duration = 0.0
    """Time of a copy before its first byte."""

    def pool(self) -> Callable[..., BlockPool]:
        """Return the constructor of the device's KV memory, whose blocks are copied."""
        from hermes.memory.fenced import FencedPool

        return FencedPool

    def build(self, block_bytes: float, *, ranked: bool = False) -> HostCache:
        """Return an empty host cache.

        Args:
            block_bytes: KV bytes of one block over all layers and devices.
            ranked: Whether the order of eviction is that of vLLM 0.33.

        Raises `InputError` if not even one chunk fits.
        """
        from hermes.memory.host_cache import HostCache

        size = self.chunk_bytes(block_bytes)
        if self.cpu_bytes_to_use < size:
            raise InputError(f"at least one chunk of {size:,} bytes", self.cpu_bytes_to_use, field="cpu_bytes_to_use")
        return HostCache(self.cpu_bytes_to_use // size, self.eviction_policy, self.store_threshold, ranked=ranked)

    def chunk_bytes(self, block_bytes: float) -> int:
        """Return the host memory of one chunk."""
        return -(-round(block_bytes * self.blocks_per_chunk) // PAGE) * PAGE

    def extra_config(self) -> dict[str, Any]:   # Any: JSON
        """Return the connector's `kv_connector_extra_config`."""
        given: dict[str, Any] = {"cpu_bytes_to_use": self.cpu_bytes_to_use}   # Any: as above
        for name in ("blocks_per_chunk", "eviction_policy", "offload_prompt_only", "store_threshold"):
            if getattr(self, name) != type(self).model_fields[name].default:
                given[name] = getattr(self, name)
        return given
