"""KV memory of a client: its configuration and the resulting budget of blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from hermes.clients.tier_config import HostOffloadConfig
from hermes.config import Bytes, ConfigModel
from hermes.errors import InputError, Verbatim, inside
from hermes.hardware import capacity as kv
from hermes.hardware.capacity import KvBudget, Part
from hermes.hardware.descriptions.devices import DeviceDescription
from hermes.hardware.descriptions.engines import EngineDefaults
from hermes.hardware.descriptions.models import ModelDescription, load_model
from hermes.hardware.engine_memory import (
    ALONE,
    NEWEST_RULES,
    Around,
    MemoryRules,
    engine_terms,
    held_beside,
    latent_workspace,
    tiles,
)
from hermes.hardware.info import HardwareInfo
from hermes.hardware.operators import kv_value_bytes
from hermes.memory import BlockPool, PrefixBlockPool
from hermes.memory.eviction import PrefixEviction, Recency

if TYPE_CHECKING:
    from hermes.memory.windows import WindowGroups
    from hermes.schedulers.config import SchedulerOptions

__all__ = ["MemoryConfig", "describe_model", "window_groups"]

UNBOUNDED = 2**20   # tokens of a step from which on a scheduler's limit is none
DEFAULT_BATCHED_TOKENS, DEFAULT_SEQS = 8192, 256   # for schedulers without such a limit
ALIKE = 1.25   # numbers of layers that differ by less make groups of the larger number
DEFAULT_BLOCK_SIZE, DEFAULT_UTILIZATION = 16, 0.9   # for schedulers that follow no engine
MakePool = Callable[..., BlockPool]


def describe_model(model: str, base_dir: Path | None) -> ModelDescription:
    """Return the description of a client's model; `InputError` if there is none."""
    with inside("model"):
        return load_model(model, base_dir)


def window_groups(model: ModelDescription) -> WindowGroups | None:
    """Return the groups of a model; None without windows, and where layers without one make several groups or none."""
    whole, windowed = model.num_layers - model.window_layers, model.window_layers
    if not windowed or not whole:
        return None
    from hermes.memory.windows import WindowGroups

    few, many = sorted((whole, windowed))
    layers = many if many < ALIKE * few else few
    if whole > layers:
        return None
    return WindowGroups(layers, math.ceil(windowed / layers), model.window)


