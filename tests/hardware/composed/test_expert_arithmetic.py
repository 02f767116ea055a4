"""Experts that are stored in another precision than the layers: their bytes, arithmetic and widening, by hand."""

from __future__ import annotations

import pytest

from hermes.hardware.base import StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.history import Arithmetic
from hermes.hardware.operators import DEQUANT_FLOPS, DEQUANT_TILE
from hermes.hardware.roofline import Roofline

T = 2**17   # tokens, so many that arithmetic decides


def experts_ns(model: str, device: str, dtype: str) -> float:
    priced = Roofline(model=model, device=device, dtype=dtype, efficiency="ideal").build()
    return float(priced.operators_ns(StepStats(prefill_seqs=1, prefill_tokens=T))["experts"])


def multiplied_ns(model: str, flops: float) -> float:
    """Nanoseconds in which a prompt's tokens are multiplied with their experts at a rate."""
    shape = load_model(model)
    return T * 2 * shape.experts_per_token * shape.expert_layers * shape.expert_params / flops * 1e9


def widened_ns(model: str, vector: float) -> float:
    """Nanoseconds to widen all experts once, and the weights of each tile of a token's experts."""
    shape = load_model(model)
    one = shape.expert_layers * shape.expert_params
    tokens = T * shape.experts_per_token / DEQUANT_TILE
    return (shape.num_experts + tokens) * one * DEQUANT_FLOPS / vector * 1e9


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp8-block"])
@pytest.mark.parametrize(("model", "device", "flops", "vector"), [
    ("gpt-oss-120b", "h200", 989.4e12, 66.9e12),        # MXFP4 weights alone: 16 bits everywhere
    ("gpt-oss-120b", "b200", 2.25e15, 75e12),
    ("kimi-k2-thinking", "h200", 989.4e12, 66.9e12),    # INT4 weights
    ("deepseek-r1-nvfp4", "h200", 989.4e12, 66.9e12),   # no units for four bits: 16 bits
    ("deepseek-r1-nvfp4", "a100-80gb", 312e12, 19.5e12),
    ("deepseek-r1-mxfp4", "mi300x", 1307.4e12, 163.4e12),
    ("deepseek-r1-nvfp4", "b200", 9e15, None),          # four-bit units, whatever the layers have
    ("deepseek-r1-mxfp4", "mi355x", 10.0663e15, None),
])
def test_prompts_are_multiplied_in_the_experts_own_arithmetic(
        model: str, device: str, flops: float, vector: float | None, dtype: str) -> None:
    expected = multiplied_ns(model, flops) + (widened_ns(model, vector) if vector is not None else 0.0)
    assert experts_ns(model, device, dtype) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("model", "device", "dtype", "widened"), [
    ("deepseek-r1-nvfp4", "h200", "fp8", {"experts"}),
    ("deepseek-r1-mxfp4", "mi355x", "fp8", set()),
    ("qwen3-30b-a3b", "a100-80gb", "fp8", {"qkv", "o_proj", "experts"}),
])
def test_what_is_widened_says_so(model: str, device: str, dtype: str, widened: set[str]) -> None:
    def said(kind: type[Roofline | Composed]) -> set[str]:
        sources = kind(model=model, device=device, dtype=dtype).build().sources_of()
        return {name for name, text in sources.items() if "widened, multiplied in 16 bits" in text}

    assert said(Roofline) == widened
    assert said(Composed) == widened


def test_a_router_is_multiplied_in_16_bits() -> None:
    """DeepSeek-V3 in FP8: 7168 x 256 weights in each of 58 layers, 989.4 TFLOP/s, not 1,979."""
    priced = Roofline(model="deepseek-v3", device="h200", efficiency="ideal").build()
    found = priced.operators_ns(StepStats(prefill_seqs=1, prefill_tokens=T))["router"]
    assert found == pytest.approx(T * 2 * 7168 * 256 * 58 / 989.4e12 * 1e9, rel=1e-3)


def test_inputs_are_narrowed_where_narrow_values_are_multiplied() -> None:
    """Elementwise bytes: FP8 layers read 2 and write 1 for each input, on a card that has FP8."""
    def moved(model: str, device: str, dtype: str) -> float:
        return Roofline(model=model, device=device, dtype=dtype).build().work.elementwise_bytes

    wide = moved("llama-3.1-8b", "a100-80gb", "bf16")
    assert moved("llama-3.1-8b", "a100-80gb", "fp8") == wide   # widened there
    inputs = 32 * (3 * 4096 + 14336)                           # of qkv, o_proj and gate_up, and of down
    assert moved("llama-3.1-8b", "h100-sxm", "fp8") == wide + 3 * inputs
    shape = load_model("deepseek-r1-nvfp4")
    chosen = shape.expert_layers * shape.experts_per_token * shape.intermediate_size
    more = moved("deepseek-r1-nvfp4", "b200", "bf16") - moved("deepseek-r1-nvfp4", "h200", "bf16")
    assert more == pytest.approx((2 + 9 / 16) * chosen)        # 4 bits, and 8 for 16 of them


def test_power_and_clocks_count_each_arithmetic_at_its_rate() -> None:
    """A token of gpt-oss-120b in FP8 on an H100: routed experts and routers in 16 bits, the rest in 8."""
    base = Composed(model="gpt-oss-120b", device="h100-sxm", dtype="fp8").build().base
    flops = {name: 2 * weights for name, weights in ((one.name, one.weights) for one in base.work.linears)}
    wide = flops["experts"] + flops["router"]
    expected = wide / 989.4e12 + (sum(flops.values()) - wide) / 1978.9e12
    assert Arithmetic.of(base.work, base.device).per_token / 1e9 == pytest.approx(expected, rel=1e-4)
    compute_s, _, _ = base.work.ideal_s(StepStats(decode_seqs=1), base.device.peak, 1.0, 1.0)
    attention = base.work.context_flops / 989.4e12
    assert compute_s == pytest.approx(expected + attention, rel=1e-4)


def test_experts_cost_the_same_beside_layers_of_any_precision() -> None:
    """Four-bit experts of three models, without tables of their own."""
    for model, device in (("deepseek-r1-nvfp4", "h200"), ("gpt-oss-20b", "mi355x"), ("kimi-k2-thinking", "mi300x")):
        times = [Composed(model=model, device=device, tp=8, dtype=dtype).build().terms_ns(
            StepStats(decode_seqs=16, decode_ctx=16_000, decode_ctx_max=1000, sampled=16))["experts"]
            for dtype in ("bf16", "fp8")]
        assert times[0] == pytest.approx(times[1], rel=0.05)   # shares of the peak by arithmetic differ
