"""Experts of mixtures: how tokens choose them, their work on each device, and the collectives around them, by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.hardware.base import StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.composed.experts import ExpertSplit, chosen, dealt, expert_times
from hermes.hardware.composed.kernel_curves import Roof
from hermes.hardware.composed.kernel_tables import load_kernels
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.operators import Work

QWEN = "qwen3-30b-a3b"
ALONE = ExpertSplit(1, 1)
LINK = {"latency": 20e-6, "bandwidth": 10e9}


def decodes(seqs, context=1000):
    return StepStats(decode_seqs=seqs, decode_ctx=seqs * context, decode_ctx_max=context, sampled=seqs)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.integers(1, 16), st.floats(0, 3))
def test_a_token_chooses_as_many_experts_as_it_has(experts, per_token, skew):
    per_token = min(per_token, experts)
    likely = chosen(experts, per_token, skew)
    assert likely.sum() == pytest.approx(per_token)
    assert (np.diff(likely) <= 1e-12).all()
    assert ((likely > 0) & (likely <= 1)).all()


def test_an_even_choice_is_even():
    assert chosen(128, 8, 0.0) == pytest.approx(np.full(128, 8 / 128))


def test_the_expected_number_of_experts_is_what_draws_give():
    likely, random = chosen(64, 4, 1.01), np.random.default_rng(0)
    drawn = [(random.random((20, 64)) < likely).any(axis=0).sum() for _ in range(2000)]
    assert (1 - (1 - likely) ** 20).sum() == pytest.approx(np.mean(drawn), rel=0.01)


def times(tokens, split=ALONE, skew=1.01, model=QWEN, card="h100-sxm"):
    found = expert_times(load_kernels(card), Roof(989.4e3, 3350.0), load_model(model), "bf16", split, skew,
                         np.asarray(tokens, dtype=float))
    assert found is not None
    return found


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([(1, 1), (2, 1), (1, 2), (1, 8)]), st.floats(0, 2), st.sampled_from([QWEN, "mixtral-8x7b"]))
def test_more_tokens_never_take_less(split, skew, model):
    ns, _ = times(np.arange(1, 600), ExpertSplit(*split), skew, model)
    assert (np.diff(ns) >= 0).all()
    assert (ns > 0).all()


def test_skewed_choices_read_fewer_experts_and_load_one_device_more():
    few, many = [12.0], [4096.0]
    for skew in (1.0, 1.01):   # found from even routing, and measured
        assert times(few, skew=skew)[0] < times(few, skew=0.0)[0]
        alike, skewed = (times(many, ExpertSplit(1, 8), each)[0][0] for each in (0.0, skew))
        assert skewed > 1.05 * alike
    one, other = (times(many, ExpertSplit(8, 1), skew)[0][0] for skew in (0.0, 1.0))
    assert one == pytest.approx(other)   # parts of each expert on every device: nobody has more


def test_the_busiest_device_reads_more_than_its_share():
    """Eight tokens choose 8 of 256 experts each, alike: on 8 devices the busiest reads 10.6 (drawn 2,000 times)."""
    random = np.random.default_rng(7)
    drawn = [np.unique(random.permuted(np.tile(np.arange(256), (8, 1)), axis=1)[:, :8]) for _ in range(2000)]
    busiest = np.mean([np.bincount(one // 32, minlength=8).max() for one in drawn])
    found = dealt(load_model("deepseek-v3"), 8, 0.0, np.array([8.0, 1e6]))
    assert np.mean([most[0] for most, _ in found]) == pytest.approx(busiest, rel=0.05)
    assert all(most[1] == 32 for most, _ in found), "all of its experts, never more"


def test_the_table_itself_comes_out_where_every_expert_is_read():
    table = load_kernels("h100-sxm").experts("bf16", "balanced")
    row = table.shapes.tolist().index([4096, 14336, 2, 8, 2, 1])
    at = table.tokens.tolist().index(2048.0)
    found, source = times([2048.0], ExpertSplit(2, 1), skew=0.0, model="mixtral-8x7b")
    assert found[0] == pytest.approx(table.ns[row, at], rel=0.01)
    assert "nearest" not in source


def test_a_shape_that_was_not_measured_takes_the_nearest():
    _, source = times([64.0], ExpertSplit(3, 1), model="mixtral-8x7b")
    assert "nearest shape 4096 x 14336 x 2 x 8" in source
    odd = load_model("mixtral-8x7b").model_copy(update={"hidden_size": 1000, "intermediate_size": 1000})
    assert expert_times(load_kernels("h100-sxm"), Roof(989.4e3, 3350.0), odd, "bf16", ExpertSplit(1, 1), 0.0,
                        np.ones(1)) is None


@pytest.mark.feature("Hardware", "Mixtures of experts: expert terms, skew of the routing, collectives between ranks")
def test_the_work_of_each_device_by_hand():
    """8 experts, 2 of them for each token, on 2 ranks of 2 devices each."""
    model = load_model("mixtral-8x7b")
    work = {one.name: one for one in Work.of(model, tp=2, dp=2).linears}
    expert = 3 * 4096 * 14336
    assert work["experts"].weights == 32 * 2 * expert / 4          # of each token of both ranks
    assert work["experts"].weight_bytes == 32 * 2 * expert / 4     # of each expert that is read: 2 bytes, a quarter
    assert work["router"].weights == 32 * 4096 * 8
    assert work["qkv"].weights == 32 * 4096 * (16 + 2 * 4) * 128   # of the tokens of one rank
    assert Work.of(model, tp=2, dp=2).experts_read(3) == pytest.approx(8 * (1 - 0.75**6))


def test_weights_of_each_device_by_hand():
    model = load_model("deepseek-v3")
    attention = 61 * (7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168)
    dense = 3 * 3 * 7168 * 18432 + 58 * 3 * 7168 * 2048            # and the shared expert of the others
    experts = 58 * 256 * 3 * 7168 * 2048
    wide = 2 * (2 * 129_280 * 7168 + 58 * 256 * 7168)              # embedding and head, routers
    byte = 1 + 4 / 128**2
    found = model.weight_bytes("fp8-block", tp=1, dp=8)
    assert found == pytest.approx(byte * (attention + dense + experts / 8) + wide, rel=1e-4)
    split = model.weight_bytes("fp8-block", tp=8)
    latent = 61 * (7168 * 1536 + 7168 * 576)                       # on every device
    assert split == pytest.approx(byte * ((attention - latent + dense + experts) / 8 + latent) + wide / 8, rel=1e-4)


def test_kv_of_latent_attention():
    """DeepSeek-V3: 576 values of 2 bytes in each of 61 layers, on every device."""
    model = load_model("deepseek-v3")
    assert model.kv_bytes_per_token() == 61 * 576 * 2
    assert model.kv_bytes_per_token(tp=8) == 8 * 61 * 576 * 2


def test_collectives_between_ranks_by_hand():
    """A given link: an all-gather and a reduce-scatter of all ranks' hidden states take half an all-reduce each."""
    hardware = Composed(model=QWEN, device="h100-sxm", dp=2, ep=2, link=LINK).build()
    terms = hardware.terms_ns(decodes(64))
    size = 2 * 64 * 2048 * 2
    each = 48 * (20e-6 + size / 10e9) / 2 * 1e9   # two ranks: 2 (n - 1) / n = 1
    assert terms["dispatch"] == pytest.approx(each)
    assert terms["combine"] == pytest.approx(each)
    assert "given link" in hardware.sources_of()["dispatch"]
    assert "all_reduce" not in terms