class MemoryConfig(ConfigModel):
    """KV memory of one client: a number of blocks, or the memory that holds them.

    The number is computed as the engine does, for vLLM: num_blocks = floor((devices x (capacity x utilization -
    activations - engine_reserve) - weights) / (block_size x kv_bytes_per_token)); `hermes explain --memory` prints the
    sum. If the capacity comes from a device or a profile, missing terms come from the profile or are estimated. If a
    capacity is given, activations and engine_reserve are 0 unless given too. The run's summary states the source of
    each term.
    """

    block_size: int | None = Field(default=None, ge=1, le=2**20)
    """Tokens per KV block. Left out, the engine's default (vLLM: 16, on a CPU 128)."""
    num_blocks: int | None = Field(default=None, ge=1, le=2**40)
    """KV blocks of the client. Left out, computed from the memory below."""
    capacity: Bytes | None = None
    """Memory of one device. Left out, that of the client's `device`, the hardware model's device, or the profile."""
    utilization: float | None = Field(default=None, gt=0, le=1)
    """Share of the capacity that the engine may use (vLLM's gpu_memory_utilization). Left out, the engine's default."""
    weights: Bytes | None = None
    """Bytes of the model's weights on the whole client. Left out, from the model's description."""
    activations: Bytes | None = None
    """Bytes per device for the peak of activations."""
    engine_reserve: Bytes | None = None
    """Bytes per device that are neither weights, activations nor KV (libraries, communication buffers)."""
    reserved: Bytes = 0
    """Bytes per device reserved for other uses: a buffer, an embedding model. KV blocks are not cut from them."""
    kv_bytes_per_token: float | None = Field(default=None, gt=0, le=2**40)
    """KV bytes of one token over all layers and devices. Left out, from the model's description."""
    weight_bits: float | None = Field(default=None, gt=0, le=64)
    """Bits per weight, if the weights come from the model's description. Left out, the hardware model's precision (16
    if it has none)."""
    kv_bits: float | None = Field(default=None, gt=0, le=64)
    """Bits per KV element, if the KV bytes come from the model's description. Left out, as for `weight_bits`."""
    prefix_caching: bool | None = None
    """Keep full blocks in a prefix cache (chained hashes) after their sequence is done. Left out, as the client's
    `engine` does (vLLM: on); off for schedulers that follow no engine."""
    prefix_start: Literal["empty", "warm"] = "empty"
    """Contents of the prefix cache when the clock starts. `warm`: the shared beginnings of the workloads' prompts
    (`system_tokens` of conversations, `prefixes`, prefix groups of a trace), the most used first, as far as they fit.
    The history of conversations and traces with only block hashes add nothing."""
    prefix_eviction: PrefixEviction = "lru"
    """Eviction order of unused blocks in the prefix cache: least recently used (`lru`, as vLLM), least recency per
    token of the prompt that used them (`tamm`), fewest uses per token, with ageing (`gdsf`), fewest uses (`lfu`), or
    first in, first out (`fifo`)."""
    prefix_recency: Recency = "rank"
    """Meaning of recency in `prefix_eviction: tamm`: the place in the order of last use (`rank`), 1 / accesses since
    the last use (`age`), or the number of the access that was the last use (`counter`)."""

    kv_offload: HostOffloadConfig | None = None
    """Host memory that the engine itself copies KV blocks to (vLLM's OffloadingConnector). Left out, none. The client's
    `tiers` are outside the engine instead."""
    hybrid: bool | None = None
    """Whether layers with a sliding window keep the KV of their window only (vLLM's hybrid KV cache manager). Left out,
    as vLLM does: on, but not where KV moves between clients or tiers; off for schedulers that follow no engine. Off,
    every layer keeps every token."""

    _rules: MemoryRules = PrivateAttr(default=NEWEST_RULES)   # of the engine, set by `completed`

    @model_validator(mode="before")
    @classmethod
    def _not_of_vllm(cls, data: Any) -> Any:   # Any: what the user wrote
        if isinstance(data, dict) and not data.keys() <= cls.model_fields.keys():
            from hermes.schedulers.vllm_fields import refuse_fields_of_vllm

            refuse_fields_of_vllm(cls, "memory", data)
        return data

    def completed(self, defaults: EngineDefaults | None) -> MemoryConfig:
        """Return this with the engine's defaults filled in. None: no engine, and no prefix caching."""
        cached = defaults is not None and defaults.prefix_caching
        off = defaults is None and self.hybrid is None
        filled = self.model_copy(update={
            "hybrid": False if off else self.hybrid,
            "block_size": self.block_size or (DEFAULT_BLOCK_SIZE if defaults is None else defaults.block_size),
            "utilization": self.utilization or (DEFAULT_UTILIZATION if defaults is None else defaults.utilization),
            "prefix_caching": cached if self.prefix_caching is None else self.prefix_caching,
        })
        if defaults is not None:
            filled._rules = defaults.memory
        return filled

    def ruled(self, rules: MemoryRules) -> MemoryConfig:
        """Return this with the sum of another engine."""
        filled = self.model_copy()
        filled._rules = rules
        return filled

    def groups(self, model: str, base_dir: Path | None) -> WindowGroups | None:
        """Return the groups of layers that share the pool's blocks; None if every layer keeps every token."""
        if self.hybrid is False or not model:
            return None
        try:
            return window_groups(describe_model(model, base_dir))
        except InputError:   # a model without a description is fine if blocks are given
            return None

    def pool(self, groups: WindowGroups | None, tokens: int, *, every_step: bool, unhashed_to_front: bool) -> MakePool:
        """Return the constructor of the client's KV memory, of a number of blocks and their tokens.

        Args:
            groups: The model's groups of layers; None if every layer keeps every token.
            tokens: Most tokens of a step; 0 without a limit.
            every_step: Whether to use the literal pool where there is a faster one.
            unhashed_to_front: See `PrefixBlockPool`.
        """
        if not self.prefix_caching:
            return BlockPool if groups is None else _windows(groups, tokens, cached=False)
        if self.kv_offload is not None:
            made = self.kv_offload.pool()
        elif groups is not None:
            made = _windows(groups, tokens, cached=True)
        else:
            made = _EVICTIONS[self.prefix_eviction](self, every_step)
        return partial(made, unhashed_to_front=unhashed_to_front)

    @property
    def tokens_per_block(self) -> int:
        """`block_size` after `completed`."""
        return self.block_size or DEFAULT_BLOCK_SIZE

    def kv_bytes(self, model: str, info: HardwareInfo, base_dir: Path | None) -> float:
        """Return the KV bytes of one token on the whole client."""
        if self.kv_bytes_per_token is not None:
            return self.kv_bytes_per_token
        return float(describe_model(model, base_dir).kv_bytes_per_token(self.value_bytes(info), info.tp))

    def value_bytes(self, info: HardwareInfo) -> float:
        """Return the bytes of one KV element."""
        if self.kv_bits is not None:
            return self.kv_bits / 8
        return kv_value_bytes(info.kv_dtype, info.dtype or "bf16")

    def budget(
        self, model: str, devices: int, info: HardwareInfo, device: DeviceDescription | None,
        scheduler: SchedulerOptions, base_dir: Path | None, around: Around = ALONE,
    ) -> KvBudget:
        """Return the blocks of one client and their sources. Raises `InputError` if memory is missing, in bytes."""
        groups = self.groups(model, base_dir)
        windows = None if groups is None else groups._replace(ahead=_of_step(scheduler)[0])
        share = 1.0 if groups is None else groups.layers / describe_model(model, base_dir).num_layers   # of a block
        if self.num_blocks is not None:
            known = self.kv_bytes_per_token is not None or bool(model)
            per_token = share * self._known_kv_bytes(model, info, base_dir) if known else 0.0
            return KvBudget(self.tokens_per_block, self.num_blocks, per_token, devices, rules=self._rules,
                            windows=windows)
        capacity = self._capacity(info, device)
        estimated = self.capacity is None
        per_token, weights, total = self._kv_and_weights(model, devices, info, base_dir)
        engine, terms = self._engine(model, devices, info, device, scheduler, base_dir, estimated, around)
        found = kv.cut_blocks(
            self.tokens_per_block, share * per_token, devices, self.utilization or DEFAULT_UTILIZATION, capacity,
            weights, self._activations(model, info, scheduler, base_dir, estimated, around), engine, total,
            self._rules, terms)
        return replace(found, windows=windows)

    def _known_kv_bytes(self, model: str, info: HardwareInfo, base_dir: Path | None) -> float:
        try:
            return self.kv_bytes(model, info, base_dir)
        except InputError:   # a model without a description is fine if blocks are given
            return 0.0

    def _capacity(self, info: HardwareInfo, device: DeviceDescription | None) -> Part:
        if self.capacity is not None:
            return Part(self.capacity, "given")
        if device is not None:
            return Part(device.memory, f"device {device.name}")
        if info.memory is not None:
            return Part(info.memory.capacity_bytes, f"profile {info.name}: {info.memory.source}")
        raise InputError(Verbatim("unknown size: give num_blocks, the capacity of a device, or the client's `device`"),
                         field="memory")

    def _kv_and_weights(
        self, model: str, devices: int, info: HardwareInfo, base_dir: Path | None
    ) -> tuple[float, Part, float | None]:
        """Return (KV bytes per token of the client, weights of one device, weights of the client if more exact)."""
        per_token = self.kv_bytes(model, info, base_dir)
        if info.pp > 1 and self.kv_bytes_per_token is None:  # the fullest pipeline stage decides
            shape = describe_model(model, base_dir)
            per_token = devices * kv.stage_kv_bytes_per_token(shape, self.value_bytes(info), info.tp, info.pp)
        if self.weights is not None:
            return per_token, Part(round(self.weights / devices), "given"), self.weights
        if self.capacity is None and info.memory is not None and self.weight_bits is None:
            return per_token, Part(info.memory.weights_bytes, f"profile {info.name}: {info.memory.source}"), None
        shape = describe_model(model, base_dir)
        dtype = info.dtype or shape.dtype or "bf16"
        if self.weight_bits is None:
            return per_token, self._held(shape, dtype, info), None
        bits = self.weight_bits
        total = round((shape.num_params() + shape.vision_params) * bits / 8)
        return per_token, Part(round(total / devices), f"model {shape.name}, {bits:g} bits"), total

    def _activations(
        self, model: str, info: HardwareInfo, scheduler: SchedulerOptions, base_dir: Path | None, estimated: bool,
        around: Around,
    ) -> Part:
        if not self._rules.counts_activations:
            return Part(0, f"in what {self._rules.flag} leaves")
        if self.activations is not None:
            return Part(self.activations, "given")
        if not estimated:
            return Part(0, "not given")
        if info.memory is not None:
            return Part(info.memory.activation_bytes, f"profile {info.name}: {info.memory.source}")
        tokens, seqs = _of_step(scheduler)
        shape, dtype = describe_model(model, base_dir), info.dtype or "bf16"
        return kv.activation_peak(
            shape, self._rules.sampler(shape, dtype), tp=info.tp, dp=info.dp, ep=info.whole_experts, dtype=dtype,
            tokens=tokens, seqs=seqs, latent=latent_workspace(self._rules, shape, around.longest, seqs))

    def _held(self, shape: ModelDescription, dtype: str, info: HardwareInfo) -> Part:
        """Return the weights on one device of the fullest stage, as kernels hold them."""
        size = kv.stage_weight_bytes(shape, dtype, info.tp, info.pp, info.dp)
        device, rules = info.device, self._rules
        used = tiles("" if device is None else device.compute_capability, rules.sums, rules.version,
                     device is None or bool(device.compute_capability))
        more = held_beside(shape, dtype, kv.stage_layers(shape, info.pp), info.tp, info.dp, info.whole_experts, used,
                           rules.sums)
        text = f"model {shape.name}, {dtype}" + (f"; {more.why}" if more.why else "")
        return Part(size + more.bytes, text, round(0.995 * size + 0.6 * more.bytes), round(1.01 * (size + more.bytes)))

    def _engine(
        self, model: str, devices: int, info: HardwareInfo, device: DeviceDescription | None,
        scheduler: SchedulerOptions, base_dir: Path | None, estimated: bool, around: Around,
    ) -> tuple[Part, dict[str, Part]]:
        """Return the engine's own memory plus the memory reserved for other uses, and its terms."""
        terms: dict[str, Part] = {}
        if self.engine_reserve is not None:
            found = Part(self.engine_reserve, "given")
        elif not estimated:
            found = Part(0, "not given")
        elif info.memory is not None and self.activations is None:
            found = Part(0, "part of the profile's activations")
        else:
            shape = describe_model(model, base_dir) if model else None
            layers = 1 if shape is None else kv.stage_layers(shape, info.pp)
            gpu = device is None or device.type == "gpu"
            terms = engine_terms(
                self._rules, shape, dtype=info.dtype or "bf16", tp=info.tp, ranks=info.tp * info.dp,
                machines=around.machines or (1 if device is None else math.ceil(devices * info.dp / device.box)),
                layers=layers, over_pcie=device is not None and device.over_pcie,
                max_num_seqs=_of_step(scheduler)[1], graphs=gpu, cuda=device is None or bool(device.compute_capability),
                around=around)
            found = Part(sum(part.bytes for part in terms.values()), ", ".join(terms))
        if self.reserved:
            terms = (terms or {"engine": found}) | {"reserved": Part(self.reserved, "given")}
            found = Part(found.bytes + self.reserved, f"{found.source}; {self.reserved / 1e9:g} GB reserved")
        return found, terms


