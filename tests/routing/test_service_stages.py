"""Every router works for every kind of stage: those that generate nothing have one load, and data that has to move."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import hermes
from hermes.routing import ROUTERS

LOADS = ("input_tokens", "output_tokens", "kv_tokens", "tokens_left")


def scenario(router: dict[str, Any], **more: Any) -> dict[str, Any]:
    service = {"kind": "per_item", "per_token": 0.001}
    return {
        "workload": {
            "requests": 60, "arrivals": {"kind": "poisson", "rate": 30}, "pipeline": "g", "sessions": {"count": 7},
            "lengths": {"kind": "independent", "prompt": {"kind": "lognormal", "mean": 100, "sigma": 1.0, "max": 2000},
                        "output": {"kind": "fixed", "tokens": 2}},
        },
        "pipelines": {"g": {"stages": {
            "a": {"kind": "a"}, "b": {"kind": "b", "after": "a", "input_bytes": 1_000_000},
        }}},
        "clients": [
            {"kind": "processing", "name": "m", "count": 3, "cores": 1, "serves": dict.fromkeys("ab", service)},
        ],
        "router": router, **more,
    }


def served(router: dict[str, Any], **more: Any) -> dict[str, Counter[str]]:
    stages = hermes.simulate(scenario(router, **more)).stages
    return {kind: Counter(rows["client"].astype(str)) for kind, rows in stages.groupby("kind", observed=True)}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("kind", ["least_loaded", "heavy_light", "power_of_two"])
def test_all_loads_spread_stages_that_generate_nothing(kind, load):
    router = {"kind": kind, "load": load} | ({"threshold": 150} if kind == "heavy_light" else {})
    first = served({**router, "load": "input_tokens"})
    assert served(router) == first, "the tokens of their tasks stand for every load but their number"
    for counts in first.values():
        assert min(counts[f"m-{i}"] for i in range(3)) >= 5


@pytest.mark.parametrize("name", [name for name in ROUTERS if name != "mixed_pool"])
def test_every_router_serves_every_kind(name):
    router = {"kind": name} | {"heavy_light": {"threshold": 150}, "llm_d": {"view": "exact"}}.get(name, {})
    assert [sum(counts.values()) for counts in served(router).values()] == [60, 60]


@pytest.mark.parametrize("kind", ["least_loaded", "power_of_two", "session", "locality"])
def test_requests_are_counted_whatever_their_size(kind):
    """Of requests that all come at once, each client gets as many as any other; tokens would say otherwise."""
    for clients, name in ((4, "services"), (4, "engines"), (40, "many engines")):
        data = scenario({"kind": kind, "load": "requests"})
        data["workload"] |= {"requests": 3 * clients, "arrivals": {"kind": "at_once"}}
        del data["workload"]["sessions"]
        data["clients"][0] |= {"count": clients}
        if name != "services":
            del data["pipelines"], data["workload"]["pipeline"]
            data["clients"] = [{"name": "m", "count": clients, "memory": {"num_blocks": 1000}, "model": "mistral-7b",
                                "hardware": {"kind": "roofline", "profile": "mistral-7b-a40"}}]
        stages = hermes.simulate(data).stages
        for _, rows in stages[stages["kind"].isin(["a", "generate"])].groupby("kind", observed=True):
            counts = Counter(rows["client"].astype(str))
            if kind != "power_of_two":
                assert set(counts.values()) == {3}, name
            assert sum(counts.values()) == 3 * clients
            assert max(counts.values()) <= 3 + 2


def test_heavy_stages_go_to_the_heavy_clients():
    results = hermes.simulate(scenario({"kind": "heavy_light", "threshold": 150, "load": "kv_tokens"}))
    for _, row in results.stages.iterrows():
        assert (row["client"] in ("m-1", "m-2")) == (row["prompt_tokens"] > 150)


def test_locality_stays_where_the_data_is():
    network = {"kind": "link", "bandwidth": 1e8}
    routers = {"a": {"kind": "round_robin"}}
    results = hermes.simulate(scenario({"kind": "locality"}, routers=routers, network=network))
    clients = results.stages.pivot_table(index="request", columns="kind", values="client", aggfunc="first")
    assert (clients["a"].astype(str) == clients["b"].astype(str)).all()
    assert len(results.transfers) == 0
    assert set(clients["a"]) == {"m-0", "m-1", "m-2"}
