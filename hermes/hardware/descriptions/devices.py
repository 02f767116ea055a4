"""Descriptions of devices: peak arithmetic, memory, links, power and price, from their data sheets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from hermes.config import Bandwidth, Bytes, ConfigModel, Duration, Name
from hermes.config.validation import load
from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.files import find, names_in

__all__ = [
    "Cache", "Clocks", "DeviceDescription", "DevicePower", "MachineSpec", "Pcie", "Rates", "device_named_in",
    "load_device",
]

SLOWEST_NVLINK = 100e9      # bytes/s of a data sheet; PCIe below
BOX = 8                     # devices of a usual machine
FLITS = 6                   # generation of PCIe from which on bytes travel in flits
# What a copy from pinned memory reaches of a PCIe slot's rate, after encoding and the headers of packets: 55.63 of 64
# GB/s on an H100 (nvbandwidth's host_to_device_memcpy_ce in NVIDIA's introduction of it).
HOST_COPY = 0.87

Watts = Annotated[float, Field(ge=0, le=1e6)]
Rate = Annotated[Bandwidth, Field(ge=1)]


class Rates(NamedTuple):
    """What a device's data sheet says of its links, bytes/s in one direction; 0 where nothing is known.

    link: to its peers in the machine. pcie: of its PCIe slot.
    """

    link: float = 0.0
    pcie: float = 0.0


class DevicePower(ConfigModel):
    """Watts of a device in a step: serving + memory * share of the peak memory rate + compute * share of the peak
    arithmetic + network * share of the link's rate + token_j * sampled tokens per second, at most `most`."""

    serving: Watts
    """With the engine at work, before any traffic: clocks up."""
    memory: Watts = 0.0
    compute: Watts = 0.0
    """May lie above the TDP: a card reaches its limit before all its arithmetic units are busy."""
    network: Watts = 0.0
    token_j: Annotated[float, Field(ge=0, le=1e3)] = 0.0
    """Joules per token that the engine samples: what a decode costs whatever the model's size."""
    most: Watts
    """What the card holds under load."""
    trust: Literal["near", "guess"] = "near"
    """`near`: fitted to watts of servers with this very card; `guess`: taken over from another one."""


class Clocks(ConfigModel):
    """Clocks that sink until the card keeps within its watts: matrix products are then no faster than `sustained`.

    Load is the share of the peak arithmetic over the last moments (`hermes.hardware.history`)."""

    sustained: Annotated[float, Field(gt=0, le=1)]
    """Share of the peak arithmetic that matrix products of real values keep up. Kernel tables hold short runs, many of
    them faster."""
    free: Annotated[float, Field(ge=0, le=1)]
    """Load up to which products are as fast as the kernel tables say."""
    full: Annotated[float, Field(gt=0, le=1)]
    """Load from which on none is faster than `sustained`; in proportion between."""
    over: Annotated[Duration, Field(gt=0)]
    """Time after which arithmetic counts for a share of 1/e."""

    @model_validator(mode="after")
    def _ordered(self) -> Clocks:
        if self.full <= self.free:
            raise InputError(Verbatim(f"more than free ({self.free:g})"), self.full, field="full")
        return self


class Cache(ConfigModel):
    """The second-level cache, as far as element-wise kernels use it (`hermes.hardware.composed.elementwise`)."""

    size: Annotated[Bytes, Field(ge=1)]
    bandwidth: Rate
    """Bytes/s of kernels whose operands fit in it."""


class Pcie(ConfigModel):
    """The PCIe slot of a device, from its data sheet."""

    generation: Annotated[int, Field(ge=1, le=7)]
    lanes: Literal[1, 2, 4, 8, 16] = 16
    peer_access: bool = True
    """Whether the driver lets devices read each other's memory over PCIe, where the machine does too: GeForce cards
    do not."""

    @property
    def rate(self) -> float:
        """Bytes/s in one direction: transfers a second of a lane, less its line code (PCI-SIG's base specification)."""
        per_second, coded = {1: (2.5e9, 0.8), 2: (5e9, 0.8)}.get(
            self.generation, (1e9 * 2.0**self.generation, 128 / 130 if self.generation < FLITS else 242 / 256))
        return per_second * coded * self.lanes / 8.0