def _of_step(scheduler: SchedulerOptions) -> tuple[int, int]:
    """Return the tokens and sequences of the largest step."""
    tokens = scheduler.max_num_batched_tokens or UNBOUNDED
    tokens = tokens if tokens < UNBOUNDED else DEFAULT_BATCHED_TOKENS
    return tokens, scheduler.max_num_seqs or DEFAULT_SEQS


def _windows(groups: WindowGroups, tokens: int, *, cached: bool) -> MakePool:
    from hermes.memory.windows import WindowPool, WindowPrefixPool

    return partial(WindowPrefixPool if cached else WindowPool, groups=groups._replace(ahead=tokens))


def _lru(memory: MemoryConfig, every_step: bool) -> MakePool:
    if not every_step:
        return PrefixBlockPool
    from hermes.memory.reference import ReferencePrefixPool

    return ReferencePrefixPool


def _tamm(memory: MemoryConfig, every_step: bool) -> MakePool:
    from hermes.memory.prefix_eviction import TammPrefixPool

    return partial(TammPrefixPool, recency=memory.prefix_recency)


def _ranked(memory: MemoryConfig, every_step: bool) -> MakePool:
    from hermes.memory.prefix_eviction import RankedPrefixPool

    assert memory.prefix_eviction in ("gdsf", "lfu", "fifo")
    return partial(RankedPrefixPool, policy=memory.prefix_eviction)


_EVICTIONS: dict[str, Callable[[MemoryConfig, bool], MakePool]] = {
    "lru": _lru, "tamm": _tamm, "gdsf": _ranked, "lfu": _ranked, "fifo": _ranked}
"""Pools with a prefix cache, by its order of eviction."""
