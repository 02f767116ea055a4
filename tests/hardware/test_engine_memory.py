"""What engines count beside weights and KV, by version: hand arithmetic, and figures that engines printed."""

import math

import pytest

from hermes.clients.config import LLMClientConfig
from hermes.deploy.start_log import memory_terms
from hermes.errors import InputError
from hermes.hardware.capacity import Part, cut_blocks
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.engine_memory import (
    MIB,
    NCCL_NETWORK,
    Around,
    captured_sizes,
    engine_terms,
    held_beside,
    latent_workspace,
    memory_rules,
    sglang_share,
    tables_beside,
    tiles,
)

GIB = 2**30
OSS, MARLIN = load_model("gpt-oss-120b"), tiles("9.0", "vllm", (0, 11), True)


def budget(model, device, engine, **more):
    client = LLMClientConfig.model_validate({"model": model, "device": device, "engine": engine, **more})
    filled, hardware = client.completed(None)
    return filled.engine_memory(hardware, None)


@pytest.mark.parametrize(("tp", "ep", "capability", "version", "inner", "hidden"), [
    (1, False, "9.0", (0, 15), 2944, 3072),    # Marlin: a rank's intermediate size up to 128, the hidden one up to 256
    (8, False, "9.0", (0, 33), 384, 3072),     # 2880 / 8 = 360
    (8, True, "8.0", (0, 33), 2944, 3072),     # whole experts
    (2, False, "12.0", (0, 33), 1536, 3072),   # 1440
    (1, False, "10.0", (0, 33), 2944, 3072),   # FlashInfer
    (1, False, "10.0", (0, 15), 3072, 3072),
    (4, False, "", (0, 33), 768, 3072),        # ROCm: 720
])
def test_experts_of_four_bits_are_padded_to_the_kernels_tiles(tp, ep, capability, version, inner, hidden):
    used = tiles(capability, "vllm", version, bool(capability))
    found = held_beside(OSS, "bf16", 36, tp, 1, ep, used, "vllm").bytes
    own, experts = (1, 128 / tp) if ep else (tp, 128)
    by_hand = (inner * hidden - 2880 * 2880 / own) * 3 * experts * 36 * 4.25 / 8
    assert found == math.ceil(by_hand)


def test_weights_of_gpt_oss_as_printed():
    """65.97 GiB on an H100 (vLLM 0.11.2), 13.72 of the small one on an A100 (0.19.0)."""
    for name, device, printed in (("gpt-oss-120b", "h100-sxm", 65.97), ("gpt-oss-20b", "a100-80gb", 13.72)):
        held = budget(name, device, "vllm-0.19", scheduler={"kind": "chunked", "max_num_seqs": 6})
        assert (held.weights.bytes + held.terms["tables"].bytes) / GIB == pytest.approx(printed, rel=0.005)


def test_default_flags_do_not_start_gpt_oss_on_one_card():
    """0.9 of 79.11 GiB are 71.2; the weights take 65.85, sampling of 1,024 rows 34 bytes a word of 201,088: 6.52."""
    with pytest.raises(InputError) as caught:
        budget("gpt-oss-120b", "h100-sxm", "vllm-0.15", memory={"utilization": 0.9})
    assert "the weights (70.7 GB) + activations (7.0 GB)" in str(caught.value)
    assert "1.6 GB are missing; --gpu-memory-utilization 0.92, a lower --max-num-seqs" in str(caught.value)


def test_latent_attention_keeps_a_projection_twice():
    """W_UK and W_UV in 16 bits: 61 layers x 128 heads / 8 x (128 + 128) x 512 x 2 bytes."""
    model = load_model("deepseek-v3")
    assert held_beside(model, "fp8-block", 61, 8, 1, False, MARLIN, "vllm").bytes == 61 * 16 * 256 * 512 * 2


def test_rotary_tables_and_what_the_allocator_rounds():
    """Llama's matrices are multiples of 2 MiB: 131,072 x 128 x 2 bytes remain. Qwen2.5-14B on two devices: of a layer's
    35, 25, 135 and 67.5 MiB, 1, 1, 1 and 0.5 are left over."""
    assert tables_beside(load_model("llama-3.1-8b"), "bf16", 32, 1) == 131_072 * 128 * 2
    qwen = load_model("qwen2.5-14b")
    assert tables_beside(qwen, "bf16", 48, 2) == 48 * 3.5 * MIB + qwen.max_context * 128 * 2


def test_captured_sizes():
    """1, 2, 4, 8; in eights to 256; in sixteens to 512."""
    assert [len(captured_sizes(most)) for most in (12, 256, 512)] == [4, 35, 51]


def terms(model, version, *, dtype="bf16", device="h100-sxm", ranks=1, machines=1, graphs=True, **around):
    described, card = load_model(model), load_device(device)
    return engine_terms(
        memory_rules("vllm", version), described, dtype=dtype, tp=ranks, ranks=ranks, machines=machines,
        over_pcie=card.over_pcie, layers=described.num_layers, max_num_seqs=256, graphs=graphs,
        cuda=bool(card.compute_capability), around=Around(**around))


