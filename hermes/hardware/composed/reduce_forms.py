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

from typing import TYPE_CHECKING

import numpy as np

from hermes.arrays import FloatArray
from hermes.hardware.fitted.operator_curves import rising

if TYPE_CHECKING:
    from hermes.hardware.composed.kernel_tables import KernelTables
    from hermes.hardware.descriptions.engines import Forms

__all__ = ["nccl_times", "replaced"]

SHARE = 0.85        # of an all-gather and a reduce-scatter, where a card's tables do not say
SHARES = (0.6, 1.2)  # beyond them a table contradicts itself

Times = tuple[FloatArray, FloatArray]


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
