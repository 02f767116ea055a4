"""Lookahead retrieval: timelines by hand, bytes, budgets, buffers, late copies, contention."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hermes.core.record import STATUS_COMPLETED
from hermes.dispatch.simulation import Simulation
from hermes.errors import InputError
from hermes.hardware import StepStats
from hermes.pipelines import ServiceStage
from hermes.plugins.telerag import ClusterScan
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.services import MachineSpec

MB = 10**6
LINK, GPU, CPU, MISSES = 20e9, 400e9, 10e9, 25e9
LAUNCH_NS, MERGE_NS = 20_000, 50_000
HARDWARE = {"kind": "roofline", "model": "llama-3.2-3b", "device": "rtx-4090"}
NETWORK = {"kind": "topology", "nodes": ["host", "card"], "links": [{"a": "host", "b": "card", "bandwidth": LINK}],
           "attach": {"index": "host", "cpu": "host", "gpu": "card", "llm": "card"}}


def scenario(pipeline: dict[str, Any], *, index: dict[str, Any] | None = None, buffer: int = 10_000 * MB,
             requests: int = 1, extra: dict[str, Any] | None = None, **workload: Any) -> Any:
    clusters = {"clusters": 64, "total": 64 * 10 * MB, "size_sigma": 0.0, "vector_bytes": 1000} | (index or {})
    content: dict[str, Any] = {
        "workload": {"requests": requests, "arrivals": {"kind": "closed_loop", "users": 1, "think": 0},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 16},
                     "pipeline": {"nprobe": 8, "embed": False, "window": 10, **pipeline}, **workload},
        "clients": [
            {"kind": "ivf_index", "name": "index", "index": clusters, "buffer": buffer},
            {"kind": "rag", "name": "cpu", "serves": {"cpu_search": {"kind": "cluster_scan", "rate": CPU},
                                                      "miss_search": {"kind": "cluster_scan", "rate": MISSES}}},
            {"kind": "rag", "name": "gpu", "serves": {
                "prefetch": {"kind": "per_item"}, "merge": {"kind": "per_item", "fixed": MERGE_NS / 1e9},
                "gpu_search": {"kind": "cluster_scan", "rate": GPU, "fixed": LAUNCH_NS / 1e9},
            }},
            {"name": "llm", "model": "llama-3.2-3b", "device": "rtx-4090", "hardware": HARDWARE},
        ],
        "network": NETWORK, **(extra or {}),
    }
    return load_scenario(content)


def run(*args: Any, **options: Any) -> tuple[Simulation, Any]:
    checked = scenario(*args, **options)
    simulation = build(checked)
    return simulation, simulation.run()


def generation_ns(prompt: int, output: int) -> int:
    """A generation alone on the engine."""
    model = scenario({"name": "telerag-hyde"}).clients[3].hardware.build()
    first = model.step_ns(StepStats(prefill_seqs=1, prefill_tokens=prompt, prefill_attn=prompt * (prompt + 1) // 2,
                                    sampled=1))
    rest = [model.step_ns(StepStats(decode_seqs=1, decode_ctx=prompt + i, decode_ctx_max=prompt + i, sampled=1))
            for i in range(output - 1)]
    return first + sum(rest)


def scan_ns(num_bytes: int, rate: float, fixed_ns: int = 0) -> int:
    return math.ceil(fixed_ns + num_bytes / rate * 1e9 - 1e-6) if num_bytes else 1


@pytest.mark.feature("Plug-ins of research", (
    "TeleRAG: client `ivf_index`, service `cluster_scan`, pipelines `telerag-hyde`, `telerag-subquestion`, "
    "`telerag-iterative`, `telerag-iter-retgen`, `telerag-flare`, `telerag-self-rag`"))
@pytest.mark.parametrize("mode", ["lookahead", "lookahead, copy late", "offload", "resident", "on_demand"])
def test_hyde_by_hand(mode):
    """One query: 8 clusters of 10 MB are probed, and the budget is for 5 of them. A stage without work takes 1 ns."""
    link = LINK / 400 if "late" in mode else LINK   # 50 MB in 1 s: longer than the window
    network = NETWORK | {"links": [{"a": "host", "b": "card", "bandwidth": link}]}
    way = mode.split(",")[0]
    _, record = run({"name": "telerag-hyde", "retrieval": way, "budget": 59 * MB, "strength": 0.0},
                    extra={"network": network})
    window, answer = generation_ns(64, 10), generation_ns(64 + 300, 16)
    copy = round(50 * MB / link * 1e9) + 1
    expected = {
        "lookahead": max(window, copy) + max(scan_ns(50 * MB, GPU, LAUNCH_NS), scan_ns(30 * MB, MISSES))
        + round(30_000 * 8 / link * 1e9) + MERGE_NS,
        "offload": window + scan_ns(80 * MB, CPU),
        "resident": window + scan_ns(80 * MB, GPU, LAUNCH_NS),
        "on_demand": window + round(80 * MB / link * 1e9) + 1 + scan_ns(80 * MB, GPU, LAUNCH_NS),
    }[way] + answer
    assert record.finish_ns[0] - record.arrival_ns[0] == expected


@pytest.mark.parametrize("name", ["hyde", "subquestion", "iterative", "iter-retgen", "flare", "self-rag"])
@pytest.mark.parametrize("late", ["wait", "give_up"])
def test_bytes_are_conserved_and_never_exceed_budget_or_buffer(name, late):
    budget, buffer = 150 * MB, 120 * MB
    sim, record = run({"name": f"telerag-{name}", "budget": budget, "strength": 0.3, "batch": 2, "late": late,
                       "chunk": 30 * MB}, index={"size_sigma": 0.6}, buffer=buffer, requests=4)
    index = sim.clients[0]
    assert (record.status == STATUS_COMPLETED).all()
    assert index.used_bytes == 0                                   # all of it was freed
    assert 0 < index.peak_bytes <= min(budget, buffer)
    assert all(lookup.prefetched_bytes <= min(budget, buffer) for lookup in index.lookups)
    assert sim.network.bytes_sent == sim.network.bytes_received
    merges = sum(8 * (lookup.miss_bytes // 1000) for lookup in index.lookups)
    ahead = sum(lookup.prefetched_bytes for lookup in index.lookups)
    if late == "wait" and name != "flare":                         # what was planned came, and nothing else moved
        assert index.copied_bytes == ahead
        assert sim.network.bytes_sent == ahead + merges
    assert sim.network.bytes_sent >= ahead + merges
    for lookup in index.lookups:
        assert 0 <= lookup.overlap <= 1
        assert lookup.planned == (lookup.prefetched_bytes > 0)


@pytest.mark.parametrize(("queries", "expected_s"), [(1, 0.008), (3, 0.008), (4, 0.008), (8, 0.016)])
def test_a_search_that_splits_over_queries(queries, expected_s):
    """Four queries fit the machine side by side; one query alone is no faster than its thread."""
    service = ClusterScan(rate=40e9, query_rate=10e9).build(MachineSpec(1, 1e9, 1e9, 10**9))
    stage = ServiceStage("cpu_search", items=queries, options={"scan_bytes": queries * 80 * MB})
    assert service.work([stage]).alone_s == pytest.approx(expected_s)
    assert service.work([ServiceStage("cpu_search", options={"scan_bytes": 0})]).alone_s == 0


def test_the_baseline_searches_at_its_own_rate():
    """Retrieval on the CPU does not change with the rate of misses, lookahead does."""
    def finish(mode: str, **rates: float) -> int:
        content = scenario({"name": "telerag-hyde", "retrieval": mode, "budget": 59 * MB}).model_dump()
        for stage, rate in rates.items():
            content["clients"][1]["serves"][stage]["rate"] = rate
        return int(build(load_scenario(content)).run().finish_ns[0])

    assert finish("offload", miss_search=MISSES / 4) == finish("offload")
    assert finish("lookahead", cpu_search=CPU / 4) == finish("lookahead")
    assert finish("lookahead", miss_search=MISSES / 4) > finish("lookahead")


def test_a_client_for_each_search_that_a_mode_needs():
    """Profiled budgets need the baseline's search beside that of the misses."""
    for pipeline, stage in (({"retrieval": "offload"}, "cpu_search"), ({}, "miss_search"),
                            ({"budget": "profiled", "link": LINK}, "cpu_search")):
        content = scenario({"name": "telerag-hyde", **pipeline}).model_dump()
        del content["clients"][1]["serves"][stage]
        with pytest.raises(InputError, match=stage):
            build(load_scenario(content))