class DeviceDescription(ConfigModel):
    """One accelerator, or one CPU machine."""

    name: Name
    type: Literal["gpu", "cpu"] = "gpu"
    """`cpu` for machines whose processor computes; engines have other defaults there."""
    flops: Annotated[dict[str, Annotated[float, Field(ge=1e3, le=1e20)]], Field(min_length=1)]
    """Peak dense FLOP/s by arithmetic (bf16, fp8, int8, fp32, ...), without sparsity. fp16 runs at the bf16 rate; a
    device without bf16 gives fp16 instead, and computes 16-bit models in fp16."""
    memory_bandwidth: Rate
    memory: Bytes
    """Bytes that a process can use."""
    cache: Cache | None = None
    """Left out, element-wise kernels read and write the memory."""
    link_bandwidth: Rate
    """Bytes/s from one device to its peers in the same machine, one direction (NVLink, or else PCIe)."""
    host_bandwidth: Rate
    """Bytes/s between device and host, one direction."""
    pcie: Pcie | None = None
    """Its PCIe slot; left out, `host_bandwidth` is its rate."""
    link: Annotated[str, Field(max_length=4096)] = ""
    """What joins devices of one client: a shipped link, or a file relative to the scenario. Empty: the card's kernel
    tables where they have all-reduces over NVLink, else PCIe through host memory."""
    domain: Annotated[int, Field(ge=1, le=2**16)] | None = None
    """Devices that one scale-up domain joins (NVLink, Infinity Fabric): 8 of an HGX board, 72 of a GB200 NVL72. 1:
    none. Left out, 8 for a `link_bandwidth` of 100 GB/s or more, else 1."""
    machine: Annotated[int, Field(ge=1, le=1024)] = BOX
    """Devices of one machine: those that PCIe joins where no domain does. Beyond machine and domain there is a
    network."""
    compute_capability: Annotated[str, Field(pattern=r"^(\d+\.\d)?$")] = ""
    """Of NVIDIA's cards, as "9.0": engines choose kernels by it."""
    efficiency: Annotated[str, Field(max_length=4096)] = ""
    """Efficiency factors of roofline models of this device: a shipped set, or a file relative to the scenario. They are
    fitted on this device, or on the nearest measured card (see `sources`). Empty: a scenario must name a set."""
    mixed_attention: Literal["per_head", "packed", "apart"] = "per_head"
    """How engines' attention on this device serves decodes beside prompts: in one launch whose tiles belong to one
    query head each (FlashAttention 2), or to the query heads that share a KV head (FlashAttention 3, Hopper), or in
    launches of their own (Blackwell's data-centre cards)."""
    kernels: Annotated[str, Field(max_length=4096)] = ""
    """Kernel tables measured on this device: a shipped name, or a YAML file relative to this one. Empty: the shipped
    tables of the device's name, if there are any."""
    compared: Annotated[str, Field(max_length=4096)] = ""
    """Where servers on this device were compared with predictions, their host times and clocks under load known: its
    own kernel tables then count as *measured*. Empty: nowhere, they are *near*."""
    tdp_w: Watts | None = None
    """Watts that the device may draw for long (thermal design power)."""
    idle_w: Watts | None = None
    """With nothing to do; 30% of the TDP where left out."""
    power: DevicePower | None = None
    """Fitted to measured watts; left out, what A100, H100 and B200 draw by TDP and bytes, for a CPU GenZ's shares."""
    clocks: Clocks | None = None
    """How clocks sink under load; left out, they do not."""
    price_per_hour: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """Dollars per hour of one device: a rough public on-demand price. `sources` says from which provider and when."""
    sources: list[str]
    """Data sheets, and the values of this file from elsewhere."""

    @property
    def half(self) -> Literal["bf16", "fp16"]:
        """The 16-bit type of its arithmetic: fp16 on devices without bf16."""
        return "fp16" if "fp16" in self.flops and "bf16" not in self.flops else "bf16"

    def computes(self, arithmetic: str) -> bool:
        """Return whether the device has units for an arithmetic; bf16 stands for any of 16 bits."""
        return (self.half if arithmetic == "bf16" else arithmetic) in self.flops

    @property
    def box(self) -> int:
        """Devices that need no network between them: of a scale-up domain, or of a machine."""
        joined = self.domain or (BOX if self.link_bandwidth >= SLOWEST_NVLINK else 1)
        return max(joined, self.machine)

    @property
    def over_pcie(self) -> bool:
        """Whether PCIe joins the devices of a machine."""
        return self.type == "gpu" and self.link_bandwidth < SLOWEST_NVLINK and (self.domain or 1) == 1

    @property
    def rates(self) -> Rates:
        """What the data sheet says of its links."""
        return Rates(self.link_bandwidth, self.host_bandwidth if self.pcie is None else self.pcie.rate)

    @property
    def copied_from_host(self) -> float:
        """Bytes/s that a copy from host memory reaches."""
        return self.host_bandwidth * (1.0 if self.pcie is None else HOST_COPY)

    @property
    def peers_over_pcie(self) -> bool:
        """Whether the driver lets devices read each other's memory over PCIe; true where nothing is known."""
        return self.pcie is None or self.pcie.peer_access

    def peak(self, compute: str) -> float:
        """Return the peak FLOP/s of an arithmetic. A device without units for it widens the weights to bf16 or fp32."""
        flops = self.flops
        for key in (compute, "bf16", "fp16", "fp32"):
            if key in flops:
                return flops[key]
        return next(iter(flops.values()))


class MachineSpec(NamedTuple):
    """The machine of a client: cores, FLOP/s of all of them, bytes/s and bytes of memory."""

    cores: int
    flops: float
    memory_bandwidth: float
    memory_bytes: int
    device: DeviceDescription | None = None


def load_device(name_or_path: str | Path, base_dir: Path | None = None) -> DeviceDescription:
    """Load a shipped device by name (`h100-sxm`), or a file by path relative to `base_dir`. Raises `InputError`."""
    path = find(name_or_path, base_dir, "devices", "a device description")
    device = load(DeviceDescription, path)
    if device.kernels.endswith((".yaml", ".yml")):
        device = device.model_copy(update={"kernels": str(path.parent.resolve() / device.kernels)})
    return device


def device_named_in(text: str) -> DeviceDescription | None:
    """Return the shipped device that a text names ("NVIDIA H100 80GB SXM"), or None.

    A text names a device if it contains all parts of the device's name. Of several matches, the one with most parts
    wins.
    """
    words = set(re.findall(r"[a-z0-9]+", text.lower()))
    words |= {found[0] for word in words if (found := re.match(r"sxm(?=\d)", word))}
    if {"h100", "hbm3"} <= words and "nvl" not in words:   # CUDA's name of the SXM module
        words.add("sxm")
    named = [name for name in names_in("devices") if words.issuperset(name.split("-"))]
    return load_device(max(named, key=lambda name: name.count("-"))) if named else None
