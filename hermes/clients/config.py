"""What a user writes about an LLM client, and how it becomes one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hermes.clients.base import CLIENTS
from hermes.clients.llm import LLMClient
from hermes.config import Bytes, Component, ConfigModel
from hermes.errors import InputError, inside
from hermes.hardware import HARDWARE
from hermes.hardware.models import ModelDescription, load_model
from hermes.kernel import Clock
from hermes.memory import BlockPool, PrefixBlockPool
from hermes.recorder import RowLog
from hermes.schedulers import SCHEDULERS

__all__ = ["LLMClientConfig", "MemoryConfig", "PowerConfig"]


def _description(model: str, base_dir: Path | None) -> ModelDescription:
    with inside("model"):
        return load_model(model, base_dir)


class MemoryConfig(ConfigModel):
    """KV memory of one client: a number of blocks, or the memory they are cut from.

    Computed: num_blocks = floor((devices x capacity x utilization - weights - devices x activations) / (block_size x
    kv_bytes_per_token)).
    """

    block_size: int = Field(default=16, ge=1, le=2**20)
    """Tokens per KV block."""
    num_blocks: int | None = Field(default=None, ge=1, le=2**40)
    """KV blocks of the client; computed from the memory below where left out."""
    capacity: Bytes | None = None
    """Memory of one device."""
    utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of the capacity the engine may use."""
    weights: Bytes | None = None
    """Bytes of the model's weights on the whole client; from the model's description where left out."""
    activations: Bytes = 0
    """Bytes per device set aside for activations and the engine itself."""
    kv_bytes_per_token: float | None = Field(default=None, gt=0, le=2**40)
    """KV bytes of one token over all layers and devices; from the model's description where left out."""
    weight_bits: float = Field(default=16, gt=0, le=64)
    """Bits per weight, where the weights come from the model's description."""
    kv_bits: float = Field(default=16, gt=0, le=64)
    """Bits per KV element, where the KV bytes come from the model's description."""
    prefix_caching: bool = False
    """Whether full blocks stay in a prefix cache (chained hashes, LRU) after their sequence is done."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.num_blocks is None and self.capacity is None:
            raise InputError("num_blocks, or the capacity of a device", field="capacity")
        if self.num_blocks is not None and self.capacity is not None:
            raise InputError("either num_blocks or capacity", "both", field="num_blocks")
        return self

    def kv_bytes(self, model: str, base_dir: Path | None) -> float:
        """KV bytes of one token on the whole client."""
        if self.kv_bytes_per_token is not None:
            return self.kv_bytes_per_token
        return float(_description(model, base_dir).kv_bytes_per_token(self.kv_bits / 8))

    def blocks(self, model: str, devices: int, base_dir: Path | None) -> int:
        """Blocks of one client; `InputError` if the weights leave no room for any."""
        if self.num_blocks is not None:
            return self.num_blocks
        assert self.capacity is not None
        weights = self.weights
        if weights is None:
            weights = round(_description(model, base_dir).num_params() * self.weight_bits / 8)
        left = devices * self.capacity * self.utilization - weights - devices * self.activations
        num_blocks = int(left // (self.block_size * self.kv_bytes(model, base_dir)))
        if num_blocks < 1:
            raise InputError(
                f"more memory than the weights take ({weights / 1e9:.1f} GB; {devices} device(s) offer "
                f"{devices * self.capacity * self.utilization / 1e9:.1f} GB)", self.capacity, field="memory.capacity",
            )
        return num_blocks


class PowerConfig(ConfigModel):
    """Watts of one device by what the client does."""

    idle: float = Field(default=0.0, ge=0, le=1e6)
    """Watts while no step runs."""
    prefill: float = Field(default=0.0, ge=0, le=1e6)
    """Watts in steps that compute prompt tokens."""
    decode: float = Field(default=0.0, ge=0, le=1e6)
    """Watts in steps that only decode."""


@CLIENTS.register("llm")
class LLMClientConfig(ConfigModel):
    """Clients that serve generations: a scheduler over a hardware model, with KV memory."""

    kind: Literal["llm"] = "llm"
    name: Annotated[str, Field(min_length=1, max_length=200)] = "llm"
    """Name; clients of a group are called NAME-0, NAME-1, ..."""
    count: int = Field(default=1, ge=1, le=100_000)
    """Number of equal clients."""
    model: Annotated[str, Field(max_length=4096)] = ""
    """Model served: a built-in description or the path of a config.json. Left out, the client serves any model."""
    role: Literal["both", "prefill", "decode"] = "both"
    """Whether the client prefills and decodes, or does one of the two (disaggregated)."""
    platform: str | None = None
    """Group of clients that are local to each other (routing and local disaggregation)."""
    devices: int = Field(default=1, ge=1, le=2**20)
    """Devices of one client, for memory, power and cost."""
    hardware: Annotated[Any, Component(HARDWARE)]
    """How long a step takes."""
    scheduler: Annotated[Any, Component(SCHEDULERS), Field(default={"kind": "chunked"}, validate_default=True)]
    """In which order the client serves."""
    memory: MemoryConfig
    """KV memory."""
    power: PowerConfig = PowerConfig()
    """Watts of one device."""

    @property
    def names(self) -> list[str]:
        """Names of the group's clients."""
        return [self.name] if self.count == 1 else [f"{self.name}-{i}" for i in range(self.count)]

    def build(self, env: Clock, first_index: int, runs: RowLog, *, every_step: bool, base_dir: Path | None,
              moves_kv: Literal["", "full", "layerwise"] = "") -> list[LLMClient]:
        """The group's clients, numbered from `first_index`. They share one hardware model, which has no state.

        moves_kv: how KV moves between clients, if it does; layer-wise needs the number of the model's layers.
        """
        with inside("hardware"):
            hardware = self.hardware.build(base_dir)
        num_blocks = self.memory.blocks(self.model, self.devices, base_dir)
        pool_type = PrefixBlockPool if self.memory.prefix_caching else BlockPool
        options: dict[str, Any] = {}
        if self.memory.prefix_caching and hasattr(self.scheduler, "unhashed_to_front"):
            options["unhashed_to_front"] = self.scheduler.unhashed_to_front
        clients = []
        for i, name in enumerate(self.names):
            pool = pool_type(num_blocks, self.memory.block_size, **options)
            scheduler = self.scheduler.build(pool, every_step=every_step)
            if self.role == "decode" and not scheduler.takes_over_kv:
                raise InputError("a scheduler that can take over KV from a prefill client", self.scheduler.kind,
                                 field="scheduler.kind")
            client = LLMClient(
                env, first_index + i, name, scheduler, hardware, runs,
                model=self.model, role=self.role, platform=self.platform or "", every_step=every_step,
            )
            if moves_kv:
                client.kv_bytes_per_token = self.memory.kv_bytes(self.model, base_dir)
                if moves_kv == "layerwise":
                    client.num_layers = _description(self.model, base_dir).num_layers
            clients.append(client)
        return clients
