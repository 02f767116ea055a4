"""Layer-wise operator tables: composition by hand, runs against steps, and bad tables."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.config import validate
from hermes.errors import InputError
from hermes.hardware import StepStats
from hermes.hardware.base import STEP_STATS
from hermes.hardware.descriptions.devices import MachineSpec
from hermes.hardware.fitted.layerwise import Layerwise, LayerwiseModel
from hermes.hardware.fitted.operator_tables import ONCE, PER_LAYER, load_operator_tables
from hermes.services import Encoder

CHUNKS, PASTS, DECODES, CONTEXTS = (0, 16, 64), (0, 32, 128), (0, 1, 4, 8), (0, 64, 256)


def attention_us(chunk: float, past: float, decodes: float, context: float) -> float:
    return 5 + 0.1 * chunk + 0.001 * chunk * past + 0.01 * decodes * context


def write_tables(folder: Path, *, skew: bool = True) -> Path:
    folder.mkdir(exist_ok=True)
    rows = [f"{name},{t},{10 * (i + 1) + t}" for i, name in enumerate((*ONCE, *PER_LAYER)) for t in (1, 16, 32, 128)]
    (folder / "dense.csv").write_text("\n".join(["layer,tokens,time_us", *rows, ""]))
    rows = [f"{name},{s},{100 + s}" for name in ("lm_head", "sampler") for s in (1, 4, 16)]
    (folder / "per_sequence.csv").write_text("\n".join(["layer,sequences,time_us", *rows]))
    rows = []
    for chunk, past, decodes, context in itertools.product(CHUNKS, PASTS, DECODES, CONTEXTS):
        if (chunk or not past) and (chunk or decodes) and bool(decodes) == bool(context):
            rows.append(f"{chunk},{past},{decodes},{context},{attention_us(chunk, past, decodes, context)}")
    (folder / "attention.csv").write_text("\n".join(["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", *rows]))
    if skew:
        lines = ["pc,n,t_mean_us,t_max_us,t_skew_us"]
        alphas = ((0, 2, 0.3), (0, 8, 0.1), (16, 2, 0.2), (16, 8, 0))
        lines += [f"{chunk},{n},100,200,{100 + 100 * alpha}" for chunk, n, alpha in alphas]
        (folder / "skew.csv").write_text("\n".join(lines))
    return folder


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return write_tables(tmp_path / "tables")


def model(folder: Path, **options: object) -> LayerwiseModel:
    return LayerwiseModel(load_operator_tables(folder), 3, **options)  # type: ignore[arg-type]


@pytest.mark.feature("Hardware", "Operator tables: `layerwise`")
def test_a_step_is_the_sum_of_its_operators(tables):
    ours = model(tables, skew="none")
    stats = StepStats(decode_seqs=1, decode_ctx=64, decode_ctx_max=64, sampled=1)
    names = (*ONCE, *PER_LAYER)
    once = sum(10 * (names.index(name) + 1) + 1 for name in ONCE)
    layer = sum((10 * (names.index(name) + 1) + 1) * count for name, count in PER_LAYER.items())
    expected_us = once + 3 * (layer + attention_us(0, 0, 1, 64)) + 2 * 101
    assert ours.step_ns(stats) == round(expected_us * 1e3)
    assert sum(ours.operators_ns(stats).values()) == pytest.approx(expected_us * 1e3, rel=1e-12)


def test_products_are_stairs_and_the_rest_are_lines(tables):
    stairs, lines = model(tables).operators_ns, model(tables, products="lines").operators_ns
    at = StepStats(prefill_seqs=1, prefill_tokens=17, prefill_attn=17 * 9, sampled=1)
    upper = StepStats(prefill_seqs=1, prefill_tokens=32, prefill_attn=32 * 33 // 2, sampled=1)
    assert stairs(at)["qkv_proj"] == stairs(upper)["qkv_proj"] > lines(at)["qkv_proj"]
    assert stairs(at)["act_fn"] == lines(at)["act_fn"] < stairs(upper)["act_fn"]


def test_several_prefills_are_looked_up_as_one_with_as_many_pairs(tables):
    ours = model(tables)
    n, past = 32, 40
    pairs = n * past + n * (n + 1) // 2
    one = ours.attention_ns(StepStats(prefill_seqs=1, prefill_tokens=n, prefill_past=past, prefill_attn=pairs))
    assert one[0] == pytest.approx(3e3 * attention_us(n, past, 0, 0), rel=1e-9)
    # two prompts side by side have about half the pairs of one twice as long: as many as one of 22.1 tokens, not half
    # the time of one of 32 (which would be less than that of the longer prompt by itself)
    half = n * (n + 1) // 4
    two = ours.attention_ns(StepStats(prefill_seqs=2, prefill_tokens=n, prefill_attn=half))
    assert two[0] == pytest.approx(3e3 * attention_us(((8 * half + 1) ** 0.5 - 1) / 2, 0, 0, 0), rel=1e-9)
    # and the decodes beside them keep their time: it used to be scaled with the share of pairs
    beside = StepStats(prefill_seqs=2, prefill_tokens=n, prefill_attn=half, decode_seqs=8, decode_ctx=8 * 256,
                       decode_ctx_max=256)
    assert ours.attention_ns(beside)[0] - two[0] == pytest.approx(3e3 * 0.01 * 8 * 256, rel=1e-9)


def test_unequal_contexts_cost_alpha_of_the_way_to_the_longest(tables):
    stats = StepStats(decode_seqs=2, decode_ctx=200, decode_ctx_max=150, sampled=2)
    equal = StepStats(decode_seqs=2, decode_ctx=200, decode_ctx_max=100, sampled=2)
    none, single, batch = (model(tables, skew=skew).attention_ns(stats)[0] for skew in ("none", "single", "by_batch"))
    longest = StepStats(decode_seqs=2, decode_ctx=300, decode_ctx_max=150)
    reach = model(tables, skew="none").attention_ns(longest)[0] - none
    assert single - none == pytest.approx(np.mean([0.3, 0.1, 0.2, 0.0]) * reach)
    assert batch - none == pytest.approx(0.3 * reach)
    assert model(tables).attention_ns(equal)[0] == pytest.approx(model(tables, skew="none").attention_ns(equal)[0])


def test_the_engines_time_hides_behind_the_device_or_adds(tables):
    stats = StepStats(decode_seqs=1, decode_ctx=64, decode_ctx_max=64, sampled=1)
    bare = model(tables).step_ns(stats)
    assert model(tables, overhead_s=1e-6).step_ns(stats) == bare
    assert model(tables, overhead_s=1.0).step_ns(stats) == 10**9
    assert model(tables, overhead_s=1e-3, asynchronous=False).step_ns(stats) == bare + 10**6


@quick_and_full(15, 60)
@given(
    prefill=st.integers(0, 300), past=st.integers(0, 300), decodes=st.integers(0, 20), context=st.integers(0, 500),
    longest=st.integers(0, 300), steps=st.integers(1, 40), skew=st.sampled_from(["single", "by_batch", "none"]),
)
def test_a_run_is_its_steps(tmp_path_factory, prefill, past, decodes, context, longest, steps, skew):
    if not prefill + decodes:
        prefill = 1
    ours = model(write_tables(tmp_path_factory.getbasetemp() / "layerwise"), skew=skew)
    pairs = prefill * past + prefill * (prefill + 1) // 2

    def stats(step: int) -> StepStats:
        return StepStats(
            prefill_seqs=int(prefill > 0), prefill_tokens=prefill, prefill_past=past if prefill else 0,
            prefill_attn=pairs, decode_seqs=decodes, decode_ctx=decodes * (context + step),
            decode_ctx_max=context + longest + step if decodes else 0, sampled=decodes,
        )

    run = ours.run_ns(stats(0), steps)
    assert run.tolist() == [ours.step_ns(stats(step)) for step in range(steps)]
    assert (run > 0).all()


def test_holes_of_the_attention_table_are_filled_from_their_neighbours(tables):
    path = tables / "attention.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith(("16,32,4,", "64,0,8,"))))
    ours = model(tables)
    for chunk, past, decodes, context in ((16, 32, 4, 256), (64, 0, 8, 64)):
        pairs = chunk * past + chunk * (chunk + 1) // 2
        stats = StepStats(
            prefill_seqs=1, prefill_tokens=chunk, prefill_past=past, prefill_attn=pairs,
            decode_seqs=decodes, decode_ctx=decodes * context, decode_ctx_max=context,
        )
        assert ours.attention_ns(stats)[0] == pytest.approx(3e3 * attention_us(chunk, past, decodes, context), rel=0.02)


def test_leaving_the_tables_is_counted(tables):
    columns = {name: np.zeros(3, dtype=np.int64) for name in STEP_STATS}
    columns["decode_seqs"][:] = (8, 9, 8)
    columns["decode_ctx_max"][:] = (100, 100, 255)
    outside = model(tables).out_of_range(columns, np.array([10, 10, 10]))
    assert outside.tolist() == [0, 10, 8]


@pytest.mark.parametrize(("name", "old", "new", "says"), [
    ("dense.csv", "layer,tokens,time_us", "layer,tokns,time_us", "dense.csv: expected a column tokens"),
    ("dense.csv", "qkv_proj,16,", "qkv_proj,sixteen,", "tokens: expected a number, found 'sixteen'"),
    ("per_sequence.csv", "sampler", "sample", "operator sampler"),
    ("attention.csv", "64,128,8,256,", "64,128,8,256,-", "attention.csv"),
])
def test_bad_tables_are_refused_in_one_line(tables, name, old, new, says):
    path = tables / name
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError) as caught:
        load_operator_tables(tables)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(InputError, match="path: expected a folder of operator tables"):
        Layerwise(path="nowhere", model="llama-3.1-8b").build(tmp_path)


def test_norms_of_heads_count_where_the_tables_have_them(tmp_path):
    plain = write_tables(tmp_path / "a")
    more = write_tables(tmp_path / "b")
    with open(more / "dense.csv", "a") as file:
        file.write("".join(f"qk_norm,{t},{5 + t}\n" for t in (1, 16, 32, 128)))
    before, after = (LayerwiseModel(load_operator_tables(folder), 3) for folder in (plain, more))
    stats = StepStats(decode_seqs=16, decode_ctx=160, decode_ctx_max=10, sampled=16)
    assert after.step_ns(stats) - before.step_ns(stats) == pytest.approx(3 * 21_000, abs=2)


def test_an_operator_that_nothing_adds_is_refused(tmp_path):
    folder = write_tables(tmp_path / "a")
    with open(folder / "dense.csv", "a") as file:
        file.write("qk_nrm,1,5\n")
    with pytest.raises(InputError, match="qk_norm"):
        load_operator_tables(folder)


def test_split_tables_add_all_reduces_over_a_link(tmp_path):
    folder = write_tables(tmp_path / "a")
    options = {"path": str(folder), "model": "llama-3.1-8b"}
    stats = StepStats(decode_seqs=16, decode_ctx=160, decode_ctx_max=10, sampled=16)
    alone = Layerwise(**options).build()
    split = Layerwise(**options, tp=2, link={"latency": 32e-6, "bandwidth": 15e9}).build()
    by_hand = 2 * 32 * (32e-6 + 16 * 4096 * 2 / 15e9) * 1e9
    assert split.step_ns(stats) - alone.step_ns(stats) == pytest.approx(by_hand, abs=2)
    assert split.terms_ns(stats)["all_reduce"] == pytest.approx(by_hand)
    assert sum(split.terms_ns(stats).values()) == pytest.approx(split.step_ns(stats), abs=1)
    assert split.info.devices == 2
    with pytest.raises(InputError, match="joins the devices"):
        Layerwise(**options, tp=2).build()
    with pytest.raises(InputError, match="a device beside"):
        Layerwise(**options, tp=2, link="pcie-host-memory").build()
    shared = Layerwise(**options, tp=2, link="pcie-host-memory", device="rtx-pro-6000").build()
    quarter = 32e9 * 128 / 130 * 2 / 4   # of PCIe 5 x16
    assert shared.terms_ns(stats)["all_reduce"] == pytest.approx(2 * 32 * (32e-6 + 16 * 4096 * 2 / quarter) * 1e9)


def test_a_service_takes_the_weights_of_the_model_that_the_tables_name(tables):
    machine = MachineSpec(8, 1e12, 1e11, 64 * 10**9)
    encoder = {"kind": "encoder", "hardware": {"kind": "layerwise", "path": str(tables), "model": "llama-3.1-8b"}}
    assert validate(Encoder, encoder).build(machine).memory_bytes == pytest.approx(16.06e9, rel=0.01)
