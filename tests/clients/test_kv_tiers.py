"""KV tiers in simulations: the formula against the stateful mode, contention, overlap, write-backs, conservation."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

import hermes
from hermes.errors import InputError
from hermes.memory.tiers import Level, expected_s
from hermes.network import exposed_bytes

KV_BYTES = 131_072          # of a token of llama-3.1-8b in bf16
LARGE = {"model": "llama-2-70b", "hardware": {"kind": "roofline", "model": "llama-2-70b", "device": "h100-sxm"}}
SIZE = 1000 * KV_BYTES
TIER = {"name": "dram", "capacity": "1 TB", "bandwidth": "10 GB/s", "lookup": "1 ms"}
EVEN = {"population": "shared", "keys": 20, "zipf": 0.0, "tokens": {"kind": "fixed", "tokens": 1000}}
ONE = {**EVEN, "keys": 1}
MOVES = ("block_tokens", "overlap", "write", "promote", "demote")
"""Keys of `tiers`; the others are the client's."""


def scenario(tiers: list[dict[str, Any]], *, contexts: dict[str, Any] = EVEN, requests: int = 100,
             arrivals: Any = None, keep: bool = True, network: Any = None, **client: Any) -> dict[str, Any]:
    moves = {key: client.pop(key) for key in MOVES if key in client}
    data = {
        "workload": {
            "requests": requests, "arrivals": arrivals or {"kind": "closed_loop", "users": 1, "think": 1.0},
            "pipeline": "p", "lengths": {"kind": "fixed", "prompt": 50, "output": 2}, "contexts": contexts,
        },
        "pipelines": {"p": {"stages": {
            "fetch": {"kind": "fetch_kv", "tokens": "past"},
            "answer": {"kind": "generate", "after": "fetch", "prompt": "prompt + past", "kv": "fetch"},
            "keep": {"kind": "store_kv", "after": "answer", "tokens": "past", "background": True},
        }}},
        "clients": [
            {"name": "llm", "model": "llama-3.1-8b", "memory": {"num_blocks": 100_000},
             "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}},
            {"kind": "kv_retrieval", "name": "kv", "model": "llama-3.1-8b",
             "tiers": {"levels": copy.deepcopy(tiers), **moves}, **client},
        ],
    }
    if not keep:
        del data["pipelines"]["p"]["stages"]["keep"]
    if network is not None:
        data["network"] = network
    return data


def fetches(results: Any) -> tuple[Any, Any]:
    """Seconds and tokens found of the fetches, by request."""
    stages, kinds = results.record.stages, results.record.stage_kinds
    rows = np.flatnonzero(stages["kind"] == kinds.index("fetch_kv"))
    rows = rows[np.argsort(stages["request"][rows])]
    return (stages["end_ns"] - stages["assigned_ns"])[rows] / 1e9, stages["cached_tokens"][rows]


@quick_and_full(3, 8)
@given(
    policy=st.sampled_from(["lru", "lfu", "fifo"]), keys=st.integers(5, 60), zipf=st.sampled_from([0.0, 0.7, 1.2]),
    room=st.tuples(st.integers(1, 20), st.integers(1, 60)), seed=st.integers(0, 1000),
    speeds=st.tuples(st.sampled_from(["100 GB/s", "20 GB/s"]), st.sampled_from(["4 GB/s", "1 GB/s"])),
    promote=st.booleans(),
)
def test_stateful_hit_rates_in_the_formula_give_the_stateful_mean(policy, keys, zipf, room, seed, speeds, promote):
    """One request at a time, keys drawn independently: whatever the policy, sizes and speeds, and the two agree.

    What is missing costs nothing here on the side of the store: it is computed by the generation."""
    tiers = [{"name": f"t{i}", "capacity": room[i] * SIZE, "bandwidth": speeds[i], "lookup": f"{1 + i} ms",
              "eviction": policy} for i in (0, 1)]
    results = hermes.simulate(scenario(tiers, contexts={**EVEN, "keys": keys, "zipf": zipf}, requests=400,
                                       promote=promote) | {"seed": seed})
    seconds, _ = fetches(results)
    found = {tier.name: (tier.hits / (tier.hits + tier.misses) if tier.hits + tier.misses else 0.0, tier.bandwidth)
             for tier in results.record.tiers}
    levels = [Level(0.001 * (1 + i), found[f"t{i}"][1], found[f"t{i}"][0]) for i in (0, 1)]
    assert float(np.mean(seconds)) == pytest.approx(expected_s(SIZE, levels, 0.0), rel=0.02, abs=1e-9)


@pytest.mark.feature("Pipelines and services", "KV tiers: client `kv_retrieval`")
@quick_and_full(5, 12)
@given(
    users=st.integers(1, 6), rooms=st.lists(st.integers(0, 6), min_size=1, max_size=3), demote=st.booleans(),
    promote=st.booleans(), write=st.sampled_from(["all", "nearest"]), overlap=st.booleans(), seed=st.integers(0, 99),
    policy=st.sampled_from(["lru", "lfu", "fifo"]),
)
def test_bytes_are_conserved_and_capacity_holds(users, rooms, demote, promote, write, overlap, seed, policy):
    tiers = [{"name": f"t{i}", "capacity": room * SIZE + 7, "bandwidth": "2 GB/s", "eviction": policy}
             for i, room in enumerate(rooms)]
    results = hermes.simulate(scenario(
        tiers, contexts={**EVEN, "keys": 8, "tokens": {"kind": "uniform", "min": 1, "max": 1000}}, requests=80,
        arrivals={"kind": "closed_loop", "users": users, "think": 0.01}, demote=demote, promote=promote, write=write,
        overlap=overlap,
    ) | {"seed": seed})
    record = results.record
    assert (record.status == 1).all()
    _, tokens = fetches(results)
    assert sum(tier.read_bytes for tier in record.tiers) == int(tokens.sum()) * KV_BYTES
    assert int(record.transfers["bytes"].sum()) == int(tokens.sum()) * KV_BYTES
    for tier in record.tiers:
        assert tier.used_bytes <= tier.peak_bytes <= tier.capacity_bytes
        assert tier.hits <= tier.hits + tier.misses <= 80
        moved = (tier.read_bytes + tier.written_bytes) / tier.bandwidth   # the link works whenever there is work
        assert tier.busy_ns / 1e9 == pytest.approx(moved, rel=1e-6, abs=1e-6)
    prefilled = int(record.runs["prefill_tokens"].sum())
    prompts = record.stages["prompt_tokens"][record.stages["kind"] == record.stage_kinds.index("generate")]
    assert prefilled == int(prompts.sum()) - int(tokens.sum())   # what was not found was computed


def burst(count: int) -> dict[str, Any]:
    return {"kind": "uniform", "rate": 1e6} if count else {}


def test_reads_share_a_tier_and_tiers_of_clients_do_not():
    warm = {"start": "popular", "keep": False, "contexts": ONE, "requests": 4, "arrivals": burst(4)}
    alone = 0.001 + SIZE / 10e9
    seconds, _ = fetches(hermes.simulate(scenario([TIER], **{**warm, "requests": 1})))
    assert seconds == pytest.approx([alone], abs=1e-6)
    seconds, _ = fetches(hermes.simulate(scenario([TIER], **warm)))
    assert seconds == pytest.approx([0.001 + 4 * SIZE / 10e9] * 4, rel=1e-3)
    shared = scenario([{**TIER, "scope": "all"}], count=4, **warm) | {"router": {"kind": "round_robin"}}
    seconds, _ = fetches(hermes.simulate(shared))
    assert seconds == pytest.approx([0.001 + 4 * SIZE / 10e9] * 4, rel=1e-3)
    own = scenario([TIER], count=4, **warm) | {"router": {"kind": "round_robin"}}
    seconds, _ = fetches(hermes.simulate(own))
    assert seconds == pytest.approx([alone] * 4, abs=1e-6)


@pytest.mark.parametrize(("scope", "stores"), [("client", 8), ("platform", 4), ("rack", 2), ("all", 1)])
def test_scopes(scope, stores):
    tier = {**TIER, "scope": scope}
    data = scenario([tier], count=8, platform="rack-{i//4}/shelf-{i//2}", requests=8)
    results = hermes.simulate(data)
    assert len(results.record.tiers) == stores
    assert sum(len(t.clients) for t in results.record.tiers) == 8


def test_a_second_hop_contends_with_what_else_crosses_it():
    """Four contexts at once over a 1 GB/s link between racks: behind the store, each waits for a quarter of it."""
    network = {"kind": "topology", "nodes": [], "links": [
        {"a": "kv", "b": "llm", "bandwidth": "1 GB/s", "latency": "20 ms"}]}
    results = hermes.simulate(scenario([{**TIER, "bandwidth": "1 TB/s"}], contexts=ONE, requests=4, arrivals=burst(4),
                                       network=network, start="popular", keep=False))
    sent = results.record.transfers
    assert (sent["end_ns"] - sent["start_ns"]) / 1e9 == pytest.approx([4 * SIZE / 1e9 + 0.02] * 4, rel=1e-3)
    assert int(sent["bytes"].sum()) == 4 * SIZE


@pytest.mark.parametrize("bandwidth", [1e9, 10e9, 1e12])
def test_overlap_hides_what_the_prefill_allows(bandwidth):
    """Alone, a read that overlaps is waited for by the bytes of `exposed_bytes`, and all of it is read."""
    tier = {**TIER, "bandwidth": bandwidth}
    few = {"contexts": ONE, "requests": 1, "start": "popular", "keep": False}
    plain, hidden = (hermes.simulate(scenario([tier], overlap=overlap, **few)) for overlap in (False, True))
    kinds, stages = plain.record.stage_kinds, plain.record.stages
    answer = stages["kind"] == kinds.index("generate")
    prefill_s = float((stages["first_token_ns"] - stages["start_ns"])[answer][0]) / 1e9
    waited = exposed_bytes(SIZE, 32, prefill_s, bandwidth)
    assert fetches(plain)[0] == pytest.approx([0.001 + SIZE / bandwidth], abs=1e-6)
    assert fetches(hidden)[0] == pytest.approx([0.001 + waited / bandwidth], rel=1e-3, abs=1e-6)
    assert waited < SIZE
    assert hidden.record.tiers[0].read_bytes == SIZE
    gain = plain.metrics.ttft_ns[0] - hidden.metrics.ttft_ns[0]
    assert gain / 1e9 == pytest.approx((SIZE - waited) / bandwidth, rel=1e-2, abs=1e-6)


def test_overlap_beside_others_waits_for_more():
    few = {"contexts": ONE, "start": "popular", "keep": False, "overlap": True}
    alone, _ = fetches(hermes.simulate(scenario([TIER], requests=1, **few)))
    crowd, _ = fetches(hermes.simulate(scenario([TIER], requests=8, arrivals=burst(8), **few)))
    assert crowd.min() > alone[0]
    assert crowd.max() <= 0.001 + 8 * SIZE / 10e9 + 1e-6


def test_expected_overlap_is_the_formula_of_the_exposed_bytes():
    tier = {**TIER, "hit_rate": 1.0}
    plain, hidden = (fetches(hermes.simulate(scenario([tier], mode="expected", overlap=o, keep=False, requests=3)))[0]
                     for o in (False, True))
    assert plain == pytest.approx([0.001 + SIZE / 10e9] * 3, abs=1e-8)
    assert (hidden < plain).all()


def test_expected_needs_what_a_miss_costs():
    data = scenario([{**TIER, "hit_rate": 0.5}], mode="expected", keep=False, requests=3)
    assert fetches(hermes.simulate(data))[0][0] > 0.5 * (0.001 + SIZE / 10e9)   # of the LLM client's prefill
    data["clients"][0] |= LARGE
    data["workload"]["model"] = "llama-2-70b"
    data["pipelines"]["p"]["stages"]["fetch"]["model"] = "llama-3.1-8b"
    with pytest.raises(InputError, match="give the hardware of a prefill"):
        hermes.simulate(data)


RATES = [{**TIER, "hit_rate": 0.5}, {**TIER, "name": "disk", "bandwidth": "2 GB/s", "lookup": "4 ms", "hit_rate": 0.4}]
DRAWN = {"mode": "expected", "misses": "recompute", "keep": False}


def test_drawn_misses_are_computed_by_the_llm():
    """Each fetch takes the time of one tier, or none and the LLM computes the context; the shares are the hit rates,
    and the mean time is the formula's with a recompute of 0 s (computing is not the store's time)."""
    results = hermes.simulate(scenario(RATES, requests=3000, **DRAWN))
    seconds, tokens = fetches(results)
    dram, disk = 0.001 + SIZE / 10e9, 0.004 + SIZE / 2e9
    for time_s, found, share in ((dram, 1000, 0.5), (disk, 1000, 0.2), (0.0, 0, 0.3)):
        rows = np.isclose(seconds, time_s, atol=1e-8)
        assert (tokens[rows] == found).all()
        assert rows.mean() == pytest.approx(share, abs=0.03)
    hits = {tier.name: (tier.hits, tier.misses, tier.read_bytes) for tier in results.record.tiers}
    assert sum(hits["dram"][:2]) == 3000
    assert sum(hits["disk"][:2]) == hits["dram"][1]
    assert sum(read for *_, read in hits.values()) == int(tokens.sum()) * KV_BYTES
    levels = [Level(0.001, 10e9, 0.5), Level(0.004, 2e9, 0.4)]
    assert seconds.mean() == pytest.approx(expected_s(SIZE, levels, 0.0), rel=0.03)
    prefilled = int(results.record.runs["prefill_tokens"].sum())
    assert prefilled == 3000 * 1050 - int(tokens.sum())


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_drawn_misses_at_the_ends_are_the_other_modes(rate):
    """Always found: as the formula. Never: as an empty stateful tier that nothing is written to."""
    tier = {**TIER, "hit_rate": rate}
    drawn = hermes.simulate(scenario([tier], **DRAWN, requests=20))
    other = {"mode": "expected"} if rate else {"mode": "stateful"}
    plain = hermes.simulate(scenario([tier if rate else TIER], **other, keep=False, requests=20))
    assert (drawn.metrics.e2e_ns == plain.metrics.e2e_ns).all()
    assert fetches(drawn)[0] == pytest.approx([rate * (0.001 + SIZE / 10e9)] * 20, abs=1e-8)


def test_drawn_hits_belong_to_the_request():
    """The same seed draws the same; a higher hit rate finds all that a lower one does, from whatever client."""
    def found(rate, seed=1, count=1):
        return fetches(hermes.simulate(scenario(
            [{**TIER, "hit_rate": rate}], **DRAWN, requests=200, count=count) | {"seed": seed}))[1] > 0

    assert (found(0.5) == found(0.5)).all()
    assert (found(0.5) == found(0.5, count=4)).all()
    assert (found(0.7) >= found(0.5)).all()
    assert (found(0.5) != found(0.5, seed=2)).any()


def test_two_fetches_of_a_request_are_drawn_apart():
    data = scenario([{**TIER, "hit_rate": 0.5}], **DRAWN, requests=300)
    stages = data["pipelines"]["p"]["stages"]
    stages["again"] = {**stages["fetch"], "after": "fetch"}
    stages["answer"] |= {"after": "again", "kv": "again"}
    stages = hermes.simulate(data).stages
    found = (stages[stages["kind"] == "fetch_kv"].sort_values("request")["cached_tokens"] > 0).to_numpy().reshape(-1, 2)
    assert (found[:, 0] != found[:, 1]).mean() == pytest.approx(0.5, abs=0.1)


def test_drawn_misses_charge_lookups_and_hide_reads_if_asked():
    tier = {**TIER, "hit_rate": 0.0}
    asked, _ = fetches(hermes.simulate(scenario([tier], charge_misses=True, requests=3, **DRAWN)))
    assert asked == pytest.approx([0.001] * 3, abs=1e-8)
    full = {**TIER, "hit_rate": 1.0}
    hidden, plain = (fetches(hermes.simulate(scenario([full], overlap=True, keep=False, requests=3, mode="expected",
                                                      misses=misses)))[0] for misses in ("recompute", "averaged"))
    assert hidden == pytest.approx(plain, abs=1e-8)


def test_a_request_without_past_context_draws_nothing():
    data = scenario([{**TIER, "hit_rate": 0.5}], requests=5, **DRAWN)
    data["pipelines"]["p"]["stages"]["fetch"]["tokens"] = 0
    results = hermes.simulate(data)
    assert fetches(results)[0].tolist() == [0.0] * 5
    assert results.record.tiers[0].hits == results.record.tiers[0].misses == 0


def test_demoted_entries_are_found_below():
    """Two keys in turn over a tier for one: what it evicts goes to the tier below, and is found there."""
    tiers = [{**TIER, "capacity": SIZE}, {**TIER, "name": "disk", "capacity": 10 * SIZE}]
    contexts = {**EVEN, "keys": 2, "zipf": 0.0}
    kept = hermes.simulate(scenario(tiers, contexts=contexts, write="nearest", demote=True, promote=False))
    lost = hermes.simulate(scenario(tiers, contexts=contexts, write="nearest", demote=False, promote=False))
    assert (fetches(kept)[1] == 0).sum() == 2
    assert (fetches(lost)[1] == 0).sum() > 20


def test_a_store_that_starts_at_home_holds_what_its_router_asks_it_for():
    contexts = {"population": "private", "keys": 40, "tokens": {"kind": "uniform", "min": 100, "max": 1000}}
    data = scenario([TIER], contexts=contexts, count=4, start="home") | {"routers": {"fetch_kv": {"kind": "context"}}}
    results = hermes.simulate(data)
    assert results.summary["tiers"]["dram"]["hit_rate"] == 1.0
    assert results.summary["cache"]["cached_tokens"] == int(fetches(results)[1].sum())
    elsewhere = hermes.simulate(data | {"routers": {"fetch_kv": {"kind": "round_robin"}}})
    assert elsewhere.summary["tiers"]["dram"]["hit_rate"] < 0.9


def test_blocks_are_found_by_their_hashes():
    data = scenario([TIER], entries="blocks", block_tokens=100)
    data["pipelines"]["p"]["stages"]["fetch"]["tokens"] = data["pipelines"]["p"]["stages"]["keep"]["tokens"] = "prompt"
    data["pipelines"]["p"]["stages"]["answer"]["prompt"] = "prompt"
    del data["workload"]["contexts"]
    data["workload"]["lengths"] = {
        "kind": "conversations", "turns": 20, "longest": 10**6, "message": 150, "output": 50, "think_time": 1}
    data["workload"]["requests"] = 20
    _, tokens = fetches(hermes.simulate(data))
    # turn i has 150 + 200 i tokens; the full blocks of the turn before are there
    assert tokens.tolist() == [0] + [100 * ((150 + 200 * i) // 100) for i in range(19)]


@pytest.mark.parametrize(("change", "field"), [
    ({"mode": "expected"}, "tiers.levels.0.hit_rate"),
    ({"mode": "expected", "start": "home", "tiers": [{**TIER, "hit_rate": 1.0}]}, "start"),
    ({"entries": "blocks", "start": "home"}, "start"),
    ({"misses": "recompute"}, "misses: applies to `mode: expected` only"),
    ({"mode": "expected", "misses": "recomputed", "tiers": [{**TIER, "hit_rate": 1.0}]}, "did you mean 'recompute'"),
    ({"tiers": [TIER, TIER]}, "tiers.levels.1.name"),
    ({"tiers": [{**TIER, "hit_rate": 0.5}]}, "tiers.levels.0.hit_rate"),
    ({"tiers": [{**TIER, "capacity": 0}]}, "tiers.levels.0.capacity"),
    ({"model": "qwen3-32b"}, "serves stage 'fetch_kv' of model 'llama-3.1-8b'"),
])
def test_what_cannot_be_is_refused(change, field):
    with pytest.raises(InputError, match=field):
        hermes.simulate(scenario(**{"tiers": [TIER], **change}))


@pytest.mark.parametrize("start", ["home", "empty"])
def test_contexts_at_home_are_those_of_one_group(start):
    """Homes are counted within a group, the router counts all clients of the model."""
    data = scenario([TIER], start=start, count=2)
    data["routers"] = {"fetch_kv": {"kind": "context"}, "store_kv": {"kind": "context"}}
    hermes.simulate(data)
    data["clients"].append({**data["clients"][1], "name": "more"})
    if start == "empty":   # then whoever is asked becomes the home
        hermes.simulate(data)
        return
    with pytest.raises(InputError, match="form several groups"):
        hermes.simulate(data)


def test_kv_is_fetched_from_stores_of_its_model():
    data = scenario([TIER], keep=False)
    data["clients"].append({**data["clients"][0], "name": "other", **LARGE})
    data["clients"].append({**data["clients"][1], "name": "others", "model": "llama-2-70b"})
    data["workload"] |= {"pipeline": [{"name": "p", "model": model} for model in ("llama-3.1-8b", "llama-2-70b")]}
    requests, stages = (lambda run: (run.requests, run.stages))(hermes.simulate(data))
    model = stages["request"].map(requests.set_index("request")["model"]).astype(str)
    where = stages.assign(model=model)[stages["kind"] == "fetch_kv"].groupby(["model", "client"], observed=True).size()
    assert set(where.index) == {("llama-3.1-8b", "kv"), ("llama-2-70b", "others")}


def test_a_tier_tells_the_kv_of_models_apart():
    tier = {**TIER, "scope": "all"}
    data = scenario([tier], contexts=ONE, requests=40)
    data["clients"].append({**data["clients"][0], "name": "other", **LARGE})
    data["clients"].append({**data["clients"][1], "name": "others", "model": "llama-2-70b"})
    data["workload"] |= {"pipeline": [{"name": "p", "model": model} for model in ("llama-3.1-8b", "llama-2-70b")]}
    (store,) = hermes.simulate(data).record.tiers
    assert store.misses == 2   # the first request of either model
    assert store.used_bytes == SIZE + 1000 * 2 * 80 * 8 * 128 * 2


def test_a_shared_tier_is_one_thing():
    data = scenario([{**TIER, "scope": "all"}])
    data["clients"].append({**data["clients"][1], "name": "other",
                            "tiers": {"levels": [{**TIER, "scope": "all", "capacity": 5}]}})
    with pytest.raises(InputError, match="is described in two ways"):
        hermes.simulate(data)
    with pytest.raises(InputError, match="is shared by the rack of its clients"):
        hermes.simulate(scenario([{**TIER, "scope": "rack"}]))


def test_populations():
    base = {"kind": "fixed", "tokens": 7}
    shared = scenario([TIER], contexts={"population": "shared", "keys": 50, "zipf": 1.5, "tokens": base}, requests=4000)
    from hermes.scenario import load_scenario
    table = load_scenario(shared).workload[0].draw(1, load_scenario(shared).source.base_dir)
    counts = np.bincount(table.context, minlength=50)
    weights = np.arange(1, 51) ** -1.5
    assert counts[:5] / 4000 == pytest.approx(weights[:5] / weights.sum(), abs=0.03)
    private = scenario([TIER], contexts={"population": "private", "keys": 50, "tokens": base}, requests=4000)
    table = load_scenario(private).workload[0].draw(1, load_scenario(private).source.base_dir)
    assert np.bincount(table.context, minlength=50).min() > 40
    data = scenario([TIER], contexts={"population": "private", "tokens": base})
    with pytest.raises(InputError, match="sessions with one context each"):
        hermes.simulate(data)
    data["workload"]["sessions"] = {"count": 9}
    table = load_scenario(data).workload[0].draw(1, load_scenario(data).source.base_dir)
    assert (table.context == table.session).all()
