"""Engine descriptions (`hw_profiles/engines`): the scheduling rules of a version, and its defaults by device.

A client names an engine (`engine: vllm-0.32`). Options of `scheduler` and `memory` that the scenario leaves out take
the values that this version chooses on the client's device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from hermes.config import Bytes, ConfigModel, Duration
from hermes.config.validation import load
from hermes.errors import InputError
from hermes.hardware.descriptions.devices import DeviceDescription
from hermes.hardware.descriptions.files import find, names_in
from hermes.hardware.engine_memory import NEWEST_RULES, MemoryRules, memory_rules
from hermes.hardware.info import HardwareInfo

__all__ = [
    "NEWEST_ENGINE", "DeviceClass", "EngineDefaults", "EngineDescription", "Forms", "ReduceRules", "Rules", "StepTime",
    "device_class", "engine_name", "load_engine", "reduce_rules", "vllm_engines",
]

NEWEST_ENGINE = "vllm-0.33"
"""The engine of clients that do not name one."""

_CPU = re.compile(r"\b(cpu|epyc|xeon|ryzen|threadripper|graviton|neoverse)\b", re.IGNORECASE)

Rules = Literal["0.19.0", "0.24.0", "0.28.0", "0.32.0", "0.33.0"]
"""Versions whose source the rules of the `chunked` scheduler follow; others have those of one of them."""
Count = Annotated[int, Field(ge=1, le=2**31)]
Limits = dict[Annotated[str, Field(pattern=r"^\d+\.\d$")], dict[Annotated[str, Field(pattern=r"^\d+$")], Bytes]]

NAMES = {"custom": "vLLM's kernel", "symmetric": "symmetric memory", "nccl": "NCCL"}
PAIR = 2            # devices that vLLM's kernel joins over PCIe


@dataclass(frozen=True)
class DeviceClass:
    """Properties of a device from which an engine chooses its defaults."""

    name: str = ""
    memory_bytes: int | None = None   # of one device; None if unknown
    is_cpu: bool = False
    num_devices: int = 1
    compute_capability: str = ""


@dataclass(frozen=True)
class EngineDefaults:
    """The values of one engine version on one class of device."""

    rules: Rules
    max_num_batched_tokens: int
    max_num_seqs: int
    async_scheduling: bool
    prefix_caching: bool
    block_size: int
    utilization: float
    reserve_full_isl: bool = True
    version: str = ""
    memory: MemoryRules = NEWEST_RULES


class EngineClass(ConfigModel):
    """Defaults on one class of devices."""

    devices: Literal["gpu", "cpu"]
    memory_at_least: Bytes | None = None
    """Smallest memory of one device for this class."""
    not_named: str = ""
    """Text that excludes a device from the class if its name contains it."""
    not_capability: str = ""
    """Compute capability that excludes a device from the class."""
    max_num_batched_tokens: Count
    max_num_seqs: Count
    per_device: bool = False
    """Multiply both counts by the number of devices."""
    block_size: Count | None = None
    async_scheduling: bool | None = None

    def holds(self, device: DeviceClass) -> bool:
        """Whether the device is in this class; with unknown memory, whether the class has no `memory_at_least`."""
        if (self.devices == "cpu") != device.is_cpu:
            return False
        if self.memory_at_least is not None and (device.memory_bytes or 0) < self.memory_at_least:
            return False
        if self.not_capability and self.not_capability == device.compute_capability:
            return False
        return not self.not_named or self.not_named not in device.name.lower()


class StepTime(ConfigModel):
    """The engine's own time of each step, whatever the model and the card."""

    exposed: Duration = 0.0
    """Waited for in every step, also with asynchronous scheduling: input tensors, graph launch, sampling kernels."""
    exposed_per_seq: Duration = 0.0
    """The same for each sampled row."""
    uncaptured: Duration = 0.0
    """Waited for, too, in steps of more tokens than the largest captured one, whose kernels the host launches."""
    host: Duration = 0.0
    """Scheduling and output processing: hidden behind the device with asynchronous scheduling, added without."""
    host_per_seq: Duration = 0.0
    idle: Duration = 0.0
    """First step of an engine that had nothing to do: nothing was prepared beside an earlier step. Asynchronous
    scheduling only; else every step waits for the host."""
    largest_graph: Annotated[int, Field(ge=0, le=2**20)] = 512
    """Tokens of the largest captured step; decode batches up to it are padded to a captured size."""
    source: str = ""
    """How the times were found, and on what."""


