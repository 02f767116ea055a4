"""KV tiers as they stand in YAML: what each holds, its bandwidth, who shares it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hermes.config import Bandwidth, Bytes, ConfigModel, Duration, Named
from hermes.errors import InputError
from hermes.memory.eviction import EVICTION

__all__ = ["KvTierConfig", "OffloadConfig", "refuse_hit_rates"]


class KvTierConfig(ConfigModel):
    """One level of the hierarchy."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """Name; shared tiers of one name are one."""
    capacity: Annotated[Bytes, Field(gt=0)]
    """Bytes it holds."""
    bandwidth: Bandwidth
    """Bytes/s it can be read and written at, by all that share it together."""
    lookup: Duration = 0.0
    """Time to find out whether it has a key, charged where it has."""
    scope: Literal["client", "platform", "rack", "all"] = "client"
    """Who shares it: nobody, clients of one platform, of one rack (the platform up to its first slash), or all."""
    policy: Annotated[str, Named(EVICTION)] = "lru"
    """Who goes when it is full."""
    admission: Literal["all", "frequency"] = "all"
    """Who comes in when it is full: everything, or (TinyLFU) what was asked for more often than the one that would go,
    as far as a Count-Min sketch of recent accesses can tell."""
    admission_sample: int = Field(default=10_000, ge=1, le=2**40)
    """Accesses after which the sketch's counts halve."""
    hit_rate: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the fetches that get here and find theirs: for `mode: expected`, and for nothing else."""


def refuse_hit_rates(tiers: list[KvTierConfig], field: str) -> None:
    """Raise `InputError` for hit rates of tiers that hold entries: what these find follows from what they hold."""
    for i, tier in enumerate(tiers):
        if tier.hit_rate is not None:
            raise InputError("no hit rate but for `mode: expected`: tiers that hold entries find what they hold",
                             tier.hit_rate, field=f"{field}.{i}.hit_rate")


class OffloadConfig(ConfigModel):
    """Where blocks of the prefix cache are kept besides the device."""

    tiers: list[KvTierConfig] = Field(min_length=1)
    """The hierarchy, nearest first."""
    block_tokens: int = Field(default=512, ge=1, le=2**20)
    """Tokens of an entry: whole blocks of so many tokens are stored and found."""
    overlap: bool = False
    """Whether a prefill starts while the rest of its KV is read, layer by layer."""
    write: Literal["all", "nearest"] = "all"
    """Which tiers get what is stored. It moves what a tier does not have yet."""
    promote: bool = True
    """Whether what a lower tier had is written to those above it, once read."""
    demote: bool = False
    """Whether what a tier evicts is written to the one below."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        refuse_hit_rates(self.tiers, "tiers")
        return self
