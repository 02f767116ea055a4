"""Forms of an all-reduce: which an engine launches for a size, NCCL's times from its parts, and what is refused."""

import numpy as np
import pytest
from each import each

from hermes.errors import InputError
from hermes.hardware import StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.composed.kernel_tables import load_kernels, shipped_kernels
from hermes.hardware.composed.reduce_forms import SHARE, nccl_times, replaced
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.engines import Forms, load_engine, reduce_rules, vllm_engines

KIB, MIB = 2**10, 2**20
NVLINK = ["a100-80gb", "h100-sxm", "h200", "b200", "b300", "gb200"]
# Eight devices of compute capability 9.0, vLLM's benchmark (github.com/vllm-project/vllm/pull/42324): us by MiB
PUBLISHED_NCCL = {0.5: 24, 1: 25, 2: 37, 4: 50, 8: 76, 16: 121, 32: 195, 64: 316, 128: 561}
PUBLISHED_SYMMETRIC = {0.5: 11, 1: 14, 2: 18, 4: 27, 8: 46, 16: 87, 32: 165, 64: 320}


def forms(engine, device, ranks):
    return reduce_rules(engine).forms(load_device(device), ranks)


def reduces(**options):
    return Composed(model="llama-3.1-70b", **options).build().sources.reduces


@pytest.mark.parametrize(("device", "ranks", "custom", "symmetric"), [
    ("h100-sxm", 2, 8 * MIB, 64 * MIB), ("h100-sxm", 8, 256 * KIB, 64 * MIB), ("h100-sxm", 3, 0, 0),
    ("a100-80gb", 8, 8 * MIB, 0), ("b200", 8, MIB, 128 * MIB), ("b300", 4, 4 * MIB, 32 * MIB),
    ("l40s", 2, 8 * MIB, 0), ("l40s", 4, 0, 0), ("rtx-4090", 2, 0, 0), ("mi300x", 8, 0, 0)])
def test_the_forms_of_a_version_by_card_and_devices(device, ranks, custom, symmetric):
    """8 MiB at most; less where symmetric memory is faster; over PCIe two devices with peer access only."""
    assert forms("vllm-0.32", device, ranks) == Forms(custom, symmetric)


def test_symmetric_memory_of_b300_begins_with_vllm_0_19():
    assert forms("vllm-0.18", "b300", 8) == Forms(8 * MIB, 0)
    assert forms("vllm-0.19", "b300", 8) == Forms(4 * MIB, 64 * MIB)


def test_every_engine_says_what_it_launches():
    assert all(load_engine(name).all_reduce is not None for name in vllm_engines())
    assert reduce_rules("vllm 0.14.0") == load_engine("vllm-0.15").all_reduce, "the nearest version"
    assert reduce_rules("sglang 0.5.9") is None


def test_a_form_by_size_and_in_words():
    found = Forms(256 * KIB, 64 * MIB)
    assert [found.of(size) for size in (16 * KIB, 256 * KIB, 64 * MIB, 65 * MIB)] == [
        "custom", "symmetric", "symmetric", "nccl"]
    assert found.text() == "vLLM's kernel below 256 KiB, symmetric memory up to 64 MiB, NCCL above"
    assert Forms().text() == "NCCL"


def test_nccl_by_hand():
    """Four H100: the share of the all-gather and reduce-scatter that their all-reduces of 64 to 512 MiB show."""
    tables = load_kernels("h100-sxm")
    had = forms("vllm 0.24.0", "h100-sxm", 4)
    gather, scatter = (tables.collective(name, 4) for name in ("all_gather", "reduce_scatter"))
    sizes, ns = tables.all_reduce(4, captured=True)
    shares = [ns[list(sizes).index(size)] / (np.interp(size, *gather) + np.interp(size, *scatter))
              for size in (64 * MIB, 128 * MIB, 256 * MIB, 512 * MIB)]
    found = nccl_times(tables, 4, had, captured=True)
    size = 32 * KIB
    assert np.interp(size, *found) == pytest.approx(
        np.median(shares) * (np.interp(size, *gather) + np.interp(size, *scatter)), rel=0.02)
    assert np.interp(256 * MIB, *found) == np.interp(256 * MIB, sizes, ns), "measured, where the tables have NCCL's"


@pytest.mark.feature("Hardware", (
    "All-reduces by form (vLLM's kernel, symmetric memory, NCCL) and size, by engine version; `all_reduce: "
    "nccl`"))
@pytest.mark.parametrize(("published", "wants"), [(PUBLISHED_NCCL, "nccl"), (PUBLISHED_SYMMETRIC, "engine")])
def test_eight_h100_against_vllms_own_benchmark(published, wants):
    """Nothing is fitted to it: 20% at worst, half of that on average."""
    found = reduces(device="h100-sxm", tp=8, all_reduce=wants)
    errors = [float(np.interp(mib * MIB, *found.captured)) / 1e3 / us - 1 for mib, us in published.items()]
    assert max(map(abs, errors)) < 0.20
    assert np.mean(np.abs(errors)) < 0.10


