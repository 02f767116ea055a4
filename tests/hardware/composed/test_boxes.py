"""Engines of several boxes: where their devices lie, what collectives cost, which links are assumed and said so."""

import numpy as np
import pytest
import yaml

from hermes.cli import main
from hermes.explore.size import size
from hermes.hardware.base import StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.composed.boxes import crossings, spread
from hermes.hardware.composed.kernel_tables import load_kernels
from hermes.hardware.composed.reduce_forms import nccl_times
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.engines import reduce_rules
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.fitted.operator_curves import rising
from hermes.hardware.info import hardware_info
from hermes.hardware.roofline import Roofline

NAMING = "hardware: {kind: composed, link: ...}"
DECODES = StepStats(decode_seqs=16, decode_ctx=16_000, decode_ctx_max=1000, sampled=16)
PORT = {"latency": "20 us", "latency_per_doubling": "10 us", "bandwidth": "45 GB/s"}   # infiniband-ndr


def built(**options):
    return Composed(**options).build()


def told(hardware):
    return [link.text for link in hardware_info(hardware).assumed_links]


@pytest.mark.parametrize(("members", "width", "box", "lie"), [
    (8, 1, 8, (8, 1)), (16, 1, 8, (8, 2)), (12, 1, 8, (6, 2)), (64, 1, 72, (64, 1)), (16, 2, 8, (4, 4)),
    (4, 8, 8, (1, 4)), (2, 16, 8, (1, 2)),
])
def test_groups_fill_boxes_evenly(members, width, box, lie):
    assert spread(members, width, box) == lie


def test_stages_lie_side_by_side():
    assert crossings(4, 4, 8) == [False, True, False]
    assert crossings(2, 8, 8) == [True]
    assert crossings(3, 16, 8) == [True, True]
    assert crossings(4, 1, 8) == [False] * 3


@pytest.mark.parametrize(("name", "domain"), [
    ("h100-sxm", 8), ("h200", 8), ("b200", 8), ("a100-80gb", 8), ("mi300x", 8), ("gb200", 72), ("l40s", 1),
    ("rtx-4090", 1),
])
def test_a_device_says_how_many_its_link_joins(name, domain):
    assert load_device(name).domain == domain


def test_every_shipped_card_has_a_domain():
    assert [name for name in names_in("devices") if load_device(name).type == "gpu" and not load_device(name).domain] \
        == []


def test_an_all_reduce_of_two_boxes_by_hand():
    """70B, TP16 on H100: 160 all-reduces of 16 rows of 8,192 values; each is NCCL's of 8 devices (vLLM's own kernel
    does not cross boxes), and one of an eighth of the bytes between two boxes."""
    hardware = built(model="llama-3.1-70b", device="h100-sxm", tp=16)
    size = 16 * 8192 * 2
    forms = reduce_rules("vllm-0.24").forms(load_device("h100-sxm"), 8)
    sizes, ns = nccl_times(load_kernels("h100-sxm"), 8, forms, captured=True)
    between = 20e-6 + size / 8 / 45e9   # two boxes: 2 (m - 1) / m = 1
    assert hardware.terms_ns(DECODES)["all_reduce"] == pytest.approx(
        160 * (np.interp(size, sizes, ns) + between * 1e9))
    one_box = built(model="llama-3.1-70b", device="h100-sxm", tp=8)
    assert hardware.terms_ns(DECODES)["all_reduce"] > one_box.terms_ns(DECODES)["all_reduce"] + 160 * 20e3
    assert len(told(hardware)) == 1
    assert NAMING in told(hardware)[0]
    assert told(one_box) == []


def test_the_named_link_is_the_one_between_boxes():
    named = built(model="llama-3.1-70b", device="h100-sxm", tp=16, link=PORT)
    assumed = built(model="llama-3.1-70b", device="h100-sxm", tp=16)
    assert told(named) == []
    assert named.terms_ns(DECODES) == assumed.terms_ns(DECODES)
    assert "given link between 2" in named.sources_of()["all_reduce"]
    slow = built(model="llama-3.1-70b", device="h100-sxm", tp=16, link=PORT | {"latency": "50 us"})
    assert slow.terms_ns(DECODES)["all_reduce"] - named.terms_ns(DECODES)["all_reduce"] == pytest.approx(160 * 30e3)


def test_a_link_measured_with_the_whole_group_is_taken_as_it_is(tmp_path):
    mine = {"format": "hermes-interconnect/1", "name": "mine", "sources": ["made up"], "latency": "1 us",
            "bandwidth": "40 GB/s", "measured": [{"ranks": 16, "bytes": [1000, 10**9], "seconds": [5e-5, 1e-1]}]}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(mine))
    hardware = built(model="llama-3.1-70b", device="h100-sxm", tp=16, link=str(path))
    expected = np.interp(16 * 8192 * 2, [0, 1000, 1e9], [5e4, 5e4, 1e8])
    assert hardware.terms_ns(DECODES)["all_reduce"] == pytest.approx(160 * expected)