def test_tensor_parallel_ranks_have_both_kinds_of_collectives():
    hardware = Composed(model=QWEN, device="h100-sxm", tp=2, dp=2, ep=4).build()
    terms = hardware.terms_ns(decodes(64))
    assert {"all_reduce", "dispatch", "combine", "experts"} <= terms.keys()
    assert "NCCL" in hardware.sources_of()["dispatch"]
    alone = Composed(model=QWEN, device="h100-sxm", tp=2).build().terms_ns(decodes(64))
    assert terms["qkv"] == alone["qkv"]
    assert terms["all_reduce"] == alone["all_reduce"]


def test_terms_add_up_with_ranks():
    hardware = Composed(model=QWEN, device="rtx-pro-6000", dp=2, ep=2).build()
    stats = decodes(30)
    assert sum(hardware.terms_ns(stats).values()) == pytest.approx(hardware.step_ns(stats), abs=1)
    assert hardware.lockstep_ns([stats, stats], 2).tolist() == hardware.run_ns(stats, 2).tolist()
    assert hardware.sources_of().keys() >= hardware.terms_ns(stats).keys()


def test_a_term_of_experts_can_be_changed():
    plain = Composed(model="mixtral-8x7b", device="h100-sxm", tp=2).build().terms_ns(decodes(8))
    twice = Composed(model="mixtral-8x7b", device="h100-sxm", tp=2, terms={"experts": {"scale": 2.0}}).build()
    assert twice.terms_ns(decodes(8))["experts"] == pytest.approx(2 * plain["experts"])