class RequestTime(ConfigModel):
    """Time of each request in the API server, beside the engine."""

    before: Duration = 0.0
    after: Duration = 0.0
    per_request: Duration = 0.0
    """Of one server's event loop for a request; what limits it, as the next two."""
    per_token: Duration = 0.0
    """For a token."""
    per_chunk: Duration = 0.0
    """For what is sent to a user at a time."""
    spread: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2, max_length=2)] = [1.0, 1.0]
    """Lowest and highest of these on other hosts, as factors."""


class Forms(NamedTuple):
    """Sizes in bytes up to which each form is launched: the engine's kernel below `custom`, symmetric memory up to
    `symmetric`, NCCL beyond both; 0 for a form that is not."""

    custom: float = 0.0
    symmetric: float = 0.0

    def of(self, size: float) -> str:
        """Return the form of a size."""
        return "custom" if size < self.custom else "symmetric" if size <= self.symmetric else "nccl"

    def text(self) -> str:
        """In words, as `vLLM's kernel below 256 KiB, symmetric memory up to 64 MiB, NCCL above`."""
        parts = [f"{NAMES['custom']} below {_size(self.custom)}"] if self.custom else []
        parts += [f"{NAMES['symmetric']} up to {_size(self.symmetric)}"] if self.symmetric > self.custom else []
        return ", ".join([*parts, "NCCL above" if parts else "NCCL"])


class ReduceRules(ConfigModel):
    """Which all-reduce an engine's version launches, by compute capability and number of devices."""

    custom_below: Bytes
    """Most bytes of its own kernel on any card, exclusive; on cards of `custom` the lesser of both."""
    custom: Limits = Field(default_factory=dict)
    """The same by compute capability, where symmetric memory takes larger ones."""
    symmetric: Limits = Field(default_factory=dict)
    """Most bytes of symmetric memory, inclusive; cards of no entry have none."""
    devices: list[Annotated[int, Field(ge=2, le=64)]]
    """Numbers of devices that its own kernel is made for."""

    def forms(self, device: DeviceDescription, ranks: int) -> Forms:
        """Return the forms among devices of one box that all reach each other over NVLink; two may do so over PCIe."""
        capability = device.compute_capability
        if not capability or (device.over_pcie and (ranks > PAIR or not device.peers_over_pcie)):
            return Forms()
        limit = min(self.custom.get(capability, {}).get(str(ranks), self.custom_below), self.custom_below)
        return Forms(float(limit) if ranks in self.devices else 0.0,
                     0.0 if device.over_pcie else float(self.symmetric.get(capability, {}).get(str(ranks), 0)))


