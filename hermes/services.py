"""What a service costs: the work of a batch of stages of one kind on one machine.

Services are the extension point of clients that are no LLM engines: embedding, retrieval, reranking, tokenizing,
filtering. A service's configuration is a component (`kind:` in YAML); `build(machine)` gives a `Service` for a machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from pydantic import Field

from hermes.config import Component, ConfigModel, Duration
from hermes.errors import inside
from hermes.hardware import HARDWARE, StepStats
from hermes.hardware.devices import DeviceDescription, load_device
from hermes.registry import Registry
from hermes.stages import Stage
from hermes.units import NS_PER_S

__all__ = ["SERVICES", "Encoder", "MachineSpec", "PerItem", "Service", "Work"]

SERVICES: Registry[Any] = Registry("services", "a service")


class Work(NamedTuple):
    """What a batch needs: seconds it takes alone, and the shares of cores and of bandwidth it uses meanwhile (0..1)."""

    alone_s: float
    cores: float = 0.0
    bandwidth: float = 0.0


class MachineSpec(NamedTuple):
    """The machine a client runs on: cores, FLOP/s of all of them, bytes/s and bytes of memory."""

    cores: int
    flops: float
    memory_bandwidth: float
    memory_bytes: int
    device: DeviceDescription | None = None


class Service(Protocol):
    """Costs of one kind of stage on one machine; no state that changes an answer."""

    memory_bytes: int
    """What it keeps in memory all the time (index, weights)."""

    def work(self, tasks: Sequence[Stage]) -> Work:
        """What this batch takes."""
        ...


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

    def work(self, tasks: Sequence[Stage]) -> Work:
        config = self.config
        each = [task.items * config.per_item + task.tokens * config.per_token for task in tasks]
        busy = min(self.cores, len(tasks))
        # longest first over the cores is within a third of the best; the bound below is what no order can beat
        seconds = max(max(each), sum(each) / busy)
        alone = config.fixed + seconds
        return Work(alone, cores=(sum(each) / self.cores / alone) if alone > 0 else 0.0)


@SERVICES.register("encoder")
class Encoder(ConfigModel):
    """A model that reads tokens and writes none (embedding, reranking, filtering): one prefill of the whole batch."""

    kind: Literal["encoder"] = "encoder"
    hardware: Annotated[Any, Component(HARDWARE)]
    """How long the prefill takes."""
    max_tokens: Annotated[int, Field(ge=1, le=2**31)] = 512
    """Tokens of one sequence at most; longer texts are read in pieces."""

    def build(self, machine: MachineSpec, base_dir: Path | None = None) -> _Encoder:
        with inside("hardware"):
            return _Encoder(self, self.hardware.build(base_dir))


class _Encoder:
    memory_bytes = 0

    def __init__(self, config: Encoder, hardware: Any) -> None:
        self.hardware, self.max_tokens = hardware, config.max_tokens

    def work(self, tasks: Sequence[Stage]) -> Work:
        stats = StepStats()
        for task in tasks:
            left = max(1, task.tokens)
            while left > 0:
                n = min(left, self.max_tokens)
                stats.prefill_seqs += 1
                stats.prefill_tokens += n
                stats.prefill_attn += n * (n + 1) // 2
                left -= n
        stats.sampled = 0
        return Work(self.hardware.step_ns(stats) / NS_PER_S, cores=1.0, bandwidth=1.0)


def machine_of(device: str | None, cores: int, base_dir: Path | None) -> MachineSpec:
    """The machine of a client that names a device, or only a number of cores."""
    if device is None:
        return MachineSpec(cores, 0.0, 0.0, 0)
    with inside("device"):
        found = load_device(device, base_dir)
    return MachineSpec(cores, found.peak("fp32"), found.memory_bandwidth, int(found.memory), found)
