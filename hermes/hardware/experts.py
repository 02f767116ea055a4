"""Times of a mixture's experts, read off the kernel tables of a card, and of the collectives around them.

A table has a set of shapes: hidden size, inner width, experts per token, experts, and over how many devices each expert
(tensor parallelism) or the set of experts (expert parallelism) is split. A shape that was not measured takes the
nearest one's slowdown over the roofline's time; how near is told by the products that a token needs and the weights
that an expert has.

Which experts the tokens choose decides how many of them a step reads, and how much the device with the most tokens has
to compute. Here token after token chooses on its own, the i-th expert in proportion to i to the power of -`skew`. A
skew of 0 is even; 1.01 is what NVIDIA's planner assumes of trained routers (aiconfigurator-core), and the default.

The tables' `balanced` routing gives a time for every number of experts that are read (few tokens choose different
experts as long as there are others), and for every number of tokens once all are read. A step takes the time to read
the experts that its tokens choose, and what the table adds for its tokens once all experts are read. Where devices have
whole experts, the one with the most to read decides, and the one with the most tokens: it needs the arithmetic of those
above an even share on top, at the device's peak rate. Which device has which experts is drawn (`DEALS` times, always
alike).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hermes.arrays import FloatArray
from hermes.hardware.kernel_curves import Roof
from hermes.hardware.kernel_tables import KernelTables
from hermes.hardware.models import ModelDescription, precision
from hermes.hardware.operator_curves import rising

__all__ = ["ExpertSplit", "chosen", "dealt", "expert_times", "gathered"]

DEALS = 16         # random orders of the experts on the devices
NAMES = {"fp16": "bf16", "fp8-block": "fp8_block", "int4-awq": "int4"}
FAR_SHAPE = 0.7    # of the logarithms of a shape's sizes, all together: beyond it no measured shape is near


class ExpertSplit(NamedTuple):
    """How the experts of one engine lie on its devices.

    tp: devices that share each expert
    ep: devices that share the set of experts
    """

    tp: int
    ep: int

    @property
    def devices(self) -> int:
        return self.tp * self.ep


def chosen(experts: int, per_token: int, skew: float) -> FloatArray:
    """Return how likely a token chooses each expert, shape (experts,): 1 - exp(-c * i^-skew), `per_token` in all."""
    weights = np.arange(1.0, experts + 1.0) ** -skew
    if per_token >= experts:
        return np.ones(experts)
    low, high = 0.0, 1.0
    while (1.0 - np.exp(-high * weights)).sum() < per_token:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if (1.0 - np.exp(-middle * weights)).sum() < per_token else (low, middle)
    return np.asarray(1.0 - np.exp(-high * weights))


def expert_times(kernels: KernelTables, roof: Roof, model: ModelDescription, dtype: str, split: ExpertSplit,
                 skew: float, tokens: FloatArray) -> tuple[FloatArray, str] | None:
    """Return nanoseconds of one layer's experts over numbers of tokens, of all ranks together, and their source.

    tokens: ascending, from 1. None where no table is near.
    """
    table = kernels.experts(NAMES.get(dtype, dtype), "balanced")
    if table is None:
        return None
    wanted = np.array([model.hidden_size, model.intermediate_size, model.experts_per_token, model.num_experts, *split],
                      dtype=np.float64)
    far = np.abs(np.log(table.shapes / wanted)).sum(axis=1)
    measured = ~np.isnan(table.ns).all(axis=1)
    best = int(np.where(measured, far, np.inf).argmin())
    if not far[best] <= FAR_SHAPE:
        return None
    known = ~np.isnan(table.ns[best])
    at = table.tokens[known]
    # fewer tokens never need longer than more: what was measured above that is noise
    ns = np.flip(np.minimum.accumulate(np.flip(table.ns[best][known])))
    value = precision(dtype).layer_bytes
    slowdown = np.log(ns / _ideal(roof, table.shapes[best], value, at))

    def balanced(count: FloatArray) -> FloatArray:
        return np.asarray(np.exp(np.interp(np.log(count), np.log(at), slowdown))
                          * _ideal(roof, wanted, value, np.maximum(count, 1.0)))

    weights = 3.0 * model.hidden_size * model.intermediate_size / split.tp
    per_token_ns = 2.0 * weights * model.experts_per_token / split.ep / roof.flops
    times = rising(_slowest(model, split, skew, tokens, balanced, per_token_ns))
    name = f"kernel tables {kernels.file.name} ({kernels.file.engine}), routing skew {skew:g}"
    if far[best] > 0.0:
        name += f", nearest shape {' x '.join(str(size) for size in table.shapes[best][:4])}"
    return times, name


def _slowest(model: ModelDescription, split: ExpertSplit, skew: float, tokens: FloatArray,
             balanced: Callable[[FloatArray], FloatArray], per_token_ns: float) -> FloatArray:
    """Return the time of the slowest device: of reading the experts that the tokens choose, and of computing them.

    per_token_ns: arithmetic of a token on a device with an even share
    """
    per_token, ep = model.experts_per_token, split.ep
    full = model.num_experts / per_token   # tokens that read every expert where all choose others
    more = balanced(np.maximum(tokens, full)) - balanced(np.full(len(tokens), full))
    total = np.zeros(len(tokens))
    deals = dealt(model, ep, skew, tokens)
    for read, share in deals:
        reading = balanced(np.maximum(read.max(axis=1) * ep / per_token, 1.0))
        total += reading + more + (share.max() - 1.0) * per_token_ns * tokens
    return total / len(deals)


def dealt(model: ModelDescription, ep: int, skew: float, tokens: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
    """Return the work of each device for each random order of the experts on `ep` devices.

    tokens: of all ranks together, shape (tokens,)

    Each entry is (experts that a device reads, shape (tokens, ep); its part of the tokens' choices over an even share,
    shape (ep,)).
    """
    experts = model.num_experts
    likely = chosen(experts, model.experts_per_token, skew)
    read = 1.0 - (1.0 - likely) ** tokens[:, None]             # chance that an expert is read, shape (tokens, experts)
    deals = [np.arange(experts)]
    if ep > 1:
        random = np.random.default_rng(0)
        deals = [random.permutation(experts) for _ in range(DEALS)]
    return [(read[:, deal].reshape(len(tokens), ep, -1).sum(axis=2),
             likely[deal].reshape(ep, -1).sum(axis=1) * ep / model.experts_per_token) for deal in deals]


def _ideal(roof: Roof, shape: FloatArray, value_bytes: float, tokens: FloatArray) -> FloatArray:
    """The roofline's time of gated experts, of which few tokens choose different ones."""
    hidden, inner, per_token, experts, tp, ep = (float(size) for size in shape)
    weights = 3.0 * hidden * inner / tp
    flops = 2.0 * weights * per_token / ep * tokens
    read = np.minimum(per_token * tokens, experts) / ep * weights * value_bytes
    moved = read + 2.0 * tokens * per_token / ep * (2.0 * hidden + 3.0 * inner / tp)
    return np.asarray(np.maximum(flops / roof.flops, moved / roof.bytes))


def gathered(kernels: KernelTables | None, reduces: tuple[FloatArray, FloatArray] | None, ranks: int) -> tuple[
        tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray], str] | None:
    """Return (bytes, nanoseconds) of an all-gather and of a reduce-scatter over `ranks` devices, and their source.

    reduces: (bytes, nanoseconds) of an all-reduce of a link that is given: it is a reduce-scatter and an all-gather
        one after the other (ring; R. Thakur et al., IJHPCA 2005), of which each takes half. Left out, the kernel
        tables'. None where nothing is known.

    Bytes are those of all ranks together.
    """
    if reduces is not None:
        half = reduces[0], reduces[1] / 2.0
        return half, half, "half an all-reduce each"
    if kernels is None:
        return None
    gather, scatter = kernels.collective("all_gather", ranks), kernels.collective("reduce_scatter", ranks)
    if gather is None or scatter is None:
        return None
    return ((gather[0], rising(gather[1])), (scatter[0], rising(scatter[1])),
            f"kernel tables {kernels.file.name} (NCCL)")
