"""Random groups of ranks and stages with failures of every kind, of links, too: nothing leaks, steps give the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hand_parts
import pytest
from conservation import assert_conserved, assert_nothing_leaks, assert_steps_give_the_same, ran
from hand_parts import ask, s
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full
from test_groups_by_hand import GroupConfig, group

LAST = 60_000   # ns in which things happen


@pytest.fixture(scope="module", autouse=True)
def _hand_parts() -> Iterator[None]:
    with hand_parts.registered(hand_group=GroupConfig):
        yield


times = st.integers(1, LAST).map(s)
spans = st.integers(1, 20_000).map(s)


@st.composite
def failures(draw: st.DrawFn, zones: bool) -> dict[str, Any]:
    kinds = ["crash", "hang", "straggler", "reclaim", "device", "node", *(["zone"] if zones else [])]
    kind = draw(st.sampled_from(kinds))
    own: dict[str, Any] = {"kind": kind}
    if kind != "zone":
        own["replica"] = draw(st.integers(0, 1))
    elif draw(st.booleans()):
        own["zone"] = "z0"
    if (kind == "zone" and "zone" not in own) or draw(st.booleans()):
        own["every"] = {"mean": s(draw(st.integers(5_000, 200_000)))}
    else:
        own["at"] = draw(times)
    if kind in ("hang", "straggler"):
        own["lasts"] = draw(spans)
    if kind in ("device", "node", "zone"):
        own["repair"] = draw(spans)
    if kind in ("node", "zone"):
        own |= {"notice": draw(spans), "evict": draw(st.none() | spans)}
    return own | ({"factor": draw(st.floats(1, 4))} if kind == "straggler" else {}) | (
        {"notice": draw(spans)} if kind == "reclaim" else {})


@st.composite
def clients(draw: st.DrawFn, zones: bool, **more: Any) -> dict[str, Any]:
    """Return a group of two or three slots with failures."""
    fleet = {
        "start": draw(st.integers(1, 2)), "start_up": {"total": s(draw(st.integers(0, 9_000)))},
        "failures": draw(st.lists(failures(zones), max_size=4)), "drain": {"grace": s(draw(st.integers(1, 9_000)))},
        "restarts": {"backoff": s(draw(st.integers(0, 5_000))),
                     "group_policy": draw(st.sampled_from([None, "recreate_group", "none"]))},
        "nodes": {"devices": draw(st.sampled_from([1, 2, 8]))} | ({"zone": "z{i%2}"} if zones else {}),
        "probe": {"period": s(5_000), "failures": draw(st.integers(1, 2)), "delay": s(draw(st.integers(0, 2_000))),
                  "offset": 0},
        "liveness": {"period": s(3_000), "failures": 1, "timeout": s(500), "grace": s(1_000), "offset": s(100)},
        "autoscaler": {"kind": "schedule", "changes": [
            {"at": s(at), "replicas": draw(st.integers(1, 3))} for at in sorted(draw(st.sets(
                st.integers(1, LAST), min_size=1, max_size=3)))]},
    }
    layout = draw(st.sampled_from([{"tp": 2}, {"dp": 2}, {"pp": 2}, {"dp": 2, "pp": 2}, {"dp": 3}, {}]))
    blocks = draw(st.sampled_from([60, 1000]))
    return group(fleet, **layout, count=3, blocks=blocks, **more)


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    zones, roles = draw(st.booleans()), draw(st.booleans())
    shared = {"platform": "n{i//2}"} if draw(st.booleans()) and not zones else {}
    groups = [draw(clients(zones, name=role[0], role=role, **shared)) for role in ("prefill", "decode")] if roles else [
        draw(clients(zones, **shared))]
    asks = [ask(at, draw(st.integers(1, 30)), draw(st.integers(1, 12))) | {"name": f"ask {number}"}
            for number, at in enumerate(sorted(draw(st.lists(st.integers(1, LAST), min_size=1, max_size=12))))]
    link = {"at": draw(times), "lasts": draw(spans)} | draw(st.sampled_from([{}, {"factor": 3.0}]))
    return {
        "seed": draw(st.integers(0, 99)), "workload": asks, "clients": groups, "router": {"kind": "round_robin"},
        "gateway": {"retries": draw(st.integers(0, 4)), "backoff": s(draw(st.integers(0, 500))), "begun": "restart",
                    "per_try": s(draw(st.sampled_from([20_000, 10**9]))), "queue": {"ttl": s(10**6)}},
        "network": {"kind": draw(st.sampled_from(["link", "kv_link"])), "bandwidth": 1e9,
                    "failures": [link, {"every": {"mean": s(30_000)}, "lasts": draw(spans), "factor": 2}]},
    }


@quick_and_full(25, 400)
@given(scenarios())
def test_nothing_leaks_and_steps_give_the_same(data: dict[str, Any]) -> None:
    simulation, record = ran(data)
    assert_nothing_leaks(simulation)
    assert_conserved(record)
    assert_steps_give_the_same(data, record)
    assert ran(data)[1].membership.tolist() == record.membership.tolist()
    for row in record.membership.tolist():   # the clients of a replica change together
        mates = {(one[1], one[3]) for one in record.membership.tolist()
                 if one[2] == row[2] and record.clients[one[0]].replica == record.clients[row[0]].replica != ""}
        assert not mates or (row[1], row[3]) in mates
