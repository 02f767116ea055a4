"""Forms of an all-reduce: which kernel an engine launches for a size, and what NCCL's alone would take.

vLLM has three for tensor parallelism inside a box: a kernel of its own (`custom`: every device reads all the others'
memory, in one pass below 256 or 512 KiB, in two above), PyTorch's symmetric memory (in two passes, or summed by the
NVLink switch), and NCCL's ring. It goes by the size, the number of devices and the card's generation: a fact of the
engine's version (`hw_profiles/engines`, `all_reduce`).

A card's kernel tables hold all-reduces as the engine that measured them chose. NCCL's own times are not in them below
its sizes, but those of its all-gathers and reduce-scatters are. A ring all-reduce is one after the other (R. Thakur et
al., IJHPCA 2005) in one kernel, which takes less than the two: 0.72 to 1.02 of their sum at the sizes where the tables
have NCCL's all-reduce too, on six cards with two to eight devices (but 2 on two GB200, whose tables contradict each
other). A card's own share is taken where its tables show one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
from pydantic import Field

from hermes.config import Bytes, ConfigModel
from hermes.hardware.base import FloatArray
from hermes.hardware.operator_curves import rising

if TYPE_CHECKING:
    from hermes.hardware.devices import DeviceDescription
    from hermes.hardware.kernel_tables import KernelTables

__all__ = ["Forms", "ReduceRules", "nccl_times", "replaced"]

SHARE = 0.85        # of an all-gather and a reduce-scatter, where a card's tables do not say
SHARES = (0.6, 1.2)  # beyond them a table contradicts itself
PAIR = 2            # devices that vLLM's kernel joins over PCIe
NAMES = {"custom": "vLLM's kernel", "symmetric": "symmetric memory", "nccl": "NCCL"}

Limits = dict[Annotated[str, Field(pattern=r"^\d+\.\d$")], dict[Annotated[str, Field(pattern=r"^\d+$")], Bytes]]
Times = tuple[FloatArray, FloatArray]


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


def nccl_times(kernels: KernelTables, ranks: int, forms: Forms, captured: bool) -> Times | None:
    """Return (bytes, nanoseconds) of NCCL's all-reduce, None where the tables do not know it.

    forms: of the engine that measured the tables.
    """
    if ranks not in kernels.all_reduce_ranks:
        return None
    sizes, ns = kernels.all_reduce(ranks, captured)
    known = np.array([forms.of(size) == "nccl" for size in sizes])
    if known.all():
        return sizes, rising(ns)
    gather, scatter = kernels.collective("all_gather", ranks), kernels.collective("reduce_scatter", ranks)
    if gather is None or scatter is None:
        return None
    both = np.interp(sizes, *gather) + np.interp(sizes, *scatter)
    beside = known & (sizes <= min(gather[0][-1], scatter[0][-1]))
    share = float(np.median(ns[beside] / both[beside])) if beside.any() else SHARE
    if not SHARES[0] <= share <= SHARES[1]:
        share = SHARE
    found = share * both
    if not captured:   # the host takes as long to launch it
        found = np.maximum(found, ns.min())
    return sizes, rising(np.where(known, ns, found))


def replaced(times: Times, nccl: Times, measured: Forms, chosen: Forms) -> Times:
    """Return the times of tables with NCCL's where the engine chooses it and the tables' did not."""
    sizes, ns = times
    other = np.array([chosen.of(size) == "nccl" != measured.of(size) for size in sizes])
    return sizes, rising(np.where(other, np.interp(sizes, *nccl), ns))


def _size(number: float) -> str:
    return f"{number / 2**20:g} MiB" if number >= 2**20 else f"{number / 2**10:g} KiB"
