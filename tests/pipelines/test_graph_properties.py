"""Random graphs over random clients: every stage once, when its parents are done; no wait that nobody accounts for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_reference import FIRST_PROMPT, Reader, Stages, graphs, rows_of, walk
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.core.record import RunRecord
from hermes.scenario import load_scenario
from hermes.scenario.build import build

HARDWARE = {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"}


def engine(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "model": "llama-3.1-8b", "hardware": HARDWARE, "memory": {"num_blocks": 60}, **more}


@st.composite
def scenarios(draw: st.DrawFn, stages: Stages) -> dict[str, Any]:
    """Clients of all shapes for a graph: services split over machines, engines with little room, a network or none."""
    kinds = [node["kind"] for _, node in walk(stages) if node["kind"] != "generate"]
    groups: dict[int, dict[str, Any]] = {}
    for i, kind in enumerate(kinds):
        service = {"kind": "per_item", "fixed": 0.0005 * (i % 3), "per_item": 0.001 * (i + 1)}
        groups.setdefault(draw(st.integers(0, 2)), {})[kind] = service
    clients: list[dict[str, Any]] = [
        {"kind": draw(st.sampled_from(["rag", "processing"])), "name": f"m{number}", "count": draw(st.integers(1, 2)),
         "cores": draw(st.integers(1, 4)), "serves": services}
        for number, services in sorted(groups.items())
    ]
    scheduler = draw(st.sampled_from([
        {"kind": "chunked", "max_num_seqs": 2}, {"kind": "chunked", "max_num_batched_tokens": 48},
        {"kind": "continuous"}, {"kind": "static"},
    ]))
    if scheduler["kind"] != "static" and draw(st.booleans()):
        clients += [engine("p", role="prefill", scheduler=scheduler), engine("d", role="decode", scheduler=scheduler)]
    else:
        clients.append(engine("e", count=draw(st.integers(1, 2)), scheduler=scheduler))
    router = draw(st.sampled_from(["round_robin", "least_loaded", "power_of_two", "locality"]))
    network = draw(st.sampled_from([{"kind": "ideal"}, {"kind": "link", "bandwidth": 1e9, "latency": 0.001}]))
    return scenario(stages, clients) | {"seed": draw(st.integers(0, 5)), "router": {"kind": router}, "network": network}


def scenario(stages: Stages, clients: list[dict[str, Any]], requests: int = 6) -> dict[str, Any]:
    return {
        "workload": {
            "requests": requests, "arrivals": {"kind": "poisson", "rate": 80},
            "lengths": {"kind": "fixed", "prompt": 20, "output": 3}, "pipeline": "g",
        },
        "pipelines": {"g": {"stages": stages}}, "clients": clients,
    }


def run(data: dict[str, Any]) -> RunRecord:
    checked = load_scenario(data)
    return build(checked).run()


def same(one: RunRecord, other: RunRecord) -> bool:
    tables = ("stages", "transfers")
    return all(
        np.array_equal(getattr(one, table)[name], getattr(other, table)[name])
        for table in tables for name in getattr(one, table)
    ) and np.array_equal(one.finish_ns, other.finish_ns) and one.reject_reasons == other.reject_reasons


@quick_and_full(8, 60)
@given(data=st.data(), stages=graphs())
def test_a_graph_is_kept_to_whoever_serves(data, stages):
    """Each stage exactly once, handed over the moment its parents are done; the request ends with its last stage; the
    stepping mode changes nothing, and neither does running it again."""
    chosen = data.draw(scenarios(stages))
    record = run(chosen)
    assert (record.status == 1).all(), record.reject_reasons
    for rows, arrival, finish in zip(rows_of(record, stages), record.arrival_ns, record.finish_ns, strict=True):
        reader = Reader(rows)
        assert reader.through(stages, int(arrival)) == finish
        assert not any(reader.left.values()), "stages that no node asked for"
    assert same(record, run(chosen))
    assert same(record, run({**chosen, "stepping": "every_step"}))


@quick_and_full(13, 40)
@given(stages=graphs(generations=False, chance=False), slow=st.booleans())
def test_alone_a_request_takes_as_long_as_its_longest_path(stages, slow):
    """Where nobody waits, latency is the largest sum of transfers and service times over all paths."""
    kinds = [node["kind"] for _, node in walk(stages)]
    clients: list[dict[str, Any]] = [
        {"kind": "processing", "name": f"m{i}", "cores": 64, "serves": {kind: {"kind": "per_item", "per_item": 0.002}}}
        for i, kind in enumerate(kinds)
    ]
    network = {"kind": "link", "bandwidth": 1e8 if slow else 1e10, "latency": 0.001}
    record = run(scenario(stages, clients, requests=1) | {"network": network})
    moving_ns = 1_000_000 + round(10_000_000 / network["bandwidth"] * 1e9)
    done: dict[str, int] = {}
    (rows,) = rows_of(record, stages)
    for name, node in stages.items():
        before = max((done[parent] for parent in node["after"]), default=0)
        moves = node["input_bytes"] and node["after"]   # each from another client
        longest = before + (moving_ns if moves else 0) + 2_000_000
        done[name] = before if node.get("background") else longest
        for row in rows[name]:
            assert row.start - row.assigned == (moving_ns if moves else 0), "a wait though nobody else is there"
    assert record.finish_ns[0] - record.arrival_ns[0] == max(done.values())


@quick_and_full(13, 40)
@given(data=st.data(), stages=graphs(chance=False))
def test_no_path_takes_longer_than_its_request(data, stages):
    """And the path that decided takes as long as the request less its waits."""
    record = run(data.draw(scenarios(stages)))
    for rows, arrival, finish in zip(rows_of(record, stages), record.arrival_ns, record.finish_ns, strict=True):
        longest: dict[str, int] = {}
        for name, node in stages.items():
            before = max((longest[parent] for parent in node["after"]), default=0)
            served = max(row.end - row.start for row in rows[name])
            longest[name] = before if node.get("background") else before + served
        assert max(longest.values()) <= finish - arrival
        at, waits, path = int(finish), 0, 0
        while at > arrival:   # back along those that ended when the next was handed over
            row = next(row for name, node in stages.items() if not node.get("background") for row in rows[name]
                       if row.end == at)
            waits, path, at = waits + row.start - row.assigned, path + row.end - row.start, row.assigned
        assert (at, path) == (arrival, finish - arrival - waits)


@quick_and_full(8, 25)
@given(data=st.data(), stages=graphs(chance=False))
def test_nothing_is_lost_where_some_never_fit(data, stages):
    """A generation that never fits rejects its request, with the reason; all others are served as the graph says."""
    too_long = {"kind": "generate", "prompt": "output * 10000", "output": 2, "copies": 1, "input_bytes": 0,
                "after": [], "probability": 0.4}
    chosen = data.draw(scenarios(stages))
    chosen["pipelines"] = {"g": {"stages": {**stages, "huge": too_long}}}
    chosen["workload"] = chosen["workload"] | {"requests": 12}
    record = run(chosen)
    assert set(np.unique(record.status)) <= {1, 2}
    assert sorted(record.reject_reasons) == np.flatnonzero(record.status == 2).tolist()
    assert all("block" in reason or "token" in reason for reason in record.reject_reasons.values())
    for rows, arrival, finish, status in zip(
        rows_of(record, stages), record.arrival_ns, record.finish_ns, record.status, strict=True,
    ):
        if status == 1:
            reader = Reader(rows)
            assert reader.through(stages, int(arrival)) == finish
            assert not any(reader.left.values())


def test_the_reader_notices_a_stage_that_ran_twice_or_late():
    stages: Stages = {
        "n0": {"kind": "k0", "after": [], "copies": 1, "input_bytes": 0},
        "n1": {"kind": "generate", "after": ["n0"], "copies": 1, "input_bytes": 0, "prompt": FIRST_PROMPT + 1,
               "output": 2},
    }
    services = {"k0": {"kind": "per_item", "per_item": 0.001}}
    machine = {"kind": "processing", "name": "m", "cores": 1, "serves": services}
    record = run(scenario(stages, [machine, engine("e")], requests=1))
    (rows,) = rows_of(record, stages)
    assert Reader(rows).through(stages, int(record.arrival_ns[0])) == record.finish_ns[0]
    late = rows | {"n1": [rows["n1"][0]._replace(assigned=rows["n1"][0].assigned + 1)]}
    with pytest.raises(AssertionError, match="n1 did not run"):
        Reader(late).through(stages, int(record.arrival_ns[0]))
    twice = Reader(rows | {"n0": rows["n0"] * 2})
    with pytest.raises(AssertionError):
        twice.through(stages, int(record.arrival_ns[0]))


def test_what_a_request_draws_does_not_depend_on_who_ends_first():
    """Two sides of a graph with chances on both: how fast each side is served changes nothing of what runs."""
    stages: Stages = {}
    for side in ("a", "b"):
        stages[f"{side}1"] = {"kind": f"{side}1"}
        stages[f"{side}2"] = {"kind": f"{side}2", "after": f"{side}1", "probability": 0.5}
        stages[f"{side}3"] = {"kind": "loop", "after": f"{side}2", "again": 0.5, "max_times": 3,
                              "stages": {f"{side}4": {"kind": f"{side}4", "probability": 0.5}}}

    def ran(fast: str) -> list[list[str]]:
        services = {kind: {"kind": "per_item", "per_item": 0.001 if kind[0] == fast else 0.003}
                    for kind in ("a1", "a2", "a4", "b1", "b2", "b4")}
        clients = [{"kind": "processing", "name": "m", "cores": 64, "serves": services}]
        record = run(scenario(stages, clients, requests=40))
        kinds = [record.stage_kinds[code] for code in record.stages["kind"]]
        return [sorted(kind for kind, request in zip(kinds, record.stages["request"], strict=True) if request == i)
                for i in range(40)]

    assert ran("a") == ran("b")
    assert len({tuple(kinds) for kinds in ran("a")}) > 8


def test_a_background_stage_in_a_loop_holds_nothing_up():
    stages = {
        "loop": {"kind": "loop", "again": 1, "max_times": 3, "stages": {
            "a": {"kind": "a"}, "keep": {"kind": "keep", "after": "a", "background": True}}},
        "end": {"kind": "end", "after": "loop"},
    }
    services = {kind: {"kind": "per_item", "per_item": seconds} for kind, seconds in (("a", 0.001), ("end", 0.001),
                                                                                     ("keep", 1.0))}
    record = run(scenario(stages, [{"kind": "processing", "name": "m", "cores": 64, "serves": services}], requests=1))
    assert record.finish_ns[0] - record.arrival_ns[0] == 4_000_000
    assert [record.stage_kinds[code] for code in record.stages["kind"]].count("keep") == 3
