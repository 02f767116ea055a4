"""Kernel tables by engine: a client's engine chooses, what it lacks is borrowed and said."""

from __future__ import annotations

import pytest

import hermes
from hermes.hardware.base import StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.composed.kernel_tables import kernels_of, load_kernels, shipped_kernels

MODEL = "qwen3-30b-a3b"


def prompt(tokens: int) -> StepStats:
    return StepStats(prefill_seqs=1, prefill_tokens=tokens, prefill_attn=tokens * (tokens + 1) // 2,
                     prefill_max=tokens, sampled=1)


def decodes(seqs: int) -> StepStats:
    return StepStats(decode_seqs=seqs, decode_ctx=seqs * 1000, decode_ctx_max=1000, sampled=seqs)


@pytest.mark.parametrize(("client", "tables"), [
    ({}, "h200"), ({"engine": "trtllm-1.2"}, "h200-trtllm"), ({"scheduler": {"kind": "sglang"}}, "h200-sglang")])
def test_the_engine_of_a_client_chooses_its_kernels(client: dict[str, object], tables: str) -> None:
    scenario = {"clients": [{"model": MODEL, "device": "h200", **client}],
                "workload": {"requests": 1, "arrivals": {"kind": "poisson", "rate": 1},
                             "lengths": {"kind": "independent", "prompt": 10, "output": 2}}}
    (found,) = hermes.simulate(scenario).summary["sources"]
    shares = {part["source"]: part["share"] for part in found["parts"]}
    assert shares[f"kernel tables {tables}"] > 0.7
    assert sum(source.startswith("kernel tables") for source in shares) == 1


def test_what_an_engine_lacks_is_borrowed_and_said() -> None:
    """vLLM's tables hold latent attention with its projections, which others have without."""
    tables = kernels_of("h200", "vllm")
    assert tables is not None
    assert not tables.has("latent_decode/bf16")
    hardware = Composed(model="deepseek-v3", device="h200", tp=8).build()
    said = hardware.sources_of()["attention_of_decodes"]
    assert said == "kernel tables h200-sglang (borrowed from sglang 0.5.14)"
    assert hardware.trust_of()["attention_of_decodes"].kind == "guess", "latent attention was compared with no vLLM"
    own = Composed(model="deepseek-v3", device="h200", tp=8, kernels="sglang").build()
    assert own.sources_of()["attention_of_decodes"] == "kernel tables h200-sglang (sglang 0.5.14)"
    assert kernels_of("mi300x", "vllm") is None


def test_a_card_without_tables_of_the_engine_borrows_all_of_them() -> None:
    """No table of TensorRT-LLM is of an A100."""
    hardware, own = (Composed(model="llama-3.1-8b", device="a100-80gb", kernels=kernels).build()
                     for kernels in ("trtllm", "vllm"))
    assert hardware.sources_of()["qkv"] == "kernel tables a100-80gb (borrowed from vllm 0.14.0)"
    assert own.sources_of()["qkv"] == "kernel tables a100-80gb (vllm 0.14.0)"
    assert hardware.step_ns(decodes(4)) == own.step_ns(decodes(4))
    assert "measured" not in {trust.kind for trust in hardware.trust_of().values()}


def test_products_of_blocks_are_not_launches() -> None:
    """vLLM's collector launched products of FP8 blocks from the host: 57 us at least. In a graph they take less."""
    notes = load_kernels("h200").file.notes
    assert any(note.startswith("gemm/fp8_block: 86% of the times are launches from the host (55") for note in notes)
    hardware, wide = (Composed(model="qwen3-8b", device="h200", dtype=dtype).build() for dtype in ("fp8-block", "bf16"))
    each = hardware.terms_ns(decodes(4))["o_proj"] / 36 / 1e3
    assert 5 < each < 15
    assert hardware.step_ns(decodes(4)) < wide.step_ns(decodes(4))


@pytest.mark.parametrize("dtype", ["fp8", "fp8-block"])
def test_narrow_experts_are_faster_than_wide_ones_from_four_rows_on(dtype: str) -> None:
    """vLLM's own measurement on H200 with TP8 has FP8 10 to 17% faster from four rows on."""
    narrow, wide = (Composed(model="qwen3-235b-a22b", device="h200", tp=8, dtype=each).build()
                    for each in (dtype, "bf16"))
    for rows in (4, 16, 64):
        assert 1.05 < wide.step_ns(decodes(rows)) / narrow.step_ns(decodes(rows)) < 1.6


def test_prompts_unfold_latent_vectors() -> None:
    """SGLang's table of prompts on Hopper attends to the latent vectors, 3.4 times the arithmetic: refused."""
    assert any("latent_prefill" in note and "refused" in note for note in load_kernels("h200-sglang").file.notes)
    hardware = Composed(model="deepseek-v3", device="h200", tp=8, kernels="sglang").build()
    assert "borrowed from trtllm" in hardware.sources_of()["attention_of_prompts"]
    pairs = 8192 * 8193 / 2 * 61 * 16 * 2 * (128 + 64 + 128)
    least = pairs / 989.4e12
    assert 1.0 < hardware.terms_ns(prompt(8192))["attention_of_prompts"] / 1e9 / least < 2.5


def test_every_table_that_is_not_the_measured_one_has_its_reason() -> None:
    for name in shipped_kernels():
        for note in load_kernels(name).file.notes:
            assert note.split()[0].rstrip(":").split("/")[0] in ("gemm", "experts", "latent_prefill"), name
            assert any(word in note for word in ("refused", "left out", "measured slower", "those of version")), note
