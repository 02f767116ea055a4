"""Views of prefix caches: exact ones find what engines find, events say the same later, and nothing is kept unasked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes import simulate
from hermes.core.generation import Generation
from hermes.core.router import RouterContext
from hermes.errors import InputError
from hermes.memory.radix import RadixPool
from hermes.routing.caches import EventsView, ExactCaches, view_of
from hermes.routing.prefixes import Prompts
from hermes.scenario import load_scenario
from hermes.scenario.build import build

EVENTS = {"kind": "events", "delay": 0.0}


def scenario(caches: Any, *, blocks: int = 160, clients: int = 3, requests: int = 80, scheduler: str = "chunked",
             asynchronous: bool | None = None, memory: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """Prompts of four groups at engines with little memory, and answers long enough to evict during runs."""
    sched: dict[str, Any] = {"kind": scheduler}
    if asynchronous is not None:
        sched |= {"async_scheduling": asynchronous, "max_num_batched_tokens": 512}
    return {
        "workload": {"requests": requests, "arrivals": {"kind": "poisson", "rate": 12.0},
                     "prefixes": {"groups": 4, "tokens": 200},
                     "lengths": {"kind": "independent",
                                 "prompt": {"kind": "lognormal", "mean": 320, "sigma": 0.5, "max": 800},
                                 "output": {"kind": "lognormal", "mean": 120, "sigma": 0.8, "max": 400}}},
        "clients": [{"name": "c", "count": clients, "scheduler": sched,
                     "hardware": {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"},
                     "memory": {"num_blocks": blocks, "prefix_caching": True, **(memory or {})}}],
        "router": {"kind": "dynamo_kv", "caches": caches}} | keys


def beliefs(data: dict[str, Any]) -> list[float]:
    values: list[float] = simulate(data).record.notes["believed_cached_tokens"].tolist()
    return values


@each("asynchronous", [False, True])
def test_events_without_delay_are_exact(asynchronous: bool) -> None:
    exact = beliefs(scenario("exact", asynchronous=asynchronous))
    assert exact == beliefs(scenario(EVENTS, asynchronous=asynchronous))
    assert len(set(exact)) > 2


@each("memory", [{}, {"prefix_eviction": "lfu"}, {"prefix_eviction": "tamm"}])
def test_events_without_delay_are_exact_with_every_order_of_eviction(memory: dict[str, Any]) -> None:
    assert beliefs(scenario("exact", memory=memory)) == beliefs(scenario(EVENTS, memory=memory))


def test_events_without_delay_are_exact_in_a_radix_tree() -> None:
    data = {"scheduler": "sglang", "blocks": 6000, "memory": {"block_size": 1}}
    exact = beliefs(scenario("exact", **data))
    assert exact == beliefs(scenario(EVENTS, **data))
    assert len(set(exact)) > 2


@pytest.mark.feature("Routing and networks", (
    "Views of caches `exact`, `events`, `approximate`; believed and found tokens, false beliefs, balance of "
    "clients, and what exact views would change"))
@quick_and_full(5, 60, thorough=200, derandomize=True)
@given(data=st.data())
def test_views_are_the_same_with_runs_and_with_single_steps(data: st.DataObject) -> None:
    caches = data.draw(st.sampled_from(["exact", EVENTS, {"kind": "events", "delay": 0.1},
                                        {"kind": "events", "delay": 0.73, "loss": 0.3}]))
    made = scenario(caches, asynchronous=data.draw(st.booleans()), blocks=data.draw(st.sampled_from([90, 160, 400])),
                    requests=40, seed=data.draw(st.integers(0, 9)))
    if data.draw(st.booleans()):
        made["workload"]["lengths"] = {
            "kind": "conversations", "turns": 3, "system_tokens": 100, "think_time": 0.3, "message": 60, "output": 70}
        del made["workload"]["prefixes"]
    runs, steps = (simulate(made | {"stepping": stepping}).record for stepping in ("runs", "every_step"))
    assert np.array_equal(runs.notes["believed_cached_tokens"], steps.notes["believed_cached_tokens"])
    assert np.array_equal(runs.stages["client"], steps.stages["client"])


def test_an_exact_view_is_what_an_idle_engine_finds() -> None:
    """Requests far apart: nothing changes between the router's choice and the engine's lookup."""
    made = scenario("exact", clients=1)
    made["workload"]["arrivals"]["rate"] = 0.01
    results = simulate(made)
    assert results.record.notes["believed_cached_tokens"].tolist() == results.stages["cached_tokens"].tolist()
    assert results.record.notes["believed_cached_tokens"].max() == 192


def test_an_idle_engine_loads_what_an_exact_view_sees_in_host_memory() -> None:
    """A prefix that the device has lost and host memory holds: believed and found alike."""
    made = scenario("exact", clients=1, blocks=70, requests=60, memory={"kv_offload": {"cpu_bytes_to_use": "40 GB"}})
    memory = made["clients"][0]["memory"]
    made["clients"][0] = {"name": "c", "model": "llama-3.1-8b", "device": "h100-sxm", "memory": memory}
    made["workload"] |= {"lengths": {"kind": "fixed", "prompt": 320, "output": 8}}
    made["workload"]["arrivals"]["rate"] = 0.1
    for stepping in ("runs", "every_step"):
        results = simulate(made | {"stepping": stepping})
        believed = results.record.notes["believed_cached_tokens"]
        assert believed.tolist() == results.stages["cached_tokens"].tolist()
        assert (believed == 192).sum() == 56, "all but the first of each group"
    made["router"]["host_credit"] = 0
    assert sum(beliefs(made)) < believed.sum()


def test_events_come_after_their_delay() -> None:
    """One client, two equal prompts a second apart: with a delay of more than that the second is believed cold."""
    made = scenario({"kind": "events", "delay": 0.0}, clients=1, requests=2)
    made["workload"] |= {"arrivals": {"kind": "uniform", "rate": 1.0, "spread": 0},
                         "prefixes": {"groups": 1, "tokens": 200},
                         "lengths": {"kind": "fixed", "prompt": 320, "output": 2}}
    for delay, second in ((0.0, 192), (0.9, 192), (1.1, 0)):
        made["router"]["caches"]["delay"] = delay
        assert beliefs(made) == [0, second], delay


@pytest.mark.parametrize("stepping", ["runs", "every_step"])
def test_a_client_without_a_cache_names_no_blocks_for_the_others(stepping: str) -> None:
    """A long request keeps `plain`, which comes first, busy; four of one prompt of 320 tokens go to `cached`, a second
    apart: from the second on all but their last block is there."""
    made = {"clients": [{"name": name, "model": "llama-3.1-8b", "device": "h100-sxm",
                         "memory": {"prefix_caching": kept}}
                        for name, kept in (("plain", False), ("cached", True))],
            "stepping": stepping, "router": {"kind": "dynamo_kv", "caches": {"kind": "events"}, "temperature": 0},
            "workload": [
                {"name": "long", "requests": 1, "arrivals": {"kind": "at_once"},
                 "lengths": {"kind": "fixed", "prompt": 3200, "output": 2000}},
                {"name": "short", "requests": 4, "arrivals": {"kind": "uniform", "rate": 1.0, "spread": 0},
                 "prefixes": {"groups": 1, "tokens": 320, "extend": False},
                 "lengths": {"kind": "fixed", "prompt": 320, "output": 2}}]}
    results = simulate(made)
    where = results.stages.set_index("request")["client"].sort_index().tolist()
    assert where == ["plain", *["cached"] * 4]
    assert results.record.notes["believed_cached_tokens"].tolist()[1:] == [0, 304, 304, 304]
    assert results.requests["cached_tokens"].tolist() == [0, 0, 304, 304, 304]


def test_a_share_of_the_messages_is_lost() -> None:
    whole, half, none = (sum(beliefs(scenario({**EVENTS, "loss": loss}, requests=200))) for loss in (0.0, 0.5, 1.0))
    assert none == 0
    assert 0 < half < whole


def test_an_engine_that_starts_again_has_lost_its_cache_at_once() -> None:
    fleet = {"start": 1, "start_up": {"total": 0.1}, "crashes": [{"at": 5.0, "replica": 0}],
             "probe": {"period": 0.1, "failures": 1, "delay": 0, "offset": 0}}
    made = scenario({"kind": "events", "delay": 0.5}, clients=1, requests=3,
                    gateway={"retries": 0, "queue": {"ttl": 10}})
    made["workload"] |= {"arrivals": {"kind": "uniform", "rate": 0.4, "spread": 0},
                         "prefixes": {"groups": 1, "tokens": 200},
                         "lengths": {"kind": "fixed", "prompt": 320, "output": 2}}
    made["clients"][0]["fleet"] = fleet
    record = simulate(made).record
    assert (record.status == 1).all()
    before = int((record.arrival_ns < 5 * 10**9).sum())
    assert record.notes["believed_cached_tokens"].tolist() == [0, *[192] * (before - 1), 0, *[192] * (2 - before)]


def test_nothing_is_logged_unless_a_router_asks() -> None:
    for router, logged in (({"kind": "dynamo_kv"}, False), ({"kind": "dynamo_kv", "caches": "exact"}, False),
                           ({"kind": "least_loaded"}, False), ({"kind": "dynamo_kv", "caches": EVENTS}, True)):
        simulation = build(load_scenario(scenario("exact", router=router, requests=5)))
        simulation.run()
        assert all((client.cache_log is not None) == logged for client in simulation.clients)
        assert all((client.scheduler.pool.log is not None) == logged for client in simulation.clients)


def test_a_tree_is_read_without_using_it() -> None:
    class Words(Generation):
        def name_runs(self, block_size: int) -> Any:
            return [("a", 3), ("b", 5)]

    pool = RadixPool(100, 1)
    first = Words(8, 2, arrival_order=1)
    pool.admit(first, 8)
    pool.commit(first, 8)
    pool.free(first)
    nodes = [(node.lo, node.hi, node.time) for node in pool.tree.walk()]
    assert pool.held_tokens(Words(8, 2, arrival_order=2)) == 5
    assert pool.held_tokens(Generation(8, 2, arrival_order=3)) == 0
    assert pool.held_tokens(Words(4, 2, arrival_order=4)) == 3, "at most all tokens but one"
    assert [(node.lo, node.hi, node.time) for node in pool.tree.walk()] == nodes
    assert pool.hit_tokens(Words(8, 2, arrival_order=5)) == 5


def test_clients_without_a_prefix_cache_are_refused_by_name() -> None:
    class Service:
        index, name = 0, "cpu"

    context = RouterContext([Service()], np.random.default_rng(0))   # type: ignore[list-item]
    for view in ("exact", EventsView()):
        with pytest.raises(InputError, match="cpu is no LLM engine and has no prefix cache"):
            view_of(view, context, Prompts(16))   # type: ignore[arg-type]


def test_stages_that_share_nothing_are_not_looked_up() -> None:
    class Engine:
        def cached_tokens(self, stage: Any) -> int:
            raise AssertionError("there is nothing to find")

        def caches_in_host(self) -> bool:
            return True

        def host_tokens(self, stage: Any, past: int) -> int:
            raise AssertionError("there is nothing to find")

    view = ExactCaches([Engine()], Prompts(16))   # type: ignore[list-item]
    stage = Generation(100, 1)
    assert view.matches(stage, Prompts(16).hashed(stage)) == {}