@pytest.mark.parametrize("card", NVLINK)
def test_an_all_reduce_takes_a_share_of_its_parts_on_every_card(card):
    """Where tables have NCCL's all-reduce: 0.72 to 1.02 of an all-gather and a reduce-scatter (two GB200 left out)."""
    tables = load_kernels(card)
    for ranks in tables.all_reduce_ranks:
        if (card, ranks) == ("gb200", 2):
            continue
        had = forms(tables.file.engine, card, ranks)
        sizes, ns = tables.all_reduce(ranks, captured=True)
        gather, scatter = (tables.collective(name, ranks) for name in ("all_gather", "reduce_scatter"))
        beside = np.array([had.of(size) == "nccl" for size in sizes]) & (sizes <= gather[0][-1])
        shares = ns[beside] / (np.interp(sizes[beside], *gather) + np.interp(sizes[beside], *scatter))
        assert beside.any()
        assert SHARE * 0.84 < np.median(shares) < SHARE * 1.2


@pytest.mark.parametrize("wants", ["engine", "nccl"])
@each(("card", "ranks"), [(card, ranks) for card in NVLINK for ranks in (2, 4, 8)
                          if ranks in load_kernels(card).all_reduce_ranks])
def test_more_bytes_are_never_faster(card, ranks, wants):
    found = reduces(device=card, tp=ranks, all_reduce=wants)
    for sizes, ns in (found.captured, found.launched):
        assert (np.diff(sizes) > 0).all()
        assert (np.diff(ns) >= 0).all()
        assert (ns > 0).all()


@pytest.mark.parametrize("card", [card for card in NVLINK if card != "gb200"])
def test_nccl_alone_is_slower_where_vllm_has_a_kernel_of_its_own(card):
    """16 KiB, a decode of one sequence: 2 to 5 times, the high end of what differs from site to site."""
    for ranks in (2, 4, 8):
        own, alone = (reduces(device=card, tp=ranks, all_reduce=wants) for wants in ("engine", "nccl"))
        assert 2.0 < np.interp(16 * KIB, *alone.captured) / np.interp(16 * KIB, *own.captured) < 5.0


def test_the_engines_version_decides():
    """B300 before 0.19: vLLM's kernel below 8 MiB, then NCCL; the tables have symmetric memory there."""
    old, new = (reduces(device="b300", tp=8, engine=engine) for engine in ("vllm-0.18", "vllm-0.19"))
    assert "below 8 MiB, NCCL above" in old.source
    assert "symmetric memory up to 64 MiB" in new.source
    assert np.interp(16 * MIB, *old.captured) > np.interp(16 * MIB, *new.captured)
    assert np.interp(MIB, *old.captured) == np.interp(MIB, *new.captured)


def test_replaced_by_hand():
    times = np.array([1.0, 2.0, 4.0]), np.array([10.0, 20.0, 40.0])
    nccl = np.array([1.0, 4.0]), np.array([30.0, 60.0])
    sizes, ns = replaced(times, nccl, Forms(custom=10.0), Forms(custom=2.0))
    assert list(sizes) == [1.0, 2.0, 4.0]
    assert list(ns) == [10.0, 40.0, 60.0]


@pytest.mark.parametrize(("options", "message"), [
    ({"device": "mi300x"}, "nothing is known of NCCL between 8 mi300x"),
    ({"device": "h100-sxm", "link": {"latency": 1e-5, "bandwidth": 1e11}}, "the link says how long")])
def test_what_nccl_alone_cannot_mean(options, message):
    with pytest.raises(InputError, match=message):
        reduces(tp=8, all_reduce="nccl", **options)


def test_explain_names_the_forms():
    built = Composed(model="llama-3.1-70b", device="h100-sxm", tp=8).build()
    assert "vLLM's kernel below 256 KiB, symmetric memory up to 64 MiB, NCCL above" in built.sources_of()["all_reduce"]
    stats = StepStats(decode_seqs=1, decode_ctx=100, decode_ctx_max=100, sampled=1)
    alone = Composed(model="llama-3.1-70b", device="h100-sxm", tp=8, all_reduce="nccl").build()
    assert alone.terms_ns(stats)["all_reduce"] > 2 * built.terms_ns(stats)["all_reduce"]


def test_all_tables_that_ship_say_whose_kernels_they_hold():
    engines = [load_kernels(card).file.engine for card in shipped_kernels()]
    assert all((reduce_rules(engine) is not None) == engine.startswith("vllm") for engine in engines)