def test_a_rack_is_one_box():
    hardware = built(model="llama-3.1-70b", device="gb200", tp=64)
    assert told(hardware) == []
    assert "box" not in hardware.sources_of()["all_reduce"]


@pytest.mark.parametrize(("parallel", "near"), [({"dp": 16, "ep": 16}, 8), ({"tp": 2, "dp": 8, "ep": 16}, 4)])
def test_experts_over_two_boxes_by_hand(parallel, near):
    """DeepSeek-V3: an all-gather inside each box, and half an all-reduce of each device's share between them."""
    hardware = built(model="deepseek-v3", device="h200", **parallel)
    size = 16 * parallel["dp"] * 7168 * 2
    sizes, ns = load_kernels("h200").collective("all_gather", near)
    each = np.interp(size, sizes, rising(ns)) + (20e3 + size / near / 45e9 * 1e9) / 2
    assert hardware.terms_ns(DECODES)["dispatch"] == pytest.approx(58 * each)
    assert NAMING in told(hardware)[0]


def test_tensor_parallel_groups_inside_a_box_keep_its_link():
    wide = built(model="deepseek-v3", device="h200", tp=2, dp=8, ep=16, link=PORT)
    alone = built(model="deepseek-v3", device="h200", tp=2)
    assert wide.terms_ns(DECODES)["all_reduce"] == alone.terms_ns(DECODES)["all_reduce"]


def test_stages_cross_boxes_where_they_do():
    """Four stages of four H100: two boxes, so one of three hops takes the network."""
    hardware = built(model="llama-3.1-405b", device="h100-sxm", tp=4, pp=4, dtype="fp8")
    size = 16 * 16384 * 2 / 4
    sizes, ns = load_kernels("h100-sxm").all_reduce(2, captured=False)
    near, far = np.interp(size, sizes, ns), 20e3 + size / 45
    assert hardware.terms_ns(DECODES)["hops"] == pytest.approx(2 * near + far)
    stages = hardware.stages_ns(DECODES)
    assert stages[2] - stages[1] == pytest.approx(far - near, abs=2)   # 126 layers: 31, 32, 32, 31
    assert sum(stages) == hardware.step_ns(DECODES)


def test_cards_over_pcie_say_that_their_link_is_assumed():
    assert "pcie-host-memory" in told(built(model="llama-3.1-70b", device="l40s", tp=4))[0]
    assert told(built(model="llama-3.1-70b", device="l40s", tp=4, link="pcie-5-peer")) == []
    assert told(built(model="llama-3.1-8b", device="l40s")) == []
    links = hardware_info(built(model="llama-3.1-70b", device="l40s", tp=16)).assumed_links
    assert [(link.link, link.key) for link in links] == [
        ("pcie-host-memory", "device.link"), ("infiniband-ndr", "hardware.link")]


def test_the_roofline_crosses_boxes_too():
    one, two = (Roofline(model="llama-3.1-70b", device="mi300x", tp=tp).build() for tp in (8, 16))
    near, far = one.terms_ns(DECODES)["all_reduce"], 160 * (20e3 + 16 * 8192 * 2 / 8 / 45)
    assert two.terms_ns(DECODES)["all_reduce"] == pytest.approx(near + far, rel=1e-6)
    assert NAMING in told(two)[0]


@pytest.mark.drawn
@pytest.mark.parametrize("command", ["run", "validate", "explain"])
@pytest.mark.parametrize(("model", "device", "parallel"), [
    ("llama-3.1-405b", "h100-sxm", {"tp": 16}), ("deepseek-v3", "h200", {"dp": 16, "ep": 16})])
def test_commands_warn_in_one_line(command, model, device, parallel, tmp_path, capsys):
    client = {"model": model, "device": device, "parallel": parallel}
    text = {"workload": {"requests": 3, "arrivals": {"kind": "poisson", "rate": 1},
                         "lengths": {"kind": "independent", "prompt": 100, "output": 3}}, "clients": [client]}
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(text))
    assert main([command, str(path)]) == 0
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert NAMING in error
    assert "infiniband-ndr" in error
    client["hardware"] = {"kind": "composed", "link": "infiniband-ndr"}
    path.write_text(yaml.safe_dump(text))
    assert main([command, str(path)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.long
def test_sizing_says_which_links_it_assumes_and_keeps_a_named_one():
    text = {"workload": {"requests": 100, "arrivals": {"kind": "poisson", "rate": 2},
                         "lengths": {"kind": "independent", "prompt": 500, "output": 20}},
            "clients": [{"model": "llama-3.1-70b"}], "slo": {"ttft": "1 s", "tpot": "60 ms"}}
    found = size(text, devices=["h100-sxm"], tps=[16], layouts=["mixed"], workers=0)
    assert NAMING in found.assumed[0]
    named = [{"model": "llama-3.1-70b", "hardware": {"kind": "composed", "link": "infiniband-ndr"}}]
    kept = size(text | {"clients": named}, devices=["h100-sxm"], tps=[16], layouts=["mixed"], workers=0)
    assert kept.assumed == []
    assert kept.settings(kept.ranked[0])["clients"][0]["hardware"]["link"] == "infiniband-ndr"
