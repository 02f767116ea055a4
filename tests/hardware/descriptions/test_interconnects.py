"""Links between devices: the formula by hand, measured times, shares of a data sheet, and what is refused."""

import numpy as np
import pytest
import yaml

from hermes.config.validation import validate
from hermes.errors import InputError
from hermes.hardware import StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.composed.kernel_tables import load_kernels
from hermes.hardware.descriptions.devices import Pcie, Rates, load_device
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.descriptions.links import LinkDescription, load_interconnect, span
from hermes.hardware.trust import MEASURED, NEAR

GEN4, GEN5 = 16e9 * 128 / 130 * 2, 32e9 * 128 / 130 * 2   # 16 lanes of 16 and 32 GT/s, bytes/s

MINE = {"format": "hermes-interconnect/1", "name": "mine", "latency": "10 us", "latency_per_doubling": "4 us",
        "bandwidth": "20 GB/s", "sources": ["made up"]}


def link(**changes):
    values = {**MINE, **changes}
    return validate(LinkDescription, {key: value for key, value in values.items() if value is not None})


def seconds(description, ranks, size, rate=64e9, pcie=63e9):
    sizes, ns = description.all_reduce(ranks, Rates(rate, pcie))
    return 1e-9 * (float(np.interp(size, sizes, ns)) if size <= sizes[-1] else ns[-1] * size / sizes[-1])


def test_a_ring_by_hand():
    """Eight devices send 7/4 of the bytes each; latency grows by each doubling beyond two."""
    assert seconds(link(), 2, 4e6) == pytest.approx(10e-6 + 4e6 / 20e9)
    assert seconds(link(), 8, 4e6) == pytest.approx(10e-6 + 2 * 4e-6 + 1.75 * 4e6 / 20e9)


def test_a_share_follows_the_generation_of_the_link():
    half = link(bandwidth=None, share=0.25)
    assert seconds(half, 2, 4e6, 64e9) == pytest.approx(10e-6 + 4e6 / 16e9)
    assert seconds(half, 2, 4e6, 32e9) == pytest.approx(10e-6 + 4e6 / 8e9)


@pytest.mark.parametrize(("generation", "lanes", "giga"), [
    (1, 16, 4.0), (3, 16, 15.754), (4, 16, 31.508), (5, 16, 63.015), (5, 8, 31.508), (6, 16, 121.0)])
def test_the_rate_of_a_slot_by_hand(generation, lanes, giga):
    assert Pcie(generation=generation, lanes=lanes).rate == pytest.approx(giga * 1e9, rel=1e-4)


def test_a_share_of_the_slot_follows_the_card():
    """An L40S has PCIe 4, an RTX PRO 6000 PCIe 5; a card that says nothing has its rate to the host."""
    for card, rate in (("l40s", GEN4), ("rtx-pro-6000", GEN5), ("t4", GEN4 / 2), ("gh200", 450e9)):
        assert load_device(card).rates.pcie == pytest.approx(rate)
    quarter = link(bandwidth=None, pcie_share=0.25)
    assert seconds(quarter, 2, 4e6, 450e9, GEN4) == pytest.approx(10e-6 + 4e6 / (0.25 * GEN4))
    with pytest.raises(InputError, match="pcie"):
        quarter.all_reduce(2, Rates(450e9))


def test_the_ends_of_a_range_by_hand():
    """Half and a third of the time; twice at small sizes, four times at large ones."""
    times = [(np.array([0.0, 2.0**40]), np.array([fixed, fixed + slope * 2.0**40]))
             for fixed, slope in ((1e4, 0.01), (2e4, 0.03), (4e4, 0.12))]
    found = span(*times)
    assert found.kind == "guess"
    assert found.low == pytest.approx(1 / 3, rel=0.01)
    assert found.high == pytest.approx(4, rel=0.01)


def test_the_class_of_a_link_is_what_its_file_rests_on():
    rates, ends = Rates(64e9, GEN5), {"latency": "20 us", "bandwidth": "10 GB/s", "divided": True}
    assert link().trust(2, rates) == NEAR
    assert link(measured=[{"ranks": 2, "bytes": [1, 2], "seconds": [1e-5, 2e-5]}]).trust(2, rates) == MEASURED
    assumed = link(assumed=True, fast={"latency": "5 us", "bandwidth": "40 GB/s"}, slow=ends)
    assert assumed.trust(2, rates).low == pytest.approx(0.5, rel=1e-3)
    assert assumed.trust(2, rates).high == pytest.approx(2.0, rel=1e-3)
    assert assumed.trust(8, rates).high == pytest.approx(8.0, rel=0.01), "eight devices share one path: 2.5 GB/s each"


