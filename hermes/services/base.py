"""Services: the work of a batch of stages of one kind on one machine.

Services are the extension point of clients without an LLM engine: embedding, retrieval, reranking, tokenizing,
filtering. A service's configuration is a component (`kind:` in YAML); `build(machine)` returns a `Service` for a
machine. This module has the general ones, a model's prefill and times per item; other modules of `hermes.services` have
those of retrieval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import numpy as np
from pydantic import Field

from hermes.config import Component, ConfigModel, Duration
from hermes.config.registry import Registry
from hermes.core.stage import ServiceStage, check_count
from hermes.errors import InputError, Verbatim, inside
from hermes.hardware import HARDWARE, StepStats
from hermes.hardware.base import STEP_STATS
from hermes.hardware.descriptions.devices import MachineSpec, load_device
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.info import hardware_info
from hermes.sums import float_sum
from hermes.units import NS_PER_S

__all__ = [
    "SERVICES", "Encoder", "EncoderService", "MachineSpec", "PerItem", "PhaseCost", "Service", "Work",
    "check_memory", "count_option", "is_outside",
    "service_options",
]

SERVICES: Registry[Any] = Registry("services", "a service", {
    "hnsw": "hermes.services.hnsw:Hnsw",
    "hybrid": "hermes.services.hybrid:Hybrid",
    "ivf_flat": "hermes.services.ivf_flat:IvfFlat",
    "ivf_pq": "hermes.services.ivf_pq:IvfPq",
    "measured": "hermes.services.measured:Measured",
    "remote_model": "hermes.services.remote_model:RemoteModel",
    "rerank": "hermes.services.rerank:Rerank",
})


def service_options(service: Service) -> Mapping[str, int | None]:
    """Return the options that a service reads of a stage, with the least integer each may be (None: any value)."""
    found: Mapping[str, int | None] = getattr(service, "options", {})
    return found


def is_outside(service: Service, tasks: list[ServiceStage]) -> bool:
    """Whether a batch lies outside the range that a service's costs were measured on, for a service that knows it."""
    outside: Callable[[list[ServiceStage]], bool] | None = getattr(service, "outside", None)
    return outside is not None and outside(tasks)


class Work(NamedTuple):
    """Work of a batch: the seconds it takes alone, and the shares of cores and of bandwidth that it uses (0..1).

    compute_s, memory_s: Seconds of its arithmetic and its memory traffic at the machine's peak rates, for utilisation
    and power. Zero if a service counts neither flops nor bytes.
    """

    alone_s: float
    cores: float = 0.0
    bandwidth: float = 0.0
    compute_s: float = 0.0
    memory_s: float = 0.0


class PhaseCost(NamedTuple):
    """One phase of a batch, for reports: total flops and bytes, seconds, and the limiting resource."""

    name: str
    flops: float
    num_bytes: float
    seconds: float
    bound: str


class Service(Protocol):
    """Costs of one kind of stage on one machine; no state that changes an answer."""

    memory_bytes: int
    """Bytes that it always keeps in memory (index, weights)."""

    def work(self, tasks: Sequence[ServiceStage]) -> Work:
        """Return the work of this batch of at least one task; `InputError` for wrong options."""
        ...

    # A service may also have `costs(tasks) -> list[PhaseCost]`, the phases that `work` adds up, and
    # `outside(tasks) -> list[str]`, the features in which a batch leaves the measured range of its costs: both for
    # reports; and `options`, the options of a stage that it reads: name -> the least integer, None for any value. A
    # graph that gives a stage others is refused; `top_k`, the number of results, is always allowed.


def count_option(task: ServiceStage, name: str, default: int, least: int = 1) -> int:
    """Return a stage's option that counts something (`nprobe`, `top_k`), or the default; `InputError` otherwise."""
    return check_count(name, task.options.get(name, default), least)


