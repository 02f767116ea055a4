"""What a service costs: the work of a batch of stages of one kind on one machine.

Services are the extension point of clients that are no LLM engines: embedding, retrieval, reranking, tokenizing,
filtering. A service's configuration is a component (`kind:` in YAML); `build(machine)` gives a `Service` for a machine.
Here are the general ones, a model's prefill and times per item; `hermes.services` has those of retrieval.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from hermes.hardware.devices import MachineSpec, load_device
from hermes.hardware.facts import facts_of
from hermes.hardware.models import load_model
from hermes.units import NS_PER_S

__all__ = [
    "SERVICES", "Encoder", "EncoderService", "MachineSpec", "PerItem", "PhaseCost", "Service", "Work",
    "check_memory", "count_option",
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


class Work(NamedTuple):
    """What a batch needs: seconds it takes alone, and the shares of cores and of bandwidth it uses meanwhile (0..1).

    compute_s, memory_s: seconds that its arithmetic and its memory traffic would take at the machine's peak rates; from
    these follow utilisation and watts. Zero where a service counts neither flops nor bytes.
    """

    alone_s: float
    cores: float = 0.0
    bandwidth: float = 0.0
    compute_s: float = 0.0
    memory_s: float = 0.0


class PhaseCost(NamedTuple):
    """One phase of a batch, for reports: flops and bytes of all of it, seconds, and what bounds them."""

    name: str
    flops: float
    num_bytes: float
    seconds: float
    bound: str


class Service(Protocol):
    """Costs of one kind of stage on one machine; no state that changes an answer."""

    memory_bytes: int
    """What it keeps in memory all the time (index, weights)."""

    def work(self, tasks: Sequence[ServiceStage]) -> Work:
        """What this batch takes. Called with one task at least; `InputError` for options that are none."""
        ...

    # A service may also have `costs(tasks) -> list[PhaseCost]`, the phases that `work` adds up, and
    # `outside(tasks) -> list[str]`, in what a batch leaves the range that its costs were measured on: both for reports;
    # and `options`, what it reads of a stage's options: name -> the least integer each may be, None for any value.
    # A graph that gives a stage others is refused; `top_k`, how many come back, may always stand there.


def count_option(task: ServiceStage, name: str, default: int, least: int = 1) -> int:
    """A stage's option that counts something (`nprobe`, `top_k`), or the default; `InputError` for anything else."""
    return check_count(name, task.options.get(name, default), least)


def check_memory(what: str, needed: int, machine: MachineSpec, field: str) -> None:
    """Raise `InputError` that says how much is missing where `needed` bytes do not fit; a machine without a device has
    no size to compare with."""
    if machine.memory_bytes and needed > machine.memory_bytes:
        missing = needed - machine.memory_bytes
        raise InputError(
            f"{what} that fits in {machine.memory_bytes / 1e9:,.0f} GB",
            Verbatim(f"{needed / 1e9:,.0f} GB, {missing / 1e9:,.0f} GB too much"), field=field,
        )


@SERVICES.register("per_item")
class PerItem(ConfigModel):
    """A time per batch, per item and per token; each item keeps one core busy."""

    kind: Literal["per_item"] = "per_item"
    fixed: Duration = 0.0
    """Time per batch, whatever is in it."""
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
        # longest first over the cores is within a third of the best; the bound below is what no order can beat
        seconds = max(max(pieces), sum(each) / busy)
        alone = config.fixed + seconds
        return Work(alone, cores=(sum(each) / self.cores / alone) if alone > 0 else 0.0)

    def costs(self, tasks: Sequence[ServiceStage]) -> list[PhaseCost]:
        """One phase; neither flops nor bytes are known."""
        return [PhaseCost("items", 0.0, 0.0, self.work(tasks).alone_s, "given")]


@SERVICES.register("encoder")
class Encoder(ConfigModel):
    """A model that reads tokens and writes none (embedding, reranking, filtering): one prefill of the whole batch."""

    kind: Literal["encoder"] = "encoder"
    hardware: Annotated[Any, Component(HARDWARE)]
    """How long the prefill takes: any hardware model, on the client's device."""
    model: Annotated[str, Field(max_length=4096)] = ""
    """The model whose weights lie in memory, where the hardware model does not say (a fitted profile)."""
    max_tokens: Annotated[int, Field(ge=1, le=2**31)] = 512
    """Tokens of one sequence at most; longer texts are read in pieces."""

    def build(self, machine: MachineSpec, base_dir: Path | None = None) -> EncoderService:
        """The service on a machine; `InputError` where the hardware is another device's, or the weights do not fit."""
        with inside("hardware"):
            hardware = self.hardware.build(base_dir)
        return EncoderService(hardware, machine, self.max_tokens, self.model, base_dir)


