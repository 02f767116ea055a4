"""8-bit layers: what the kernel tables of FP8 products hold, and what is priced in addition."""

import math

import pytest

from hermes.hardware.base import StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.composed.kernel_tables import load_kernels
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.operators import Work

FP8_PEAK, SMS = 1978.9e3, 132   # of an H100: operations a nanosecond, streaming multiprocessors


def prompt(tokens):
    return StepStats(prefill_seqs=1, prefill_tokens=tokens, prefill_attn=tokens * (tokens + 1) // 2,
                     prefill_max=tokens, sampled=1)


def built(dtype, device="h100-sxm", model="qwen3-14b", **keys):
    return Composed(model=model, device=device, dtype=dtype, **keys).build()


def test_narrowing_by_hand():
    """Qwen3-14B: four inputs of each of 40 layers, read in 2 bytes and written in 1."""
    wide, narrow = (Work.of(load_model("qwen3-14b"), dtype=dtype) for dtype in ("bf16", "fp8"))
    more = 40 * 3 * (2 * 5120 + 40 * 128 + 17408)
    assert narrow.elementwise_bytes - wide.elementwise_bytes == pytest.approx(more)
    assert narrow.elementwise_kernels - wide.elementwise_kernels == 4 * 40
    assert narrow.without(narrow.narrowing).elementwise_bytes == pytest.approx(wide.elementwise_bytes)
    assert wide.narrowing == ()


@pytest.mark.feature("Hardware", "Layers in FP8: narrowing of the inputs, in the tables' products or `elementwise`")
@pytest.mark.parametrize("tokens", [1, 512, 4096])
def test_tables_of_whole_layers_contain_the_narrowing(tokens):
    """The other element-wise kernels are those of 16 bits."""
    wide, narrow = (built(dtype).terms_ns(prompt(tokens)) for dtype in ("bf16", "fp8"))
    assert narrow["elementwise"] == pytest.approx(wide["elementwise"])
    assert narrow["gate_up"] < wide["gate_up"]


def test_narrowing_is_priced_where_no_table_contains_it():
    hardware = built("fp8", "gh200")
    assert hardware.sources_of()["qkv"].startswith("roofline of gh200")
    base = hardware.base
    kernels = base.work.elementwise_kernels * base.efficiency.kernel_latency
    moved = base.work.elementwise_bytes * 4096 / (base.device.memory_bandwidth * base.efficiency.elementwise)
    assert hardware.terms_ns(prompt(4096))["elementwise"] / 1e9 == pytest.approx(kernels + moved)


def test_grouped_products_contain_the_activation_of_experts():
    """DeepSeek-V3: 3 x 2,048 values of 8 experts in 58 layers, one kernel each."""
    keys = {"model": "deepseek-v3", "dtype": "auto", "device": "h200", "dp": 8, "ep": 8}
    grouped, triton = built(**keys, moe_backend="deep_gemm"), built(**keys)
    left = [hardware.terms_ns(prompt(2048))["elementwise"] for hardware in (triton, grouped)]
    factors = grouped.base.factors_file.of("bf16")
    moved = 58 * 3 * 2048 * 8 * 2 * 2048 / (4.8e12 * factors.elementwise)
    assert (left[0] - left[1]) / 1e9 == pytest.approx(moved + 58 * factors.kernel_latency)


def test_products_with_few_tiles_are_no_faster_in_fp8():
    """The kernel of 8 bits does not split the inner dimension: 40 tiles of 128 x 128 keep 40 of 132 multiprocessors
    busy, for as long as 80 tiles do. The one of 16 bits splits it.

    256 rows, 2,560 and 5,120 outputs, 8,192 inputs: query, key and value of Llama-3.1-70B on four and on two cards.
    """
    tables = load_kernels("h100-sxm")
    times = {}
    for dtype in ("bf16", "fp8"):
        table = tables.gemm(dtype)
        at = [list(axis).index(size) for axis, size in ((table.m, 256.0), (table.k, 8192.0))]
        times[dtype] = [table.ns[at[0], list(table.n).index(size), at[1]] for size in (2560.0, 5120.0)]
    tile = 2 * 128 * 128 * 8192 / (FP8_PEAK / SMS)   # 17.9 us at the peak of one multiprocessor
    assert all(math.ceil(256 / 128) * math.ceil(outputs / 128) < SMS for outputs in (2560, 5120))
    assert times["fp8"] == pytest.approx([1.72 * tile] * 2, rel=0.06)
    assert times["bf16"][1] / times["bf16"][0] > 1.5
    assert times["fp8"][0] > 1.2 * times["bf16"][0]
    assert times["fp8"][1] < 0.9 * times["bf16"][1]


def test_eight_bit_layers_are_a_guess():
    trust, wide = built("fp8").trust_of(), built("bf16").trust_of()
    assert {trust[name].kind for name in ("qkv", "o_proj", "gate_up", "down")} == {"guess"}
    assert trust["gate_up"][1:] == (0.75, 1.2)
    assert {wide[name].kind for name in ("qkv", "o_proj", "gate_up", "down")} == {"measured"}
    assert trust["lm_head"] == wide["lm_head"]
