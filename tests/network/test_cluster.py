"""Boxes, racks and several racks: who is put where, over which links, and what does not fit."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simpy.core import Environment

from hermes.cli import main
from hermes.errors import InputError
from hermes.network import Network, Site
from hermes.network.cluster import HgxBox, MultiRack, Rack
from hermes.network.summary import link_rows, simplified
from hermes.network.topology import TopologyNetwork
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.testing.network import NetworkContract


def built(component: Any, sites: list[Site]) -> TopologyNetwork:
    network: Network = component.build_at(Environment(), sites)
    assert isinstance(network, TopologyNetwork)
    network.check([site.name for site in sites])
    return network


def llm(count: int, gpus: int = 2, platform: str = "") -> list[Site]:
    return [Site(f"llm-{i}", platform.format(i=i), gpus) for i in range(count)]


class TestBox(NetworkContract):
    def make(self) -> HgxBox:
        return HgxBox()


class TestRack(NetworkContract):
    def make(self) -> Rack:
        return Rack(gpus_per_box=2)


class TestMultiRack(NetworkContract):
    def make(self) -> MultiRack:
        return MultiRack(gpus_per_box=1, boxes_per_rack=2, oversubscription=2.0)


def test_a_box_joins_its_gpus_by_nvlink_and_its_host_by_pcie() -> None:
    network = built(HgxBox(), [*llm(2), Site("wide", "", 4), Site("cpu", "", 0)])
    assert network.path("llm-0", "wide") == ["llm-0", "box/nvlink", "wide"]
    assert network.path("cpu", "llm-1") == ["box/host", "llm-1"]
    # two H100 have 2 x 450 GB/s of NVLink and 2 x 64 GB/s of PCIe; bytes / bandwidth + a microsecond a link
    assert network.estimate_ns("llm-0", "wide", 900_000_000) == 1_000_000 + 2_000
    assert network.estimate_ns("cpu", "llm-1", 128_000_000) == 1_000_000 + 1_000


def test_a_rack_gives_each_client_the_nics_of_its_gpus() -> None:
    network = built(Rack(), [*llm(8), Site("kv", "", 0)])
    assert network.path("llm-0", "llm-3") == ["llm-0", "rack/box0/nvlink", "llm-3"]
    assert network.path("llm-3", "llm-4") == ["llm-3", "rack", "llm-4"]
    assert network.estimate_ns("llm-3", "llm-4", 100_000_000) == 1_000_000 + 4_000    # 2 x 50 GB/s
    assert network.estimate_ns("kv", "llm-4", 50_000_000) == 1_000_000 + 4_000
    few = built(Rack(nics_per_box=4), llm(8))
    assert few.estimate_ns("llm-3", "llm-4", 50_000_000) == 1_000_000 + 4_000         # half the NICs


def test_uplinks_are_what_the_nics_of_a_full_rack_have_over_the_oversubscription() -> None:
    sites = [*llm(128), *(Site(f"kv-{i}", "", 0) for i in range(4))]
    network = built(MultiRack(racks=4, oversubscription=4.0), sites)
    assert network.path("llm-0", "llm-127") == ["llm-0", "rack0", "spine", "rack3", "llm-127"]
    uplinks = [row for row in link_rows(network) if row.b == "spine"]
    assert [(row.links, row.bandwidth) for row in uplinks] == [(4, 8 * 8 * 50e9 / 4)]
    assert [network.path(f"kv-{i}", f"llm-{32 * i}")[1] for i in range(4)] == [f"rack{i}" for i in range(4)]
    assert MultiRack(uplink=128e9).uplink_bandwidth == 128e9
    # 4 x 64 GPUs that all send over the spine share the uplink
    assert network.estimate_ns("llm-0", "llm-127", 100_000_000) == 1_000_000 + 8_000


def test_a_platform_names_the_rack_and_the_box() -> None:
    sites = [Site("a", "east", 4), Site("b", "east", 8), Site("c", "west/x", 2), Site("host", "west/x", 0),
             Site("d", "east/box0", 4)]
    layout = MultiRack().place(sites)
    assert {rack: [box.name for box in boxes] for rack, boxes in layout.boxes.items()} == {
        "east": ["east/box0", "east/box1"], "west": ["west/x"]}
    network = built(MultiRack(), sites)
    assert network.path("a", "d") == ["a", "east/box0/nvlink", "d"]
    assert network.path("host", "c") == ["west/x/host", "c"]
    assert network.path("host", "b") == ["west/x/host", "west", "spine", "east", "b"]


@pytest.mark.parametrize(("component", "sites", "field"), [
    (HgxBox(), llm(5), "gpus_per_box"),
    (Rack(), llm(1, 16), "gpus_per_box"),
    (Rack(), llm(5, 2, "one"), "gpus_per_box"),
    (Rack(boxes_per_rack=1), llm(5), "boxes_per_rack"),
    (MultiRack(racks=1, boxes_per_rack=2), llm(9), "racks"),
    (MultiRack(boxes_per_rack=1), llm(5, 2, "r0"), "boxes_per_rack"),
    (Rack(), [Site("rack"), Site("b")], "clients"),
])
def test_clients_that_do_not_fit(component: Any, sites: list[Site], field: str) -> None:
    with pytest.raises(InputError) as error:
        component.build_at(Environment(), sites)
    assert error.value.field == field


@pytest.mark.parametrize("fields", [
    {"uplink": 1e9, "oversubscription": 2.0}, {"nic_latency": "100 ns"}, {"gpus_per_box": 0}, {"nic": 0},
    {"oversubscription": 0.0},
])
def test_descriptions_that_make_no_sense(fields: dict[str, Any]) -> None:
    with pytest.raises((InputError, ValueError)):
        MultiRack.model_validate({"kind": "multi_rack", **fields})


@pytest.mark.feature("Routing and networks", (
    "Networks `hgx_box`, `rack`, `multi_rack`; `hermes network links`, `hermes network draw`"))
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 2, 4, 8]), st.sampled_from(["", "", "", "r0", "r1/b", "r2"])),
             min_size=1, max_size=30),
    st.integers(1, 4), st.sampled_from([None, 2, 3]),
)
def test_everybody_is_somewhere_once_and_no_box_is_overfull(
    clients: list[tuple[int, str]], boxes_per_rack: int, racks: int | None,
) -> None:
    sites = [Site(f"c-{i}", platform, gpus) for i, (gpus, platform) in enumerate(clients)]
    component = MultiRack(boxes_per_rack=boxes_per_rack, racks=racks)
    try:
        network = built(component, sites)
    except InputError as error:
        assert error.field in ("gpus_per_box", "boxes_per_rack", "racks")
        return
    layout = component.place(sites)
    boxes = [box for inside in layout.boxes.values() for box in inside]
    placed = [*(site for box in boxes for site in box.gpu_clients + box.host_clients),
              *(site for inside in layout.servers.values() for site in inside)]
    assert sorted(placed) == sorted(sites)
    assert all(box.gpus <= 8 for box in boxes)
    assert all(len(inside) <= boxes_per_rack for inside in layout.boxes.values())
    rack_of = {site.name: box.name.split("/")[0] for box in boxes for site in box.gpu_clients + box.host_clients}
    rack_of |= {site.name: rack for rack, inside in layout.servers.items() for site in inside}
    for site in sites:
        assert not site.platform or rack_of[site.name] == site.platform.split("/")[0]
    for a, b in list(combinations(rack_of, 2))[:40]:
        assert ("spine" in network.path(a, b)) == (rack_of[a] != rack_of[b])


def test_the_picture_shows_what_is_alike_once_and_loses_nothing() -> None:
    network = built(MultiRack(racks=4), llm(128))
    graph, middle = simplified(network)
    assert middle == "spine"
    assert len(graph) == 4        # spine, a rack, the clients of a box, its NVLink switch
    shown = sum(len(data["members"]) * data["times"] for data in graph.nodes.values())
    assert shown == len(network.graph)


def test_a_scenario_of_128_clients_needs_five_lines() -> None:
    base: dict[str, Any] = {
        "workload": {"requests": 40, "arrivals": {"kind": "poisson", "rate": 40.0},
                     "lengths": {"kind": "fixed", "prompt": 2000, "output": 5}},
        "clients": [
            {"name": role, "count": 64, "role": role, "model": "llama-2-70b",
             "hardware": {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp2"},
             "memory": {"num_blocks": 1000, "kv_bytes_per_token": 327680}}
            for role in ("prefill", "decode")
        ],
        "network": {"kind": "multi_rack", "racks": 4, "oversubscription": 8.0},
    }
    simulation = build(load_scenario(base))
    record = simulation.run()
    assert (record.status == 1).all()
    uplinks = [use for use in simulation.network.links() if use.name.endswith("-> spine")]
    assert sum(use.num_bytes for use in uplinks) == int(record.transfers["bytes"].sum())   # decodes are racks 2 and 3


def test_commands_list_and_draw_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["network", "links", "network/multi-rack", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert sum(row["links"] for row in rows) == 128 * 2 + 4
    assert main(["network", "draw", "network/multi-rack", "-o", str(tmp_path / "x.dot")]) == 0
    assert (tmp_path / "x.dot").read_text().count("4 alike") == 2
    capsys.readouterr()
    assert main(["network", "draw", "network/multi-rack"]) == 0
    shown = capsys.readouterr().out
    assert 'n4["spine"]' in shown
    assert 'n4 ---|"100 GB/s<br>2 us"| n2' in shown, "from the middle outwards"
    assert main(["network", "links", "batching/chunked"]) == 2
    assert "network.kind" in capsys.readouterr().err