def test_measured_times_win_never_fall_and_go_on_in_proportion():
    both = link(measured=[{"ranks": 2, "bytes": [1000, 2000, 4000], "seconds": [3e-5, 2e-5, 6e-5]}])
    assert seconds(both, 2, 10) == seconds(both, 2, 2000) == pytest.approx(3e-5)
    assert seconds(both, 2, 3000) == pytest.approx(4.5e-5)
    assert seconds(both, 2, 8000) == pytest.approx(12e-5)
    assert seconds(both, 4, 4e6) == pytest.approx(14e-6 + 1.5 * 4e6 / 20e9), "the formula for other numbers"


def test_without_a_formula_other_numbers_of_devices_are_refused():
    only = link(latency=None, latency_per_doubling=None, bandwidth=None,
                measured=[{"ranks": 2, "bytes": [1000, 2000], "seconds": [1e-5, 2e-5]}])
    with pytest.raises(InputError, match=r"4 devices.*measured with 2"):
        only.all_reduce(4, Rates(64e9, 63e9))


@pytest.mark.parametrize(("changes", "message"), [
    ({"share": 0.5}, "not both"),
    ({"pcie_share": 0.5}, "not both"),
    ({"fast": {"latency": "1 us", "bandwidth": "9 GB/s"}}, "both ends"),
    ({"fast": {"latency": "1 us"}}, "one of bandwidth and pcie_share"),
    ({"bandwidth": None}, "latency and bandwidth"),
    ({"measured": [{"ranks": 2, "bytes": [2, 1], "seconds": [1e-5, 2e-5]}]}, "ascending"),
    ({"measured": [{"ranks": 2, "bytes": [1, 2, 3], "seconds": [1e-5, 2e-5]}]}, "3 times"),
    ({"measured": [{"ranks": 2, "bytes": [1, 2], "seconds": [1e-5, 2e-5]}] * 2}, "once"),
])
def test_what_a_description_cannot_mean(changes, message):
    with pytest.raises(InputError, match=message):
        link(**changes)


@pytest.mark.parametrize("name", names_in("links"))
def test_every_shipped_link_loads_and_grows(name):
    found = load_interconnect(name)
    for ranks in (2, 4, 8):
        assert seconds(found, ranks, 1e6) < seconds(found, ranks, 1e7)


@pytest.mark.parametrize(("name", "card", "worst"), [("nvlink-4", "h200", 0.38), ("nvlink-3", "a100-80gb", 0.55),
                                                     ("nvlink-5", "b200", 0.64)])
def test_shipped_formulas_meet_the_measured_all_reduces(name, card, worst):
    """nvlink-4 is fitted to H100: H200 was held out."""
    tables, found = load_kernels(card), load_interconnect(name)
    for ranks in (2, 4, 8):
        for size, ns in zip(*tables.all_reduce(ranks, captured=True), strict=True):
            if 1024 <= size <= 2**25:
                assert seconds(found, ranks, size) == pytest.approx(ns * 1e-9, rel=worst)


def reduce_s(**options):
    """Seconds of one all-reduce of 1,000 rows of Qwen3-32B on two devices."""
    stats = StepStats(prefill_seqs=1, prefill_tokens=1000, prefill_attn=500_500, prefill_max=1000)
    return Composed(model="qwen3-32b", tp=2, **options).build().terms_ns(stats)["all_reduce"] / (2 * 64) * 1e-9


def test_a_scenario_names_a_link_and_a_device_has_one(tmp_path):
    size = 1000 * 5120 * 2
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(MINE))
    path = str(tmp_path / "mine.yaml")
    assert reduce_s(device="rtx-pro-6000", link=path) == pytest.approx(10e-6 + size / 20e9)
    assert reduce_s(device="h100-sxm", link=path) == pytest.approx(10e-6 + size / 20e9), "wins over kernel tables"
    card = (load_device_text() | {"link": path})
    (tmp_path / "card.yaml").write_text(yaml.safe_dump(card))
    assert reduce_s(device=str(tmp_path / "card.yaml")) == pytest.approx(10e-6 + size / 20e9)
    assert reduce_s(device="rtx-pro-6000") == pytest.approx(32e-6 + size / (0.25 * GEN5)), "pcie-host-memory"


