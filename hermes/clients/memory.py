"""What a user writes about a client's KV memory, and the budget that becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from hermes.config import Bytes, ConfigModel
from hermes.errors import InputError, Verbatim, inside
from hermes.hardware import capacity as kv
from hermes.hardware.capacity import KvBudget, Part
from hermes.hardware.devices import DeviceDescription
from hermes.hardware.engines import EngineDefaults
from hermes.hardware.facts import HardwareFacts
from hermes.hardware.models import ModelDescription, load_model, precision
from hermes.hardware.operators import kv_value_bytes
from hermes.memory.eviction import PrefixEviction

__all__ = ["MemoryConfig", "describe_model"]

UNBOUNDED = 2**20  # a scheduler's budget above this is no budget
DEFAULT_BATCHED_TOKENS, DEFAULT_SEQS = 8192, 256   # of schedulers that have no such limit
DEFAULT_BLOCK_SIZE, DEFAULT_UTILIZATION = 16, 0.9   # with schedulers that follow no engine


def describe_model(model: str, base_dir: Path | None) -> ModelDescription:
    """The description of a client's model; `InputError` if there is none."""
    with inside("model"):
        return load_model(model, base_dir)


class MemoryConfig(ConfigModel):
    """KV memory of one client: a number of blocks, or the memory they are cut from.

    Computed as vLLM does: num_blocks = floor((devices x (capacity x utilization - activations - engine_reserve) -
    weights) / (block_size x kv_bytes_per_token)). Where the capacity comes from a device or a profile, what is left out
    is taken from the profile or estimated; where a capacity is given, activations and engine_reserve are 0 unless given
    too. The run's summary says where each part comes from.
    """

    block_size: int | None = Field(default=None, ge=1, le=2**20)
    """Tokens per KV block; the engine's default where left out (vLLM: 16, on a CPU 128)."""
    num_blocks: int | None = Field(default=None, ge=1, le=2**40)
    """KV blocks of the client; computed from the memory below where left out."""
    capacity: Bytes | None = None
    """Memory of one device; that of the client's `device` (or of the hardware model's, or the profile's) where left
    out."""
    utilization: float | None = Field(default=None, gt=0, le=1)
    """Share of the capacity the engine may use (vLLM's gpu_memory_utilization); the engine's default where left out."""
    weights: Bytes | None = None
    """Bytes of the model's weights on the whole client; from the model's description where left out."""
    activations: Bytes | None = None
    """Bytes per device for the peak of activations."""
    engine_reserve: Bytes | None = None
    """Bytes per device that are neither weights, activations nor KV (libraries, communication buffers)."""
    reserved: Bytes = 0
    """Bytes per device kept for others on it: a buffer, an embedding model. No KV is cut from them."""
    kv_bytes_per_token: float | None = Field(default=None, gt=0, le=2**40)
    """KV bytes of one token over all layers and devices; from the model's description where left out."""
    weight_bits: float | None = Field(default=None, gt=0, le=64)
    """Bits per weight, where the weights come from the model's description; those of the hardware model's precision
    where left out (16 if it has none)."""
    kv_bits: float | None = Field(default=None, gt=0, le=64)
    """Bits per KV element, where the KV bytes come from the model's description; as `weight_bits`."""
    prefix_caching: bool | None = None
    """Whether full blocks stay in a prefix cache (chained hashes) after their sequence is done. Left out: as the
    client's `engine` does (vLLM does); off with schedulers that follow no engine."""
    prefix_start: Literal["empty", "warm"] = "empty"
    """What the prefix cache holds when the clock starts. `warm`: what prompts of the workloads are said to begin with
    (`system_tokens` of conversations, `prefixes`, prefix groups of a trace), the most used first as far as it fits; no
    history of any conversation, and nothing of traces that only have block hashes."""
    prefix_eviction: PrefixEviction = "lru"
    """Which unused blocks of the prefix cache go first: those used least recently (as vLLM does), those of the least
    recency per token of the prompt that used them (`tamm`), the least uses per token, ageing (`gdsf`), the fewest
    uses (`lfu`), or those that came in first (`fifo`)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.num_blocks is not None and self.capacity is not None:
            raise InputError("either num_blocks or capacity", "both", field="num_blocks")
        if self.num_blocks is not None and self.reserved:
            raise InputError("nothing reserved where num_blocks is given", self.reserved, field="reserved")
        self._check_eviction()
        return self

    def _check_eviction(self) -> None:
        if self.prefix_eviction != "lru" and self.prefix_caching is False:
            raise InputError("lru without prefix_caching: nothing is evicted", self.prefix_eviction,
                             field="prefix_eviction")

    def completed(self, defaults: EngineDefaults | None) -> MemoryConfig:
        """The same with the engine's defaults for everything left out; None: no engine, nothing is cached."""
        cached = defaults is not None and defaults.prefix_caching
        filled = self.model_copy(update={
            "block_size": self.block_size or (DEFAULT_BLOCK_SIZE if defaults is None else defaults.block_size),
            "utilization": self.utilization or (DEFAULT_UTILIZATION if defaults is None else defaults.utilization),
            "prefix_caching": cached if self.prefix_caching is None else self.prefix_caching,
        })
        filled._check_eviction()
        return filled

    @property
    def tokens_per_block(self) -> int:
        """`block_size`, once it is known."""
        return self.block_size or DEFAULT_BLOCK_SIZE

    def kv_bytes(self, model: str, facts: HardwareFacts, base_dir: Path | None) -> float:
        """KV bytes of one token on the whole client."""
        if self.kv_bytes_per_token is not None:
            return self.kv_bytes_per_token
        return float(describe_model(model, base_dir).kv_bytes_per_token(self._value_bytes(facts), facts.tp))

    def _value_bytes(self, facts: HardwareFacts) -> float:
        if self.kv_bits is not None:
            return self.kv_bits / 8
        return kv_value_bytes(facts.kv_dtype, facts.dtype or "bf16")

    def budget(
        self, model: str, devices: int, facts: HardwareFacts, device: DeviceDescription | None, scheduler: Any,
        base_dir: Path | None,
    ) -> KvBudget:
        """Blocks of one client, and where they come from; `InputError` if memory is missing, in bytes."""
        if self.num_blocks is not None:
            known = self.kv_bytes_per_token is not None or bool(model)
            per_token = self._known_kv_bytes(model, facts, base_dir) if known else 0.0
            return KvBudget(self.tokens_per_block, self.num_blocks, per_token, devices)
        capacity = self._capacity(facts, device)
        estimated = self.capacity is None
        per_token, weights, total = self._kv_and_weights(model, devices, facts, base_dir)
        return kv.cut_blocks(
            self.tokens_per_block, per_token, devices, self.utilization or DEFAULT_UTILIZATION, capacity, weights,
            self._activations(model, facts, scheduler, base_dir, estimated),
            self._engine(facts, estimated), total,
        )

    def _known_kv_bytes(self, model: str, facts: HardwareFacts, base_dir: Path | None) -> float:
        try:
            return self.kv_bytes(model, facts, base_dir)
        except InputError:   # a name nobody describes is fine where blocks are given
            return 0.0

    def _capacity(self, facts: HardwareFacts, device: DeviceDescription | None) -> Part:
        if self.capacity is not None:
            return Part(self.capacity, "given")
        if device is not None:
            return Part(device.memory, f"device {device.name}")
        if facts.memory is not None:
            return Part(facts.memory.capacity_bytes, f"profile {facts.name}: {facts.memory.source}")
        raise InputError(
            "num_blocks, the capacity of a device, or a client that names its `device`", Verbatim("none of them"),
            field="memory",
        )

    def _kv_and_weights(
        self, model: str, devices: int, facts: HardwareFacts, base_dir: Path | None
    ) -> tuple[float, Part, float | None]:
        """(KV bytes per token of the client, weights of one device, of the client where that is more exact)."""
        per_token = self.kv_bytes(model, facts, base_dir)
        if facts.pp > 1 and self.kv_bytes_per_token is None:  # the fullest stage decides
            shape = describe_model(model, base_dir)
            per_token = devices * kv.stage_kv_bytes_per_token(shape, self._value_bytes(facts), facts.tp, facts.pp)
        if self.weights is not None:
            return per_token, Part(round(self.weights / devices), "given"), self.weights
        if self.capacity is None and facts.memory is not None and self.weight_bits is None:
            return per_token, Part(facts.memory.weights_bytes, f"profile {facts.name}: {facts.memory.source}"), None
        shape = describe_model(model, base_dir)
        dtype = facts.dtype or shape.dtype or "bf16"
        if self.weight_bits is None and (facts.pp > 1 or precision(dtype).layer_bytes != precision(dtype).other_bytes):
            size = kv.stage_weight_bytes(shape, dtype, facts.tp, facts.pp)
            return per_token, Part(size, f"model {shape.name}, {dtype}"), None
        bits = 8 * precision(dtype).layer_bytes if self.weight_bits is None else self.weight_bits
        total = round(shape.num_params() * bits / 8)
        return per_token, Part(round(total / devices), f"model {shape.name}, {bits:g} bits"), total

    def _activations(
        self, model: str, facts: HardwareFacts, scheduler: Any, base_dir: Path | None, estimated: bool
    ) -> Part:
        if self.activations is not None:
            return Part(self.activations, "given")
        if not estimated:
            return Part(0, "not given")
        if facts.memory is not None:
            return Part(facts.memory.activation_bytes, f"profile {facts.name}: {facts.memory.source}")
        tokens = getattr(scheduler, "max_num_batched_tokens", None) or UNBOUNDED
        tokens = tokens if tokens < UNBOUNDED else DEFAULT_BATCHED_TOKENS
        seqs = getattr(scheduler, "max_num_seqs", None) or DEFAULT_SEQS
        peak = kv.activation_peak_bytes(
            describe_model(model, base_dir), tp=facts.tp, dtype=facts.dtype or "bf16", max_num_batched_tokens=tokens,
            max_num_seqs=seqs,
        )
        return Part(peak, f"estimate for {tokens:,} tokens and {seqs:,} sequences a step")

    def _engine(self, facts: HardwareFacts, estimated: bool) -> Part:
        """What is neither weights, activations nor KV: the engine's own, and what is reserved for others."""
        found = self._engine_alone(facts, estimated)
        if not self.reserved:
            return found
        return Part(found.bytes + self.reserved, f"{found.source}; {self.reserved / 1e9:g} GB reserved")

    def _engine_alone(self, facts: HardwareFacts, estimated: bool) -> Part:
        if self.engine_reserve is not None:
            return Part(self.engine_reserve, "given")
        if not estimated:
            return Part(0, "not given")
        if facts.memory is not None and self.activations is None:
            return Part(0, "part of the profile's activations")
        return Part(kv.engine_bytes(facts.tp), f"estimate for TP{facts.tp}")
