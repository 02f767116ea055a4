"""Every shipped model on every card: steps are priced, and agree with arithmetic, with bytes, and with each other.

    python tests/hardware/composed/every_load.py [MODEL ...]        the table: loads, refusals, and whatever contradicts

`complaints` checks one model on one card: with every precision, alone, and as one engine of eight cards, split within
experts and by whole experts. A step takes no less than its bytes over the memory's bandwidth, nor than its operations
over the peak; more tokens take no less; a narrower precision takes at most `SLOWER` times a wider one, unless a file of
kernel tables says that its experts were measured slower, or there is a `reason`. Four bits that are widened before they
are multiplied are compared with 16 bits alone: their arithmetic is that of 16 bits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise

from hermes.errors import InputError
from hermes.hardware.base import StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.composed.composed_terms import ComposedModel
from hermes.hardware.composed.experts import chosen
from hermes.hardware.composed.kernel_tables import load_kernels, shipped_kernels
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.descriptions.models import PRECISIONS, load_model

WIDER = {"fp8": ("bf16",), "fp8-block": ("bf16",), "int8": ("bf16",), "int4": ("bf16",), "int4-awq": ("bf16",),
         "mxfp4": ("bf16",), "mxfp4-w4a4": ("bf16",), "nvfp4": ("bf16", "fp8")}
LAYOUTS = ((1, 1), (8, 1), (8, 8))   # tp, ep
DECODES, PROMPTS, CONTEXT = (1, 4, 16, 64, 256), (128, 512, 2048, 8192), 1000
SLOWER = 1.3
NAMED = 1.65       # with a `reason`
SMALL = 3072      # hidden size
ROUNDING = 0.98
VECTORS = 15      # times the vector arithmetic in FP32 that matrices in 16 bits have
CARDS = [name for name in names_in("devices") if not name.startswith("cpu")]


def decode(seqs: int) -> StepStats:
    return StepStats(decode_seqs=seqs, decode_ctx=seqs * CONTEXT, decode_ctx_max=CONTEXT, sampled=seqs)


def prompt(tokens: int) -> StepStats:
    return StepStats(prefill_seqs=1, prefill_tokens=tokens, prefill_attn=tokens * (tokens + 1) // 2,
                     prefill_max=tokens, sampled=1)


STEPS = {"decodes": tuple(map(decode, DECODES)), "prompts": tuple(map(prompt, PROMPTS))}


def least_ns(model: ComposedModel, stats: StepStats) -> float:
    """Nanoseconds at the peak rates, of one device. Experts as the routing chooses them."""
    work, device = model.base.work, model.base.device
    tokens = stats.prefill_tokens + stats.decode_seqs
    read = 0.0
    if work.experts:
        likely = chosen(work.experts, model.base.model.experts_per_token, model.sources.routing_skew)
        read = float((1.0 - (1.0 - likely) ** tokens).sum())
    matrices = sum(one.weight_bytes * (read if one.kind == "experts" else 1.0) for one in work.linears)
    moved = matrices + work.head_bytes + work.kv_bytes * work.within(stats.decode_ctx, stats.decode_seqs or 1)
    flops = sum(2.0 * one.weights / device.peak(one.compute) for one in work.linears) * tokens
    wide = work.pair_flops * work.within(stats.prefill_attn, tokens) + work.head_flops * stats.sampled
    return 1e9 * max(moved / device.memory_bandwidth, flops + wide / device.peak(work.wide))


def reason(model: ComposedModel, dtype: str) -> str:
    """Return why a narrow precision may take up to `NAMED` times a wide one, "" for no reason."""
    described, device = model.base.model, model.base.device
    if dtype in ("fp8", "fp8-block", "int8", "mxfp4-w4a4", "nvfp4") and described.hidden_size <= SMALL:
        return "small products save less than the kernel that narrows their inputs takes"
    if described.num_experts and dtype.startswith("int4"):
        return "Marlin's experts widen four bits for each tile of tokens"
    if PRECISIONS[dtype].dequantised and device.efficiency == "cdna":
        return "the roofline of AMD's cards widens at a rate that no server was compared with"
    if device.name == "l40s" and model.sources.whole_experts and dtype == "fp8-block":
        return "the tables' whole experts in blocks take longer at one token"
    return ""


def slow_tables() -> frozenset[tuple[str, str]]:
    """(device, precision) of tables whose file says that their experts were measured slower than wide ones."""
    out = set()
    for name in shipped_kernels():
        file = load_kernels(name).file
        out |= {(file.device, note.split()[0].removeprefix("experts/").rstrip(":").replace("_", "-"))
                for note in file.notes if "measured slower" in note}
    return frozenset(out)


def complaints(name: str, card: str, counts: dict[str, int] | None = None) -> Iterator[str]:
    slow = slow_tables()
    mixture = load_model(name).num_experts > 0
    for tp, ep in LAYOUTS if mixture else LAYOUTS[:2]:
        times: dict[str, dict[str, list[int]]] = {}
        for dtype in ("bf16", *WIDER):
            where = f"{name} on {card}, tp {tp} ep {ep}, {dtype}"
            try:
                model = Composed(model=name, device=card, tp=tp, ep=ep, dtype=dtype).build()
            except InputError:
                if counts is not None:
                    counts["refused"] = counts.get("refused", 0) + 1
                continue
            if counts is not None:
                counts["loads"] = counts.get("loads", 0) + 1
            found = times[dtype] = {what: [model.step_ns(stats) for stats in steps] for what, steps in STEPS.items()}
            for what, steps in STEPS.items():
                ns = found[what]
                if any(more < less for less, more in pairwise(ns)):
                    yield f"{where}: {what} fall with tokens: {ns}"
                for stats, one in zip(steps, ns, strict=True):
                    least = least_ns(model, stats)
                    if one < ROUNDING * least:
                        yield f"{where}: {what}, {one / 1e6:.3f} ms below {least / 1e6:.3f}, its bytes or operations"
                for wider in WIDER.get(dtype, ()):
                    if wider not in times or (mixture and (card, dtype.removesuffix("-awq")) in slow):
                        continue
                    device, kinds = model.base.device, (PRECISIONS[dtype].compute, PRECISIONS[wider].compute)
                    slower = device.peak(kinds[0]) < device.peak(kinds[1])
                    if slower or (kinds[0] != kinds[1] and device.peak(kinds[0]) == device.peak(kinds[1])):
                        continue   # the card multiplies fewer bits no faster (INT8 of a B300, FP8 of a Gaudi 3)
                    widened = model.base.work.dequantised or kinds[0] not in device.flops
                    if widened and device.peak("bf16") > VECTORS * device.flops.get("fp32", 0.0):
                        continue   # widening takes vector arithmetic, of which the card has little
                    ratio = max(one / other for one, other in zip(ns, times[wider][what], strict=True))
                    if ratio > (NAMED if reason(model, dtype) else SLOWER):
                        yield f"{where}: {what} take {ratio:.2f} times {wider}'s"


def main() -> None:
    counts: dict[str, int] = {}
    models = sys.argv[1:] or names_in("models")
    for model in models:
        found = [line for card in CARDS for line in complaints(model, card, counts)]
        print(f"{model:28} {'as it should be' if not found else f'{len(found)} contradictions'}", flush=True)
        for line in found:
            print(f"  {line}")
    print(f"{counts.get('loads', 0):,} loads, {counts.get('refused', 0):,} refused (heads or experts that eight do not "
          f"divide, precisions that a card has not), {len(models)} models, {len(CARDS)} cards")


if __name__ == "__main__":
    main()
