"""Times of a mixture's experts, read off the kernel tables of a card, and of the collectives around them.

A table has a set of shapes: hidden size, inner width, experts per token, experts, and over how many devices each expert
(tensor parallelism) or the set of experts (expert parallelism) is split. A shape that was not measured takes the
nearest one's slowdown over the roofline's time; how near, by a token's products and an expert's weights.

Which experts the tokens choose decides how many of them a step reads, and how much the device with the most tokens has
to compute. Here token after token chooses on its own, the i-th expert in proportion to i to the power of -`skew`. A
skew of 0 is even; 1.01 is what NVIDIA's planner assumes of trained routers (aiconfigurator-core), and the default. For
that one the kernels themselves were measured, the busiest device's where devices have whole experts: 64 tokens that
crowd on few experts need more tiles, and take longer than 64 that spread although they read fewer (DeepSeek-V3 on
eight H200, SGLang 0.5.14: 326 against 249 us a layer).

Of few experts each has so many tokens that the measured routing reads all of them from 8 tokens on, where drawn tokens
read 6.6 of 8: Mixtral-8x7B on two H100 then takes 9% longer than its servers, reckoned as follows 3%. So for those,
other skews, and where they were not measured, the tables' `balanced` routing gives a time for every number of experts
that are read (few tokens choose different experts as long as there are others), and for every number of tokens once all
are read. A step takes the time to read the experts that its tokens choose, and what the table adds for its tokens once
all experts are read. Where devices have whole experts, the one with the most to read decides, and the one with the most
tokens: it needs the arithmetic of those above an even share on top, at the device's peak rate. Which device has which
experts is drawn (`DEALS` times, always alike).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from hermes.arrays import FloatArray, exp, log
from hermes.hardware.composed.kernel_curves import Roof
from hermes.hardware.composed.kernel_tables import ExpertTable, KernelTables
from hermes.hardware.composed.term_sources import SKEW
from hermes.hardware.descriptions.models import ModelDescription, precision
from hermes.hardware.fitted.operator_curves import rising

__all__ = ["ExpertSplit", "chosen", "dealt", "expert_times", "gathered"]

DEALS = 16         # random orders of the experts on the devices
DRAWS = 64         # of how many experts each device reads in a step
ALIKE = {"fp16": ("bf16",), "fp8": ("fp8", "fp8_block"), "fp8-block": ("fp8_block", "fp8"),
         "int8": ("int8", "fp8", "fp8_block"), "int4-awq": ("int4",)}
"""Tables that may give a precision's times, the first that exists: others have kernels of the same kind and bytes."""
UNEVEN = "power_law_1.01"   # routing of the tables that have the default skew in them
FEW_EXPERTS = 16   # up to which uneven routing is reckoned
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
    while (1.0 - exp(-high * weights)).sum() < per_token:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if (1.0 - exp(-middle * weights)).sum() < per_token else (low, middle)
    return np.asarray(1.0 - exp(-high * weights))


def expert_times(kernels: KernelTables, roof: Roof, model: ModelDescription, dtype: str, split: ExpertSplit,
                 skew: float, tokens: FloatArray) -> tuple[FloatArray, str] | None:
    """Return nanoseconds of one layer's experts over numbers of tokens, of all ranks together, and their source.

    tokens: ascending, from 1. None where no table is near.
    """
    wanted = np.array([model.hidden_size, model.intermediate_size, model.experts_per_token, model.num_experts, *split],
                      dtype=np.float64)
    uneven = skew == SKEW and model.num_experts > FEW_EXPERTS
    found = next(_near(kernels, dtype, wanted, uneven), None)
    if found is None:
        return None
    table, best, far, routing, said = found
    known = ~np.isnan(table.ns[best])
    at = table.tokens[known]
    # fewer tokens never need longer than more: what was measured above that is noise
    ns = np.flip(np.minimum.accumulate(np.flip(table.ns[best][known])))
    value = precision(dtype).layer_bytes
    slowdown = log(ns / _ideal(roof, table.shapes[best], value, at))

    def measured(count: FloatArray) -> FloatArray:
        return np.asarray(exp(np.interp(log(count), log(at), slowdown))
                          * _ideal(roof, wanted, value, np.maximum(count, 1.0)))

    if routing == "balanced":
        weights = 3.0 * model.hidden_size * model.intermediate_size / split.tp
        per_token_ns = 2.0 * weights * model.experts_per_token / split.ep / roof.flops
        times, name = _slowest(model, split, skew, tokens, measured, per_token_ns), f"routing skew {skew:g}"
    else:
        times, name = measured(tokens), f"measured with routing skew {SKEW:g}"
    times = np.maximum(times, _least(roof, model, split, value, skew, tokens))
    if far > 0.0:
        name += f", nearest shape {' x '.join(str(size) for size in table.shapes[best][:4])}"
    return rising(times), f"{said}, {name}"