def check_memory(what: str, needed: int, machine: MachineSpec, field: str) -> None:
    """Raise `InputError` that states the missing bytes if `needed` bytes do not fit. A machine without a device has no
    limit."""
    if machine.memory_bytes and needed > machine.memory_bytes:
        missing = needed - machine.memory_bytes
        raise InputError(
            Verbatim(f"{what} of {needed / 1e9:,.0f} GB does not fit in {machine.memory_bytes / 1e9:,.0f} GB: "
                     f"{missing / 1e9:,.0f} GB are missing; take a machine with more memory"), field=field,
        )


@SERVICES.register("per_item")
class PerItem(ConfigModel):
    """A time per batch, per item and per token; each item keeps one core busy."""

    kind: Literal["per_item"] = "per_item"
    fixed: Duration = 0.0
    """Time per batch, regardless of its size."""
    per_item: Duration = 0.0
    """Time of one core per item (query, document)."""
    per_token: Duration = 0.0
    """Time of one core per token read."""
    memory: int = 0
    """Bytes it keeps in memory."""

    def build(self, machine: MachineSpec, base_dir: Path | None = None) -> _PerItem:
        return _PerItem(self, machine)


class _PerItem:
    def __init__(self, config: PerItem, machine: MachineSpec) -> None:
        self.config, self.cores = config, machine.cores
        self.memory_bytes = config.memory

    def work(self, tasks: Sequence[ServiceStage]) -> Work:
        config = self.config
        each = [task.items * config.per_item + task.tokens * config.per_token for task in tasks]
        pieces = [cost / max(1, task.items) for cost, task in zip(each, tasks, strict=True)]
        busy = min(self.cores, sum(max(1, task.items) for task in tasks))
        # longest first over the cores is within a third of the optimum; no order is below the bound that follows
        seconds = max(max(pieces), float_sum(each) / busy)
        alone = config.fixed + seconds
        return Work(alone, cores=(float_sum(each) / self.cores / alone) if alone > 0 else 0.0)

    def costs(self, tasks: Sequence[ServiceStage]) -> list[PhaseCost]:
        """Return one phase, with unknown flops and bytes."""
        return [PhaseCost("items", 0.0, 0.0, self.work(tasks).alone_s, "given")]


@SERVICES.register("encoder")
class Encoder(ConfigModel):
    """A model that reads tokens and emits none (embedding, reranking, filtering): one prefill of the whole batch."""

    kind: Literal["encoder"] = "encoder"
    hardware: Annotated[Any, Component(HARDWARE)]
    """Hardware model of the prefill, on the client's device."""
    model: Annotated[str, Field(max_length=4096)] = ""
    """Model whose weights are in memory, if the hardware model does not state it (a fitted profile)."""
    max_tokens: Annotated[int, Field(ge=1, le=2**31)] = 512
    """Most tokens of one sequence; longer texts are read in pieces."""

    def build(self, machine: MachineSpec, base_dir: Path | None = None) -> EncoderService:
        """Build the service; `InputError` if the hardware has another device, or the weights do not fit."""
        with inside("hardware"):
            hardware = self.hardware.build(base_dir)
        return EncoderService(hardware, machine, self.max_tokens, self.model, base_dir)


