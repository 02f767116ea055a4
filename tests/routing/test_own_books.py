"""A router's own books: by hand, and empty once all requests have ended, whatever became of them."""

from __future__ import annotations

from typing import Any

import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full
from pods import Pod, Pool

from hermes.core.client import Client
from hermes.errors import InputError
from hermes.routing.own import OwnBooks
from hermes.scenario import load_scenario
from hermes.scenario.build import build

ROUTERS: list[dict[str, Any]] = [
    {"kind": "dynamo_kv"}, {"kind": "sglang_cache_aware"}, {"kind": "aibrix_prefix"},
    {"kind": "least_loaded", "load": "requests", "view": "own"},
]


def books_of(made: Pool) -> list[list[int]]:
    books: OwnBooks = made.router._books
    return [books.in_flight.tolist(), books.computing.tolist(), books.kv_tokens.tolist()]


def test_a_request_by_hand() -> None:
    made = Pool(2, "least_loaded", load="input_tokens", view="own")
    first, second = made.stage(tokens=30), made.stage(tokens=10)
    a: Client = made.router.choose(first)
    assert books_of(made) == [[1, 0], [30, 0], [30, 0]]
    assert made.router.choose(second).index == 1
    made.router.observe("prefilled", a, first)
    assert books_of(made) == [[1, 1], [0, 10], [30, 10]]
    assert made.send(tokens=5) == 0, "its prompt is computed"
    made.router.observe("transferred", made.pods[1], first)
    assert books_of(made)[0] == [2, 1], "it was not there"
    made.router.observe("done", a, first)
    made.router.observe("refused", made.pods[1], second)
    assert books_of(made) == [[1, 0], [5, 0], [5, 0]]


def test_kv_that_leaves_ends_a_request_here_and_counts_where_it_goes_on() -> None:
    made = Pool([Pod(0, role="prefill"), Pod(1, role="decode")], "least_loaded", load="kv_tokens", view="own")
    stage = made.stage(tokens=30)
    assert made.router.choose(stage).index == 0
    made.router.observe("prefilled", made.pods[0], stage)
    made.router.observe("transferred", made.pods[0], stage)
    assert books_of(made) == [[0, 0], [0, 0], [0, 0]]
    stage.source = made.pods[0]   # type: ignore[assignment]
    made.members(1)
    assert made.router.choose(stage).index == 1
    assert books_of(made) == [[0, 1], [0, 0], [0, 30]]
    assert made.router.choose(stage).index == 1
    assert books_of(made)[0] == [0, 1], "asked again for the same stage"


@each("load", ["tokens_left", "kv_use", "output_tokens"])
def test_what_the_books_do_not_show_is_refused(load: str) -> None:
    made = {"workload": {"requests": 1, "arrivals": {"kind": "at_once"},
                         "lengths": {"kind": "fixed", "prompt": 8, "output": 2}},
            "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm"}],
            "router": {"kind": "least_loaded", "load": load, "view": "own"}}
    with pytest.raises(InputError, match=f"router.load: the router's own books do not show {load}"):
        load_scenario(made)


def left_over(data: dict[str, Any]) -> list[int]:
    """Run a scenario; return what its routers' books hold at the end."""
    simulation = build(load_scenario(data))
    routers = {id(router): router for router in simulation.coordinator.routers.values()}.values()
    simulation.run()
    left: list[int] = []
    for router in routers:
        books: OwnBooks = getattr(router, "books", None) or router._books   # type: ignore[attr-defined]
        left += [*books.in_flight.tolist(), *books.computing.tolist(), *books.kv_tokens.tolist(), len(books._sent)]
        if hasattr(router, "active"):
            left += [*router.active.blocks.tolist(), len(router.active._prompts), len(router.active._ends)]
    return left


@pytest.mark.feature("Routing and networks", "A router's own books (`view: own`), session affinity hard and soft")
@quick_and_full(10, 100, thorough=400, derandomize=True)
@given(data=st.data())
def test_books_are_empty_when_all_has_ended(data: st.DataObject) -> None:
    """With crashes, retries, time-outs, clients that give up, limits of queues, branches, and prefill apart."""
    engine: dict[str, Any] = {"model": "llama-3.1-8b", "device": "h100-sxm", "memory": {"num_blocks": 700}}
    made: dict[str, Any] = {
        "seed": data.draw(st.integers(0, 9)), "router": data.draw(st.sampled_from(ROUTERS)),
        "workload": {"requests": 80, "arrivals": {"kind": "poisson", "rate": 120.0},
                     "prefixes": {"groups": 3, "tokens": 100},
                     "lengths": {"kind": "fixed", "prompt": 300, "output": data.draw(st.sampled_from([1, 40]))}},
        "clients": [{"name": "c", "count": 2, **engine}]}
    shape = data.draw(st.sampled_from(["plain", "crashes", "roles", "limits", "patience", "branches"]))
    if shape == "crashes":
        made["clients"][0]["fleet"] = {
            "start": 2, "start_up": {"total": 0.1},
            "probe": {"period": 0.02, "failures": 2, "delay": 0.005, "offset": 0},
            "crashes": [{"at": 0.1, "replica": 0}, {"at": 0.25, "replica": 1}]}
        made["gateway"] = {"retries": 3, "backoff": data.draw(st.sampled_from([0.0, 0.04])), "begun": "restart",
                           "per_try": 0.2, "cancel_delay": 0.02, "queue": {"ttl": 0.05}}
    elif shape == "roles":
        made["clients"] = [{"name": "p", "role": "prefill", **engine}, {"name": "d", "role": "decode", **engine}]
        made["network"] = {"kind": "link", "bandwidth": "50 GB/s"}
    elif shape == "limits":
        made["clients"][0]["scheduler"] = {"kind": "chunked", "max_num_queued_reqs": 8}
    elif shape == "patience":
        made["workload"]["patience"] = {"first_token": 0.05, "total": 0.3}
    elif shape == "branches":
        made["workload"]["branches"] = 3
    assert not any(left_over(made))


@each("router", ROUTERS)
def test_embeddings_under_a_gateway_leave_the_books(router: dict[str, Any]) -> None:
    made = {
        "workload": {"requests": 30, "arrivals": {"kind": "poisson", "rate": 60}, "pipeline": "g",
                     "lengths": {"kind": "fixed", "prompt": 100, "output": 4}},
        "pipelines": {"g": {"stages": {"e": {"kind": "embed"}, "answer": {"kind": "generate", "after": "e"}}}},
        "clients": [{"name": "c", "count": 2, "model": "llama-3.1-8b", "scheduler": {"kind": "heterogeneous"},
                     "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
                     "memory": {"num_blocks": 900}}],
        "gateway": {"retries": 1}, "router": router}
    assert not any(left_over(made))