def _least(roof: Roof, model: ModelDescription, split: ExpertSplit, value_bytes: float, skew: float,
           tokens: FloatArray) -> FloatArray:
    """Nanoseconds to read the weights of the chosen experts from memory, and to multiply them at the peak rate. Small
    ones were measured in the second-level cache, where they are not in a model, whose other layers pass through it."""
    likely = chosen(model.num_experts, model.experts_per_token, skew)
    read = (1.0 - (1.0 - likely) ** tokens[:, None]).sum(axis=1)
    weights = (3.0 if model.gated_ffn else 2.0) * model.hidden_size * model.intermediate_size / split.devices
    computing = 2.0 * model.experts_per_token * tokens * weights / roof.flops
    return np.asarray(np.maximum(read * weights * value_bytes / roof.bytes, computing))


def _near(kernels: KernelTables, dtype: str, wanted: FloatArray, uneven: bool
          ) -> Iterator[tuple[ExpertTable, int, float, str, str]]:
    """Yield tables with a shape near the wanted one, those of the engine itself first: (table, the shape's row, how
    far it is, routing, source)."""
    names = ALIKE.get(dtype, (dtype,))
    for own in (True, False):
        for name in names:
            for routing in (UNEVEN, "balanced") if uneven else ("balanced", UNEVEN):
                key = f"experts/{name}/{routing}"
                if kernels.has(key) is not own or (table := kernels.experts(name, routing)) is None:
                    continue
                far = np.abs(log(table.shapes / wanted)).sum(axis=1)
                far = np.where(np.isnan(table.ns).all(axis=1), np.inf, far)
                best = int(far.argmin())
                if far[best] <= FAR_SHAPE:
                    said = kernels.said(key) + (f" of {name}" if name != names[0] else "")
                    yield table, best, float(far[best]), routing, said


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
    for most, share in deals:
        reading = balanced(np.maximum(most * ep / per_token, 1.0))
        total += reading + more + (share.max() - 1.0) * per_token_ns * tokens
    return total / len(deals)


def dealt(model: ModelDescription, ep: int, skew: float, tokens: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
    """Return the work of the busiest device for each random order of the experts on `ep` devices.

    tokens: of all ranks together, shape (tokens,)

    Each entry is (experts that the device reads that reads most, expected, shape (tokens,); each device's part of the
    tokens' choices over an even share, shape (ep,)).

    How many experts a device reads varies from step to step, by the sum of p * (1 - p) over its experts, which are read
    with chance p: where 8 tokens choose 8 of 256 experts each, one of 8 devices reads 7.2 on average, and the busiest
    10.6 (drawn; 10.2 here). The expected largest is that of normal variables (`DRAWS` draws, always alike).
    """
    experts = model.num_experts
    likely = chosen(experts, model.experts_per_token, skew)
    read = 1.0 - (1.0 - likely) ** tokens[:, None]             # chance that an expert is read, shape (tokens, experts)
    if ep == 1:
        return [(read.sum(axis=1), np.ones(1))]
    random = np.random.default_rng(0)
    deals = [random.permutation(experts) for _ in range(DEALS)]
    noise = np.random.default_rng(1).standard_normal((DRAWS, 1, ep))
    out = []
    for deal in deals:
        own = read[:, deal].reshape(len(tokens), ep, -1)
        mean, spread = own.sum(axis=2), np.sqrt((own * (1.0 - own)).sum(axis=2))
        most = np.minimum((mean + spread * noise).max(axis=2).mean(axis=0), experts / ep)
        out.append((np.maximum(most, mean.max(axis=1)), likely[deal].reshape(ep, -1).sum(axis=1) * ep
                    / model.experts_per_token))
    return out


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