class EngineDescription(ConfigModel):
    """A file of `hw_profiles/engines`."""

    format: Literal["hermes-engine/1"]
    name: str
    version: str
    """The exact version whose source and recordings the file follows."""
    stands_in: str = ""
    """Engine whose scheduling rules and host times the file has, where those of its own engine are not recorded."""
    rules: Rules
    """The rules of the `chunked` scheduler."""
    kernels: Literal["", "sglang", "trtllm"] = ""
    """Engine whose kernel tables give the times of its kernels, where that is another than vLLM."""
    block_size: Count
    utilization: Annotated[float, Field(gt=0, le=1)]
    prefix_caching: bool
    async_scheduling: bool
    reserve_full_isl: bool = True
    """Whether a sequence is admitted only if its whole prompt fits, not just its first chunk."""
    classes: Annotated[list[EngineClass], Field(min_length=1)]
    """Defaults by device; the first class that a device is in applies."""
    all_reduce: ReduceRules | None = None
    """Which all-reduce it launches for which sizes."""
    step: StepTime = StepTime()
    """The engine's own time of each step."""
    frontend: RequestTime = RequestTime()
    """The API server's time of each request."""
    sources: list[str]

    @property
    def memory_rules(self) -> MemoryRules:
        """How it finds the memory for KV."""
        return memory_rules(self.name, self.version)

    def defaults(self, device: DeviceClass) -> EngineDefaults:
        """Return the defaults of this version on a device."""
        chosen = next((c for c in self.classes if c.holds(device)), self.classes[-1])
        times = device.num_devices if chosen.per_device else 1
        return EngineDefaults(
            self.rules, chosen.max_num_batched_tokens * times, chosen.max_num_seqs * times,
            self.async_scheduling if chosen.async_scheduling is None else chosen.async_scheduling,
            self.prefix_caching, chosen.block_size or self.block_size, self.utilization,
            self.reserve_full_isl, self.version, self.memory_rules,
        )


def vllm_engines() -> list[str]:
    """Return the names of the supported versions of vLLM, sorted."""
    return [name for name in names_in("engines") if name.startswith("vllm-")]


def engine_name(text: str) -> str:
    """Return the name of a supported engine from a user's spelling: `vllm-0.32`, `vllm-0.32.0`. Raises `InputError`."""
    names = names_in("engines")
    short = re.sub(r"^([a-z]+-\d+\.\d+)\.\d+$", r"\1", text)
    if short in names:
        return short
    raise InputError(f"an engine whose rules are known: {', '.join(names)}", text, suggestion=_nearest(short))


def _nearest(text: str) -> str | None:
    """Return the supported version of the same engine (vLLM where none is named) nearest to the one asked for."""
    wanted = re.fullmatch(r"(?:([a-z]+)-)?v?([0-9]+)\.([0-9]+)(?:\.[0-9]+)?", text)
    if wanted is None:
        return NEWEST_ENGINE if text.startswith("vllm") else None
    family = f"{wanted[1] or 'vllm'}-"

    def distance(name: str) -> tuple[int, int]:
        major, minor = map(int, name.removeprefix(family).split("."))
        return abs(major - int(wanted[2])), abs(minor - int(wanted[3]))

    return min((name for name in names_in("engines") if name.startswith(family)), key=distance, default=None)


def load_engine(name: str) -> EngineDescription:
    """Load the description of a supported engine; `InputError` names the supported ones."""
    return load(EngineDescription, find(engine_name(name), None, "engines", "an engine"))


def reduce_rules(text: str) -> ReduceRules | None:
    """Return which all-reduces an engine launches, by its name (`vllm-0.32`) or a kernel table's (`vllm 0.24.0`); those
    of the nearest version for one that has no file, None for another engine."""
    short = re.sub(r"^(vllm)[ -](\d+\.\d+)(\.\d+)?$", r"\1-\2", text.strip())
    if not short.startswith("vllm-"):
        return None
    name = short if short in vllm_engines() else _nearest(short)
    return None if name is None else load_engine(name).all_reduce


def device_class(
    device: DeviceDescription | None, info: HardwareInfo, capacity: int | None, num_devices: int
) -> DeviceClass:
    """Return the class of a client's device, from its description, the profile's figures, or else a capacity."""
    if device is not None:
        return DeviceClass(device.name, device.memory, device.type == "cpu", num_devices, device.compute_capability)
    memory = capacity if info.memory is None else info.memory.capacity_bytes
    return DeviceClass(info.hardware, memory, bool(_CPU.search(info.hardware)), num_devices)


def _size(number: float) -> str:
    return f"{number / 2**20:g} MiB" if number >= 2**20 else f"{number / 2**10:g} KiB"