class EncoderService:
    """Prefills of a model. A task's tokens are split evenly over its items, each a sequence (as a query and a document
    to rerank). A sequence longer than `max_tokens` is read in pieces."""

    def __init__(
        self, hardware: Any, machine: MachineSpec, max_tokens: int, model: str = "", base_dir: Path | None = None,
    ) -> None:
        self.hardware, self.machine, self.max_tokens = hardware, machine, max_tokens
        self.info = info = hardware_info(hardware)
        if info.device is not None and machine.device is not None and info.device.name != machine.device.name:
            raise InputError(
                Verbatim(f"{info.device.name} is not the client's device ({machine.device.name}); write that one, or "
                         "put the model on another client"), field="hardware.device",
            )
        described = model or getattr(hardware, "model", None)   # its description, or its name
        if isinstance(described, str):
            with inside("model"):
                described = load_model(described, base_dir)
        if described is not None:
            self.memory_bytes = described.weight_bytes(info.dtype or "bf16", info.tp)
        else:   # from the profile, if it states them
            self.memory_bytes = 0 if info.memory is None else info.memory.weights_bytes
        check_memory("a model", self.memory_bytes, machine, "hardware")
        self._known = lru_cache(maxsize=4096)(self._prefill)   # lengths of texts recur

    def sequences(self, tasks: Sequence[ServiceStage]) -> list[int]:
        """Return the tokens of every sequence of a batch."""
        lengths: list[int] = []
        for task in tasks:
            items = max(1, task.items)
            each, longer = divmod(max(items, task.tokens), items)
            for tokens, count in ((each + 1, longer), (each, items - longer)):
                if count and tokens:
                    pieces = [self.max_tokens] * (tokens // self.max_tokens)
                    rest = tokens % self.max_tokens
                    lengths += ([*pieces, rest] if rest else pieces) * count
        return lengths

    @staticmethod
    def _sums(lengths: Sequence[int]) -> tuple[int, int, int]:
        """Return (sequences, tokens, attention pairs) of sequences of these lengths, for `StepStats`."""
        return len(lengths), sum(lengths), sum(n * (n + 1) // 2 for n in lengths)

    @staticmethod
    def _stats(seqs: int, tokens: int, attn: int) -> StepStats:
        return StepStats(prefill_seqs=seqs, prefill_tokens=tokens, prefill_attn=attn)

    def prefill(self, lengths: Sequence[int]) -> Work:
        """Return the work of one prefill. On its device it uses all cores, and the bandwidth it needs."""
        return self._known(*self._sums(lengths))

    def _prefill(self, seqs: int, tokens: int, attn: int) -> Work:
        stats = self._stats(seqs, tokens, attn)
        seconds = self.hardware.step_ns(stats) / NS_PER_S
        work, device = self.info.work, self.info.device
        if work is None or device is None:
            return Work(seconds, cores=1.0, bandwidth=1.0)   # its use of the machine is unknown
        compute_s, memory_s, _ = work.ideal_s(stats, device.peak, device.memory_bandwidth, device.link_bandwidth)
        return Work(seconds, 1.0, min(1.0, memory_s / seconds), compute_s, memory_s)

    def work(self, tasks: Sequence[ServiceStage]) -> Work:
        return self.prefill(self.sequences(tasks))

    def outside(self, tasks: Sequence[ServiceStage]) -> list[str]:
        """Return ["prefill"] if a batch leaves the hardware model's measured range; analytical models have none."""
        if self.info.work is not None:
            return []
        stats = self._stats(*self._sums(self.sequences(tasks)))
        columns = {name: np.array([getattr(stats, name)], dtype=np.int64) for name in STEP_STATS}
        return ["prefill"] if self.hardware.out_of_range(columns, np.ones(1, dtype=np.int64))[0] else []

    def costs(self, tasks: Sequence[ServiceStage]) -> list[PhaseCost]:
        """Return the prefill as one phase; flops and bytes are zero if the hardware model counts none."""
        found, device = self.work(tasks), self.info.device
        flops = num_bytes = 0.0
        if device is not None and self.info.work is not None:
            flops = found.compute_s * device.peak(self.info.work.compute) * self.info.tp
            num_bytes = found.memory_s * device.memory_bandwidth * self.info.tp
        bound = "arithmetic" if found.compute_s >= found.memory_s else "memory bandwidth"
        return [PhaseCost("prefill", flops, num_bytes, found.alone_s, bound if num_bytes else "-")]


def machine_of(device: str | None, cores: int, base_dir: Path | None) -> MachineSpec:
    """Return the machine of a client that names a device, or only a number of cores."""
    if device is None:
        return MachineSpec(cores, 0.0, 0.0, 0)
    with inside("device"):
        found = load_device(device, base_dir)
    return MachineSpec(cores, found.peak("fp32"), found.memory_bandwidth, int(found.memory), found)