def test_a_batch_moves_the_union_once():
    """Eight queries that probe everything: the union is the index, and it moves once, not eight times."""
    sim, _ = run({"name": "telerag-hyde", "retrieval": "on_demand", "batch": 8, "nprobe": 64, "strength": 0.2})
    lookup = sim.clients[0].lookups[0]
    assert lookup.miss_bytes == 8 * 640 * MB
    assert sim.network.bytes_sent == 640 * MB


def test_a_competing_flow_delays_the_copy():
    other = {"requests": 1, "arrivals": {"kind": "closed_loop", "users": 1, "think": 0}, "name": "other",
             "lengths": {"kind": "fixed", "prompt": 1, "output": 1}, "pipeline": "move"}
    checked = scenario({"name": "telerag-hyde", "budget": 600 * MB, "strength": 0.0, "nprobe": 60, "window": 1})
    short = build(checked).run()
    content = checked.model_dump()
    content["workload"] = [*content["workload"], other]
    content["pipelines"] = {"move": {"stages": {
        "read": {"kind": "read"}, "use": {"kind": "use", "after": "read", "input_bytes": 2000 * MB}}}}
    content["clients"] = [*content["clients"],
                          {"kind": "processing", "name": "disk", "serves": {"read": {"kind": "per_item"}}},
                          {"kind": "processing", "name": "user", "serves": {"use": {"kind": "per_item"}}}]
    content["network"]["attach"] |= {"disk": "host", "user": "card"}
    both = load_scenario(content)
    shared = build(both).run()
    # half of the link: the 600 MB take 60 ms in place of 30, and the window hides none of the difference
    delay = shared.finish_ns[0] - short.finish_ns[0]
    assert delay == pytest.approx(30e6, rel=1e-3)