def load_device_text():
    return {"name": "card", "flops": {"bf16": 5e14, "fp32": 1e14}, "memory_bandwidth": "1.8 TB/s", "memory": "96 GiB",
            "link_bandwidth": "64 GB/s", "host_bandwidth": "64 GB/s", "efficiency": "rtx-pro-6000", "sources": ["x"]}


@pytest.mark.feature("Hardware", "Default PCIe link by generation and lanes of the card, with a range")
@pytest.mark.parametrize(("device", "peers"), [("l40s", True), ("rtx-4090", False)])
def test_pcie_that_nobody_names_has_the_ends_of_what_sites_measured(device, peers):
    """Four cards of Gen 4: 37 us and a quarter of the slot; without peer access nothing is faster than 56% of it."""
    built = Composed(model="qwen3-32b", tp=4, device=device).build()
    stats = StepStats(decode_seqs=1, decode_ctx=100, decode_ctx_max=100, sampled=1)
    assert built.terms_ns(stats)["all_reduce"] == pytest.approx(128 * (37e3 + 1.5 * 10240 / (0.25 * GEN4) * 1e9))
    found = built.trust_of()["all_reduce"]
    assert found.kind == "guess"
    assert found.high == pytest.approx(0.25 / 0.119, rel=0.01), "0.238 of two devices, shared by four"
    assert found.low == pytest.approx(0.25 / 0.82 if peers else 0.25 / 0.556, rel=0.01)
    assert ("3.7 to 26 GB/s" if peers else "3.7 to 18 GB/s") in built.info.assumed_links[0].text
    named = Composed(model="qwen3-32b", tp=4, device=device, link="pcie-peer").build()
    assert named.trust_of()["all_reduce"].low > found.low
    assert named.info.assumed_links == ()


def test_the_share_of_the_default_is_the_median_of_the_machines_it_names():
    """The figures of the file: bus bandwidths over the rate of the slot, two of them of tables that ship."""
    tables, size = load_kernels("l40s"), 2.0**25
    shares = [15e9 / GEN5, 35e9 / GEN5, 28e9 / GEN5]
    for ranks in (4, 8):
        sizes, ns = tables.all_reduce(ranks, captured=True)
        shares.append(2 * (ranks - 1) / ranks * size / np.interp(size, sizes, ns) * 1e9 / GEN4)
    host = load_interconnect("pcie-host-memory")
    assert np.median(shares) == pytest.approx(host.pcie_share, abs=0.013)
    assert max(shares) == pytest.approx(host.fast.pcie_share, abs=0.001)
    assert sorted(shares)[0] == pytest.approx(host.slow.rate(8, Rates(0.0, 1.0)), abs=0.003)


def test_an_unknown_link_names_the_known_ones():
    with pytest.raises(InputError, match="pcie-host-memory"):
        Composed(model="qwen3-32b", device="h100-sxm", tp=2, link="pcie").build()


@pytest.mark.parametrize(("left_out", "field"), [("bandwidth", "bandwidth"), ("latency", "latency")])
def test_the_missing_key_is_named(left_out, field):
    with pytest.raises(InputError) as caught:
        link(**{left_out: None})
    assert str(caught.value).startswith(f"{field}: expected latency and bandwidth")


def test_an_inline_link_is_the_same_formula_as_a_file(tmp_path):
    inline = {key: MINE[key] for key in ("latency", "latency_per_doubling", "bandwidth")}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(MINE))
    stats = StepStats(decode_seqs=16, decode_ctx=1600, decode_ctx_max=100, sampled=16)
    models = [Composed(model="qwen3-32b", device="h100-sxm", tp=8, link=link).build()
              for link in (inline, str(tmp_path / "mine.yaml"))]
    ours, theirs = (model.terms_ns(stats)["all_reduce"] for model in models)
    assert ours == pytest.approx(theirs)


def test_a_latency_without_a_unit_is_too_long_to_be_one():
    with pytest.raises(InputError, match="latency"):
        link(latency=18)
