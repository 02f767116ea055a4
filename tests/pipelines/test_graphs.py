"""Stage graphs: every stage once, after its parents; choices, loops, joins; bad graphs in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.api import simulate
from hermes.errors import InputError
from hermes.pipelines.expressions import Amount
from hermes.pipelines.graph import Graph
from hermes.scenario import load_scenario
from hermes.scenario.build import build

LLM = {
    "name": "llm", "model": "llama-3.1-8b",
    "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
}


def scenario(stages: dict[str, Any], *, requests: int = 3, seed: int = 0, cores: int = 2) -> dict[str, Any]:
    kinds = sorted({kind for _, kind in _kinds(stages)} - {"generate"})
    services = {kind: {"kind": "per_item", "per_item": 0.001 * (i + 1)} for i, kind in enumerate(kinds)}
    clients: list[dict[str, Any]] = [LLM]
    if services:
        clients.append({"kind": "processing", "name": "cpu", "cores": cores, "serves": services})
    return {
        "name": "graph", "seed": seed,
        "workload": {
            "requests": requests, "arrivals": {"kind": "poisson", "rate": 50},
            "lengths": {"kind": "fixed", "prompt": 20, "output": 3}, "pipeline": "g",
        },
        "pipelines": {"g": {"stages": stages}}, "clients": clients,
    }


def _kinds(stages: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    for name, node in stages.items():
        found += _kinds(node.get("stages", {})) if node["kind"] == "loop" else [(name, node["kind"])]
    return found


def rows_of(data: dict[str, Any]) -> list[dict[str, list[tuple[int, int, int]]]]:
    """Per request: kind -> (assigned, start, end) of its stages. Nodes are told apart by their kind."""
    record = build(load_scenario(data)).run()
    out: list[dict[str, list[tuple[int, int, int]]]] = [{} for _ in record.arrival_ns]
    stages = record.stages
    for i in range(len(stages["request"])):
        kind = record.stage_kinds[int(stages["kind"][i])]
        times = tuple(int(stages[name][i]) for name in ("assigned_ns", "start_ns", "end_ns"))
        out[int(stages["request"][i])].setdefault(kind, []).append(times)  # type: ignore[arg-type]
    assert (record.status == 1).all()
    return out


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    """A random graph; every node has a kind of its own."""
    n = draw(st.integers(1, 7))
    stages: dict[str, Any] = {}
    for i in range(n):
        parents = draw(st.lists(st.integers(0, i - 1), unique=True, max_size=3)) if i else []
        stages[f"s{i}"] = {"kind": f"k{i}", "after": [f"s{p}" for p in parents], "copies": draw(st.integers(1, 3))}
    return stages


@pytest.mark.feature("Pipelines and services", "Graphs of stages: choices, loops, joins, background")
@quick_and_full(13, 40)
@given(stages=graphs(), cores=st.integers(1, 4), seed=st.integers(0, 3))
def test_every_stage_runs_exactly_once_after_its_parents(stages, cores, seed):
    for request in rows_of(scenario(stages, cores=cores, seed=seed)):
        for name, node in stages.items():
            mine = request[f"k{name[1:]}"]
            assert len(mine) == node["copies"]
            for parent in node["after"]:
                assert min(assigned for assigned, _, _ in mine) >= max(end for _, _, end in request[f"k{parent[1:]}"])
            # it is handed over at the moment its last parent is done: no wait that nobody accounts for
            if node["after"]:
                ready = max(end for parent in node["after"] for _, _, end in request[f"k{parent[1:]}"])
                assert {assigned for assigned, _, _ in mine} == {ready}


@quick_and_full(6, 20)
@given(stages=graphs(), cores=st.integers(1, 3))
def test_the_critical_path_is_the_latency_less_the_waits(stages, cores):
    data = scenario(stages, cores=cores)
    record = build(load_scenario(data)).run()
    rows = rows_of(data)
    for request, arrival, finish in zip(rows, record.arrival_ns, record.finish_ns, strict=True):
        node, end, waits, path = None, int(finish), 0, 0
        while node is None or stages[node]["after"]:
            names = list(stages) if node is None else stages[node]["after"]
            node, times = next(
                (name, t) for name in names for t in request[f"k{name[1:]}"] if t[2] == end
            )
            waits += times[1] - times[0]
            path += times[2] - times[1]
            end = times[0]
        assert end == int(arrival)
        assert path == int(finish) - int(arrival) - waits


def test_one_of_a_choice_runs_and_what_joins_runs_all_the_same():
    stages = {
        "ask": {"kind": "ask"},
        "left": {"kind": "left", "after": "ask", "choice": "way", "weight": 3},
        "right": {"kind": "right", "after": "ask", "choice": "way"},
        "deep": {"kind": "deep", "after": "right"},
        "join": {"kind": "join", "after": ["left", "deep"]},
    }
    rows = rows_of(scenario(stages, requests=400))
    lefts = sum("left" in row for row in rows)
    assert 260 < lefts < 340
    for row in rows:
        assert ("left" in row) != ("right" in row)
        assert ("deep" in row) == ("right" in row)
        assert len(row["join"]) == 1


def test_a_node_with_a_probability_is_skipped_and_not_what_follows():
    stages = {
        "a": {"kind": "a"}, "b": {"kind": "b", "after": "a", "probability": 0.25}, "c": {"kind": "c", "after": "b"},
    }
    rows = rows_of(scenario(stages, requests=400))
    assert 60 < sum("b" in row for row in rows) < 140
    assert all(len(row["c"]) == 1 for row in rows)


def test_a_loop_goes_round_at_most_so_often():
    inner = {"r": {"kind": "r"}, "j": {"kind": "j", "after": "r"}}
    stages = {
        "loop": {"kind": "loop", "stages": inner, "max_times": 3, "again": 0.5},
        "end": {"kind": "end", "after": "loop"},
    }
    rows = rows_of(scenario(stages, requests=300))
    rounds = [len(row["j"]) for row in rows]
    assert set(rounds) == {1, 2, 3}
    assert abs(np.mean(rounds) - 1.75) < 0.15
    for row in rows:
        assert len(row["r"]) == len(row["j"])
        assert min(t[0] for t in row["end"]) == max(t[2] for t in row["j"])


def test_what_a_request_takes_does_not_depend_on_the_others():
    stages = {
        "a": {"kind": "a", "choice": "x"}, "b": {"kind": "b", "choice": "x"}, "c": {"kind": "c", "after": ["a", "b"]},
    }
    few, many = rows_of(scenario(stages, requests=20)), rows_of(scenario(stages, requests=60))
    assert [sorted(row) for row in few] == [sorted(row) for row in many[:20]]
    assert [sorted(row) for row in few] != [sorted(row) for row in rows_of(scenario(stages, requests=20, seed=1))]


def test_a_generation_between_services_counts_for_ttft():
    stages = {
        "find": {"kind": "find"}, "answer": {"kind": "generate", "after": "find", "prompt": "prompt + 100"},
        "check": {"kind": "check", "after": "answer", "tokens": "output"},
    }
    results = simulate(load_scenario(scenario(stages, requests=5)))
    requests, columns = results.requests, results.stages
    assert (requests["ttft_s"] > 0.001).all()
    assert (columns[columns["kind"] == "generate"]["prompt_tokens"] == 120).all()
    assert (requests["e2e_s"] > requests["ttft_s"]).all()


def test_a_stage_that_never_fits_rejects_its_request_and_no_other():
    stages = {
        "small": {"kind": "small"}, "side": {"kind": "side"},
        "big": {"kind": "generate", "after": "small", "prompt": "prompt * 1000", "choice": "x"},
        "fits": {"kind": "generate", "after": "small", "choice": "x"}, "end": {"kind": "end", "after": ["big", "fits"]},
    }
    data = scenario(stages, requests=40)
    data["clients"][0] = {**LLM, "memory": {"num_blocks": 100}}
    record = build(load_scenario(data)).run()
    rejected = set(np.flatnonzero(record.status == 2).tolist())
    assert 5 < len(rejected) < 35
    assert (record.status != 0).all()
    assert set(record.reject_reasons) == rejected
    ends = record.stages["request"][record.stages["kind"] == record.stage_kinds.index("end")].tolist()
    assert sorted(ends) == sorted(set(range(40)) - rejected)


def test_long_ways_on_which_nothing_runs():
    nothing = {"kind": "x", "probability": 0.0}
    chain = {f"n{i}": nothing | ({"after": f"n{i - 1}"} if i else {}) for i in range(248)}
    stages = chain | {
        "loop": {"kind": "loop", "stages": {"x": nothing}, "max_times": 10_000, "again": 1.0, "after": "n247"},
        "end": {"kind": "end", "after": "loop"},
    }
    rows = rows_of(scenario(stages, requests=2))
    assert [list(row) for row in rows] == [["end"], ["end"]]


def test_each_node_after_a_generation_is_asked_once_in_a_graph_of_diamonds(monkeypatch):
    stages: dict[str, Any] = {"j0": {"kind": "generate"}}
    for i in range(14):   # 16,384 ways
        stages |= {f"{side}{i}": {"kind": "x", "after": f"j{i}"} for side in "lr"}
        stages[f"j{i + 1}"] = {"kind": "x", "after": [f"l{i}", f"r{i}"]}
    data = scenario(stages, requests=1)
    asked: list[str] = []
    whether = Graph.is_generation
    monkeypatch.setattr(Graph, "is_generation", lambda self, name: asked.append(name) or whether(self, name))
    built = build(load_scenario(data))
    asked.clear()
    assert built.run().status.tolist() == [1]
    assert len(asked) == len(stages) - 1


def test_a_first_stage_that_never_fits():
    data = scenario({"big": {"kind": "generate", "prompt": "prompt * 1000"}, "end": {"kind": "end", "after": "big"}})
    data["clients"][0] = {**LLM, "memory": {"num_blocks": 100}}
    assert simulate(load_scenario(data)).record.status.tolist() == [2, 2, 2]


@pytest.mark.parametrize(("stages", "says"), [
    ({"a": {"kind": "x", "after": "b"}, "b": {"kind": "x", "after": "a"}}, "expected stages without a cycle, found"),
    ({f"n{i}": {"kind": "x"} for i in range(251)}, "expected at most 250 stages in a graph, found 251"),
    ({"a": {"kind": "x"}, "b": {"kind": "x", "after": "aa"}}, "pipelines.g.stages.b.after.0: expected one of a, b"),
    ({"a": {"kind": "x", "tokens": "prompt +"}}, "tokens: expected an amount such as"),
    ({"a": {"kind": "x", "tokens": "__import__('os')"}}, "expected numbers, names"),
    ({"a": {"kind": "x", "tokens": "promt"}}, "did you mean 'prompt'"),
    ({"a": {"kind": "loop"}}, "a.stages: expected a value (required)"),
    ({"a": {"kind": "generate", "kv": "b"}, "b": {"kind": "x"}}, "pipelines.g.stages.a.kv"),
    ({"a": {"kind": "x", "probability": 2}}, "probability"),
    ({"a": {"kind": "x"}, "b": {"kind": "generate", "after": ["a", "a"]}}, "b.after.1: expected each node once"),
    ({"a": {"kind": "x"}, "b": {"kind": "generate", "after": "a", "kv": "a"}}, "what a `fetch_kv` node found"),
    ({"a": {"kind": "fetch_kv"}, "b": {"kind": "x", "after": "a", "kv": "a"}}, "no `kv`: 'x' reads"),
])
def test_bad_graphs_are_refused_in_one_line(stages, says):
    with pytest.raises(InputError) as caught:
        build(load_scenario(scenario(stages)))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("amount", "says"), [
    ("min(1)", "two amounts or more in min(...), found 'min(1)'"),
    ("max(prompt)", "two amounts or more in max(...), found 'max(prompt)'"),
    ("min()", "two amounts or more in min(...)"), ("ceil()", "one amount in ceil(...)"),
    ("min(*prompt, 3)", "min(...) of amounts"), ("ceil(1, 2)", "one amount in ceil(...), found 'ceil(1, 2)'"),
    ("ceil(prompt, output)", "one amount in ceil(...)"),
    ("ceil(1e308) * ceil(1e308)", "an amount that can be computed, found 'ceil(1e308) * ceil(1e308)'"),
    ("1e400", "numbers of at most 1e308"), ("min(prompt, 1e400)", "numbers of at most 1e308"),
    ("prompt + ceil(1e308 * 10)", "an amount that can be computed"), ("prompt // 0", "an amount that can be computed"),
    ("prompt * (2 - 3 % 0)", "an amount that can be computed"), ("ceil(1e308 * 10 % 5)", "an amount that can be"),
    ("prompt + 1e308 * 10", "an amount that can be computed"), ("min(3, 1e308 * 10 % 5)", "an amount that can be"),
])
def test_amounts_that_can_be_none_for_any_request_are_found_before_the_run(amount, says):
    with pytest.raises(InputError) as caught:
        load_scenario(scenario({"a": {"kind": "x", "tokens": amount}}))
    assert str(caught.value).startswith("pipelines.g.stages.a.tokens: expected ")
    assert says in str(caught.value)


def test_amounts_are_computed_as_written():
    for text, value in (("min(prompt, 3, 1e300)", 3), ("ceil(prompt / 3)", 7), ("max(2, prompt) * (1 + 1)", 40),
                        ("20 * 512 + prompt % 7", 10_246), ("1e3", 1000), (2.5, 2), ("output", 3)):
        assert Amount(text)({"prompt": 20, "output": 3, "past": 0}) == value


def test_a_stage_nobody_serves_is_named_before_the_run():
    data = scenario({"a": {"kind": "x"}})
    data["pipelines"]["g"]["stages"]["b"] = {"kind": "dance", "after": "a"}
    with pytest.raises(InputError, match="a client that serves stage 'dance'"):
        build(load_scenario(data))


@pytest.mark.parametrize(("stages", "says"), [
    ({"a": {"kind": "generate", "branches": "prompt * 1000"}}, "g.stages.a.branches: expected 1 to 1024 branches"),
    ({"a": {"kind": "x", "copies": "prompt * 1000"}}, "g.stages.a.copies: expected 0 to 1024 copies"),
    ({"a": {"kind": "x", "tokens": "1 / (prompt - prompt)"}},
     "g.stages.a.tokens: expected an amount that can be computed, found '1 / (prompt - prompt)' with prompt 20"),
    ({"a": {"kind": "loop", "stages": {"b": {"kind": "x", "tokens": "0 - prompt"}}}},
     "g.stages.a.stages.b.tokens: expected an amount from 0 to 2**53, found '0 - prompt' = -20 with prompt 20"),
    ({"a": {"kind": "x", "tokens": "ceil(prompt * 1e308)"}}, "g.stages.a.tokens: expected an amount that can"),
    ({"a": {"kind": "x", "items": "ceil(1e308) * prompt"}}, "expected an amount from 0 to 2**53, found "
     "'ceil(1e308) * prompt' = more than 1e308 with prompt 20"),
    ({"a": {"kind": "x", "items": "max(3, prompt * 1e308 % 5)"}}, "g.stages.a.items: expected an amount that can"),
])
def test_amounts_that_a_request_makes_wrong_are_named_with_their_node(stages, says):
    with pytest.raises(InputError) as caught:
        simulate(scenario(stages))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