def test_ranks_without_measured_collectives_take_the_data_sheet():
    """No kernel tables of this card: half of an all-reduce of the roofline each."""
    hardware = Composed(model=QWEN, device="a100-40gb", dp=2, ep=2).build()
    share = hardware.base.efficiency.all_reduce_of(2)
    size = 2 * 64 * 2048 * 2
    each = 48 * (share.latency + size / (300e9 * share.bandwidth)) / 2 * 1e9
    assert hardware.terms_ns(decodes(64))["dispatch"] == pytest.approx(each)
    assert "datasheet of a100-40gb" in hardware.sources_of()["dispatch"]


@pytest.mark.feature("Hardware", "Latent attention, sliding windows, FP8 blocks, MXFP4, NVFP4, int4")
def test_windows_and_latent_attention_by_hand():
    gemma = Work.of(load_model("gemma-3-27b"))
    share, window = 52 / 62, 1024
    assert gemma.within(10_000.0, 4) == pytest.approx((1 - share) * 10_000 + share * 4 * window)
    assert gemma.within(2_000.0, 4) == pytest.approx(2_000)
    deepseek = Work.of(load_model("deepseek-v3"), tp=8)
    assert deepseek.kv_bytes == 61 * 576 * 2
    assert deepseek.context_flops == 61 * 2 * 16 * (576 + 512)
    assert deepseek.pair_flops == 61 * 2 * 16 * (192 + 128)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["gemma-3-27b", "gpt-oss-120b", "deepseek-v3"]), st.integers(1, 64), st.integers(1, 30_000),
       st.integers(1, 40))
def test_runs_of_windows_and_latents_are_single_steps(model, seqs, context, steps):
    hardware = Composed(model=model, device="b200", tp=8).build()
    stats = decodes(seqs, context)
    singles = [hardware.step_ns(StepStats(
        decode_seqs=seqs, decode_ctx=seqs * (context + j), decode_ctx_max=context + j, sampled=seqs))
        for j in range(steps)]
    assert hardware.run_ns(stats, steps).tolist() == singles
    assert singles == sorted(singles)


def test_small_experts_are_not_read_from_a_cache():
    """L40S: a token's 8 experts of Qwen3-30B-A3B have 75 MB, which its second-level cache holds; the model's do not."""
    hardware = Composed(model=QWEN, device="l40s", dtype="bf16").build()
    read = 48 * 8 * 3 * 2048 * 768 * 2 / 864e9
    assert hardware.terms_ns(decodes(1))["experts"] / 1e9 == pytest.approx(read, rel=1e-3)


def test_a_table_without_a_precision_takes_one_of_the_same_bytes():
    """H100: experts with one FP8 scale of vLLM 0.24 contradict their bytes, and are not in the tables."""
    tables = load_kernels("h100-sxm")
    assert not tables.has("experts/fp8/balanced")
    assert any("experts/fp8" in note and "refused" in note for note in tables.file.notes)
    one, blocks, wide = (Composed(model="qwen3-235b-a22b", device="h100-sxm", tp=8, dtype=dtype).build()
                         for dtype in ("fp8", "fp8-block", "bf16"))
    assert "of fp8_block" in one.sources_of()["experts"]
    assert one.terms_ns(decodes(16))["experts"] == pytest.approx(blocks.terms_ns(decodes(16))["experts"], rel=0.01)
    assert one.terms_ns(decodes(16))["experts"] < 0.8 * wide.terms_ns(decodes(16))["experts"]