class EncoderService:
    """Prefills of a model. A task's tokens are split evenly over its items, each a sequence of its own (a query and a
    document that are reranked); a sequence longer than `max_tokens` is read in pieces."""

    def __init__(
        self, hardware: Any, machine: MachineSpec, max_tokens: int, model: str = "", base_dir: Path | None = None,
    ) -> None:
        self.hardware, self.machine, self.max_tokens = hardware, machine, max_tokens
        self.facts = facts = facts_of(hardware)
        if facts.device is not None and machine.device is not None and facts.device.name != machine.device.name:
            raise InputError(
                f"a model on the client's own device ({machine.device.name}); another device is another client",
                facts.device.name, field="hardware.device",
            )
        described = getattr(hardware, "model", None)
        if model:
            with inside("model"):
                described = load_model(model, base_dir)
        if described is not None:
            self.memory_bytes = described.weight_bytes(facts.dtype or "bf16", facts.tp)
        else:   # what the profile says, if it says anything
            self.memory_bytes = 0 if facts.memory is None else facts.memory.weights_bytes
        check_memory("a model", self.memory_bytes, machine, "hardware")
        self._known = lru_cache(maxsize=4096)(self._prefill)   # texts of a length come again

    def sequences(self, tasks: Sequence[ServiceStage]) -> list[int]:
        """Tokens of every sequence of a batch."""
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
        """What `StepStats` knows of sequences of these lengths: how many, their tokens, pairs that attend."""
        return len(lengths), sum(lengths), sum(n * (n + 1) // 2 for n in lengths)

    @staticmethod
    def _stats(seqs: int, tokens: int, attn: int) -> StepStats:
        return StepStats(prefill_seqs=seqs, prefill_tokens=tokens, prefill_attn=attn)

    def prefill(self, lengths: Sequence[int]) -> Work:
        """One prefill of sequences of these lengths. On its device it uses all cores, and the bandwidth it needs."""
        return self._known(*self._sums(lengths))

    def _prefill(self, seqs: int, tokens: int, attn: int) -> Work:
        stats = self._stats(seqs, tokens, attn)
        seconds = self.hardware.step_ns(stats) / NS_PER_S
        work, device = self.facts.work, self.facts.device
        if work is None or device is None:
            return Work(seconds, cores=1.0, bandwidth=1.0)   # nothing is known of what it leaves to others
        compute_s, memory_s, _ = work.ideal_s(stats, device.peak, device.memory_bandwidth, device.link_bandwidth)
        return Work(seconds, 1.0, min(1.0, memory_s / seconds), compute_s, memory_s)

    def work(self, tasks: Sequence[ServiceStage]) -> Work:
        return self.prefill(self.sequences(tasks))

    def outside(self, tasks: Sequence[ServiceStage]) -> list[str]:
        """Whether a batch leaves the range that the hardware model was measured on; analytical ones have none."""
        if self.facts.work is not None:
            return []
        stats = self._stats(*self._sums(self.sequences(tasks)))
        columns = {name: np.array([getattr(stats, name)], dtype=np.int64) for name in StepStats.__slots__}
        return ["prefill"] if self.hardware.out_of_range(columns, np.ones(1, dtype=np.int64))[0] else []

    def costs(self, tasks: Sequence[ServiceStage]) -> list[PhaseCost]:
        """The prefill as one phase; flops and bytes are zero where the hardware model counts none."""
        found, device = self.work(tasks), self.facts.device
        flops = num_bytes = 0.0
        if device is not None and self.facts.work is not None:
            flops = found.compute_s * device.peak(self.facts.work.compute) * self.facts.tp
            num_bytes = found.memory_s * device.memory_bandwidth * self.facts.tp
        bound = "arithmetic" if found.compute_s >= found.memory_s else "memory bandwidth"
        return [PhaseCost("prefill", flops, num_bytes, found.alone_s, bound if num_bytes else "-")]


def machine_of(device: str | None, cores: int, base_dir: Path | None) -> MachineSpec:
    """The machine of a client that names a device, or only a number of cores."""
    if device is None:
        return MachineSpec(cores, 0.0, 0.0, 0)
    with inside("device"):
        found = load_device(device, base_dir)
    return MachineSpec(cores, found.peak("fp32"), found.memory_bandwidth, int(found.memory), found)