@pytest.mark.parametrize(("model", "dtype", "version", "counted"), [
    ("qwen2.5-14b", "bf16", "0.16", ""), ("qwen2.5-14b", "bf16", "0.18", "captured"),
    ("qwen2.5-14b", "bf16", "0.20", "captured"), ("qwen2.5-14b", "bf16", "0.21", "captured graphs"),
    ("qwen3-14b", "bf16", "0.22", ""), ("llama-3.1-8b", "bf16", "0.22", "captured graphs"),
    ("llama-3.1-8b", "bf16", "0.23", ""), ("llama-3.1-8b", "fp8", "0.23", "captured graphs"),
    ("llama-3.1-8b", "fp8", "0.24", ""), ("qwen2.5-14b", "bf16", "0.25", ""),
    ("qwen3-30b-a3b", "bf16", "0.28", "captured graphs"), ("qwen3-30b-a3b", "bf16", "0.29", "graphs"),
    ("qwen2.5-14b", "bf16", "0.29", "graphs"), ("qwen3-14b", "int4-awq", "0.28", "4-bit weights"),
])
def test_which_versions_count_graphs(model, dtype, version, counted):
    """V1 captures in the profile run since 0.18 and counts since 0.21; V2 does neither before 0.29."""
    found = terms(model, version, dtype=dtype)
    assert " ".join(name for name in found if name not in ("libraries", "workspaces", "tables")) == counted


def test_graphs_follow_layers_and_sizes():
    """Qwen3-235B-A22B: 94 layers x 51 sizes x 0.56 MiB; without graphs, or on ROCm before 0.27, none."""
    assert terms("qwen3-235b-a22b", "0.29")["graphs"].bytes == math.ceil(94 * 51 * 0.56 * MIB)
    assert "graphs" not in terms("qwen3-235b-a22b", "0.29", graphs=False)
    assert "graphs" not in terms("llama-3.1-8b", "0.21", device="mi300x")
    assert "graphs" in terms("qwen3-30b-a3b", "0.27", device="mi300x")


def test_links_count_until_vllm_joins_ranks_first():
    assert "NCCL" not in terms("llama-3.1-70b", "0.11", ranks=4)
    assert terms("llama-3.1-70b", "0.10", ranks=4)["NCCL"].bytes == 411_041_792
    assert "NCCL" not in terms("llama-3.1-70b", "0.10", ranks=4, device="l40s")   # through host memory
    assert terms("deepseek-v3", "0.8", ranks=16, machines=2)["NCCL"].bytes == NCCL_NETWORK[0] + 16 * NCCL_NETWORK[1]


def test_the_workspace_of_latent_attention():
    """Eight longest requests, at most 64k tokens, of 512 + 64 values; at least a block of each sequence."""
    model = load_model("deepseek-v3")
    assert latent_workspace(memory_rules("vllm", "0.15"), model, 138, 1) == 8 * 138
    assert latent_workspace(memory_rules("vllm", "0.15"), model, 163_840, 256) == 64 * 1024
    assert latent_workspace(memory_rules("vllm", "0.10"), model, 163_840, 256) == 128 * 1024
    assert terms("deepseek-v3", "0.15", longest=163_840)["latent workspace"].bytes == 64 * 1024 * 576 * 2


def test_a_connector_is_a_term_with_a_range():
    assert terms("llama-3.1-8b", "0.33", connected=True)["connector"].ends == (0, round(3.1 * GIB))


def cut(rules, share, capacity, weights, activations, engine):
    parts = [Part(round(size * GIB), "x") for size in (capacity, weights, activations, engine)]
    found = cut_blocks(1, GIB / 1024, 1, share, *parts, rules=memory_rules(rules, "0.5"))
    return found.num_blocks / 1024


def test_the_rule_of_each_engine():
    """SGLang on MI300X: 191.29 free before loading, 176.33 after, fraction 0.88: 153.4 GiB printed. A10G: 21.63, 6.09,
    0.85: 2.84. TensorRT-LLM: 0.99 of 63.62: 62.99. vLLM: share x card less everything."""
    assert cut("sglang", 0.88, 191.5, 191.29 - 176.33, 50, 0.21) == pytest.approx(153.37, abs=0.01)
    assert cut("sglang", 0.85, 22.06, 15.54, 9, 0.43) == pytest.approx(2.845, abs=0.01)
    assert cut("trtllm", 0.99, 79.1, 14, 1, 0.48) == pytest.approx(62.98, abs=0.01)
    assert cut("vllm", 0.9, 80, 20, 4, 1) == pytest.approx(72 - 25, abs=0.01)