def test_giving_up_is_no_slower_where_the_copy_is_late():
    slow = {"network": NETWORK | {"links": [{"a": "host", "b": "card", "bandwidth": 1e9}]}}
    common = {"name": "telerag-hyde", "budget": 640 * MB, "strength": 0.0, "chunk": 10 * MB}
    waits = run({**common, "late": "wait"}, extra=slow)
    gives_up = run({**common, "late": "give_up"}, extra=slow)
    assert gives_up[1].finish_ns[0] < waits[1].finish_ns[0]
    assert gives_up[0].clients[0].lookups[0].prefetched_bytes < 640 * MB


def test_keeping_clusters_raises_the_overlap_of_later_rounds():
    common = {"name": "telerag-iterative", "again": 1.0, "max_rounds": 3, "budget": 60 * MB, "strength": 0.1}
    fresh = run(common, requests=5)[0].clients[0].lookups
    kept = run({**common, "keep": True}, requests=5)[0].clients[0].lookups
    assert sum(k.overlap for k in kept) > sum(f.overlap for f in fresh)


def test_the_buffer_comes_out_of_the_kv_memory():
    def blocks(reserved: str) -> int:
        content = scenario({"name": "telerag-hyde"}).model_dump()
        content["clients"][3]["memory"] = {"reserved": reserved}
        checked = load_scenario(content)
        return int(build(checked).clients[3].scheduler.pool.num_blocks)

    per_block = 16 * 2 * 28 * 8 * 128 * 2   # tokens, K and V, layers, KV heads, head size, bytes
    assert blocks("0 GB") - blocks("10 GB") == pytest.approx(10e9 / per_block, abs=1)


@pytest.mark.parametrize(("change", "field"), [
    ({"retrieval": "sometimes"}, "retrieval"), ({"budget": "much"}, "budget"), ({"windows": 3}, "windows"),
])
def test_wrong_parameters_are_named(change, field):
    with pytest.raises(InputError, match=field):
        run({"name": "telerag-hyde", **change})


def test_more_probes_than_clusters_are_refused():
    _, record = run({"name": "telerag-hyde", "nprobe": 65})
    assert "65" in record.reject_reasons[0]


def test_sizes_and_queries_follow_the_seed_of_the_scenario():
    name = "studies/telerag/desktop"
    drawn = [build(load_scenario(name, [f"seed={seed}"])).clients[0] for seed in (0, 0, 1)]
    first, again, other = (client.sizes.tolist() for client in drawn)
    assert first == again != other
    with pytest.raises(InputError, match=r"clients\.0\.seed: expected no seed here: .* `seed` .*, found 3") as found:
        load_scenario(name, ["clients.0.seed=3"])
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(("change", "says"), [
    ({"total": 0}, r"clients\.0\.index\.total: expected at least a byte, found 0"),
    ({"total": 10**9, "probed_mean": 10**8}, r"clients\.0\.index\.probed_mean: expected bytes of a probed"),
])
def test_an_index_without_fitting_sizes_is_refused(change, says):
    overrides = [f"clients.0.index.{key}={value}" for key, value in change.items()]
    with pytest.raises(InputError, match=says):
        build(load_scenario("studies/telerag/desktop", overrides))
