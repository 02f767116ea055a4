"""What was used how much: by hand, in scenarios where a link is the bottleneck and where nothing is, and over time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_records import MS, by_hand

from hermes.api import open_run, simulate
from hermes.core.record import MachineInfo
from hermes.network import LinkUse
from hermes.results.figures.utilisation import _busy_by, bottlenecks, resource_uses
from hermes.results.files.export import write_results
from hermes.results.results import Results


def scenario(bandwidth: str, rate: float = 20.0) -> dict[str, Any]:
    """Four clients prefill, four decode; all KV goes over one link between two switches. 2 GB a request."""
    memory = {"num_blocks": 4000, "kv_bytes_per_token": 2_000_000}
    hardware = {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"}
    return {
        "workload": {"requests": 200, "arrivals": {"kind": "poisson", "rate": rate},
                     "lengths": {"kind": "fixed", "prompt": 1000, "output": 2}},
        "clients": [
            {"name": role, "count": 4, "role": role, "hardware": hardware, "memory": memory}
            for role in ("prefill", "decode")
        ],
        "network": {
            "kind": "topology", "nodes": ["left", "right"],
            "links": [{"a": "left", "b": "right", "bandwidth": bandwidth}],
            "attach": {"prefill": {"to": "left", "bandwidth": "400 GB/s"},
                       "decode": {"to": "right", "bandwidth": "400 GB/s"}},
        },
    }


def test_a_link_that_is_the_bottleneck_is_named(tmp_path: Path) -> None:
    results = simulate(scenario("20 GB/s"))          # 40 GB/s are asked of it
    found = results.summary["utilisation"]["bottlenecks"]
    assert list(found) == ["link left -> right"]
    assert 0.95 < found["link left -> right"]["utilisation"] <= 1.0
    assert "link left -> right" in results.to_text(verbose=True)
    binds = results.summary["binds"]
    assert (binds["what"], binds["where"]) == ("link", "left -> right")
    assert binds["share"] > 0.95
    assert "link of left -> right" in results.to_text()
    links = results.links.set_index("name")
    assert links.loc["left -> right", "bytes"] == pytest.approx(200 * 2e9)
    assert links.loc["right -> left", "bytes"] == 0
    assert links.loc["left -> right", "full_s"] == pytest.approx(links.loc["left -> right", "busy_s"])
    write_results(results, tmp_path)
    stored = open_run(tmp_path)
    assert stored.utilisation.equals(results.utilisation)
    assert stored.summary["utilisation"] == results.summary["utilisation"]


def test_no_bottleneck_where_there_is_none() -> None:
    results = simulate(scenario("400 GB/s", rate=5.0))
    assert results.summary["utilisation"]["bottlenecks"] == {}
    assert results.summary["binds"]["what"] == "arrivals"
    assert "bottlenecks" not in results.to_text(verbose=True)
    top = results.summary["utilisation"]["most_used"]["link"]
    assert top["name"] == "left -> right"
    window = results.summary["makespan_s"]
    assert top["utilisation"] == pytest.approx(200 * 2e9 / (400e9 * window))
    assert top["utilisation"] <= top["peak"] < 0.95


def test_a_link_that_is_full_while_requests_arrive_is_seen_by_its_peak() -> None:
    """A burst, then nothing but one late request: on the whole the link is idle."""
    two = scenario("20 GB/s")
    late = {"name": "late", "requests": 1, "arrivals": {"kind": "uniform", "rate": 0.001},
            "lengths": two["workload"]["lengths"]}
    two["workload"] = [{"name": "burst", **two["workload"], "requests": 2000}, late]
    used = simulate(two).summary["utilisation"]["bottlenecks"]["link left -> right"]
    assert used["utilisation"] < 0.9
    assert used["peak"] > 0.95
    assert not used["whole_window"]


def test_by_hand() -> None:
    """The window is 100 to 400 ms, in parts of 15 ms."""
    record = by_hand()
    times = (100 * MS, 115 * MS, 400 * MS)
    record.links = [LinkUse("a -> b", 1000.0, 240, 250 * MS, 100 * MS, times, (0.0, 15.0, 240.0))]
    record.machines = [MachineInfo(2, 45 * MS, 30.0 * MS, 15.0 * MS)]
    uses = {f"{use.kind} {use.name}": use for use in resource_uses(record)}
    link = uses["link a -> b"]
    assert (link.num_bytes, link.utilisation, link.peak) == pytest.approx((240, 0.8, 1.0))
    assert uses["machine rag: cores"].utilisation == pytest.approx(0.1)
    assert uses["machine rag: memory bandwidth"].utilisation == pytest.approx(0.05)
    # client 0: 100 to 130 and 210 to 250; client 1: 290 to 320, 330 to 350; client 2: its stage 115 to 150
    for name, busy_ms, peak in (("llm-a", 70, 1.0), ("llm-b", 50, 1.0), ("rag", 35, 1.0)):
        use = uses[f"client {name}"]
        assert (use.busy_s, use.utilisation, use.peak) == pytest.approx((busy_ms / 1e3, busy_ms / 300, peak))
    assert [use.name for use in bottlenecks(list(uses.values()))] == ["a -> b"]   # clients' peaks do not count
    # as the summary of clients has it
    for name, client in Results(record).summary["clients"].items():
        assert client["utilisation"] == pytest.approx(uses[f"client {name}"].utilisation)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=20),
       st.lists(st.integers(-5, 80), min_size=1, max_size=8))
def test_busy_time_is_the_union_of_intervals(intervals: list[tuple[int, int]], times: list[int]) -> None:
    start = np.array([a for a, _ in intervals], dtype=np.int64)
    end = start + np.array([length for _, length in intervals], dtype=np.int64)
    covered = {t for a, b in zip(start.tolist(), end.tolist(), strict=True) for t in range(a, b)}
    times.sort()
    busy = _busy_by(np.array(times, dtype=np.float64), start, end)
    assert busy.tolist() == [sum(t < time for t in covered) for time in times]
    assert all(a <= b for a, b in pairwise(busy.tolist()))