def test_versions_of_other_engines_are_not_vllms():
    """What vLLM changed at 0.17, 0.20 and 0.29 does not go by 0.5 of SGLang or 1.2 of TensorRT-LLM."""
    newest = memory_rules("vllm-0.33", "0.33.0")
    for name, version in (("sglang-0.5", "0.5.14"), ("trtllm-1.2", "1.2.0"), ("trtllm-1.2", "0.16")):
        rules = memory_rules(name, version)
        assert (rules.sums, rules.version) == (name.partition("-")[0], newest.version)
        assert rules.sampler(OSS, "bf16") == newest.sampler(OSS, "bf16")


def test_activations_are_shown_where_they_are_in_the_sum():
    sglang = {"scheduler": {"kind": "sglang"}, "parallel": {"tp": 4}, "memory": {"utilization": 0.85}}
    left = budget("qwen2.5-32b", "l4", None, **sglang)
    assert left.activations == Part(0, "in what mem_fraction_static leaves")
    assert "activations" not in [term.name for term in memory_terms(left, None)]
    other = budget("llama-3.1-8b", "h100-sxm", "trtllm-1.2")
    assert other.activations.bytes > GIB
    parts = [other.weights, other.activations, *other.terms.values()]
    spread = 0.9 * math.hypot(1000 * MIB, *(part.ends[1] - part.bytes for part in parts))
    assert other.range[0] == pytest.approx(other.device_bytes - spread, rel=1e-9)


def test_sglangs_own_fraction():
    """81,008 MiB less 512 + 1.5 x 8,192 + 128 + 2 x 256; an L4 of 22,559 MiB less 512 + 1.5 x 4,096 + 128 + 2 x 48; at
    least 10 GiB on a large card."""
    assert sglang_share(round(79.11 * GIB), 8192, 1) == round(1 - 13_440 / (79.11 * 1024), 3)
    assert sglang_share(round(22.03 * GIB), 4096, 1) == round(1 - 6880 / (22.03 * 1024), 3)
    assert sglang_share(round(79.11 * GIB), 2048, 1) == round(1 - 10_240 / (79.11 * 1024), 3)


def test_sglang_starts_where_little_is_left():
    """Qwen2.5-32B in 16 bits on four A10G (here L4): 46,611 tokens printed at 0.85."""
    client = LLMClientConfig.model_validate({
        "model": "qwen2.5-32b", "device": "l4", "parallel": {"tp": 4}, "scheduler": {"kind": "sglang"},
        "memory": {"utilization": 0.85}})
    filled, hardware = client.completed(None)
    assert filled.engine_memory(hardware, None).tokens == pytest.approx(46_611, rel=0.1)


def test_tokens_and_concurrency_as_printed():
    """Gemma 3 on MI300X (vLLM 0.11): 89,994 blocks, seven groups: 205,696 tokens; of 4,096 tokens each needs 256 blocks
    and in six groups 257 (the window, a step of 8,192 tokens, at most the request; and one): 50.05 fit."""
    steps = {"kind": "chunked", "max_num_batched_tokens": 8192}
    printed = budget("gemma-3-27b", "mi300x", "vllm-0.15", scheduler=steps, memory={"num_blocks": 89_994})
    whole = budget("gemma-3-27b", "mi300x", "vllm-0.15", scheduler=steps)
    assert printed.kv_bytes_per_token == whole.kv_bytes_per_token, "a block is of one group of layers"
    assert printed.printed(4096) == 205_696
    assert printed.fits(4096) == pytest.approx(50.05, abs=0.005)
    newer = type(printed)(**{**vars(printed), "rules": memory_rules("vllm", "0.33")})
    assert newer.printed(4096) == int(89_994 / 1798 * 4096)


def test_the_range_holds_the_terms_and_two_starts():
    """Of terms without a range nothing; of one of +-1 GiB beside 1,000 MiB from start to start their root sum."""
    exact = cut_blocks(16, 1000, 1, 0.9, *(Part(size * GIB, "x") for size in (80, 20, 2, 1)))
    assert exact.range == (exact.device_bytes, exact.device_bytes)
    parts = [Part(80 * GIB, "x"), Part(20 * GIB, "x"), Part(2 * GIB, "x", GIB, 3 * GIB), Part(GIB, "x")]
    ranged = cut_blocks(16, 1000, 1, 0.9, *parts)
    spread = math.hypot(GIB, 1000 * MIB)
    assert ranged.range == (round(ranged.device_bytes - spread), round(ranged.device_bytes + spread))


@pytest.mark.parametrize(("device", "gib"), [
    ("mi300x", 191.69), ("a100-40gb", 39.49), ("a100-80gb", 79.25), ("h20", 95.08), ("h200", 139.8), ("l4", 22.03),
    ("l40s", 44.42), ("rtx-pro-6000", 94.97), ("h100-sxm", 79.11)])
def test_cards_have_the_memory_that_engines_print(device, gib):
    assert load_device(device).memory / GIB == pytest.approx(gib, abs=0.005)
