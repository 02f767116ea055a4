"""Elastic pools: placements small enough to follow by hand, and random ones in both stepping modes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from long_runs import quick_and_full
from outcomes import Outcome, assert_same, run
from random_scenarios import groups, networks, workloads

from hermes.errors import InputError
from hermes.routing.mixed_pool import MixedPool
from hermes.scenario import load_scenario
from hermes.scenario.build import build

Data = dict[str, Any]


def group(name: str, count: int = 1, *, blocks: int = 1000, base: int = 10, **more: Any) -> Data:
    return {
        "name": name, "count": count,
        "hardware": {"kind": "test_ticks", "base": base, "per_token": 1000, "per_ctx": 10**6},
        "scheduler": {"kind": "mixed", "reservation": "up_front", "max_num_batched_tokens": 100},
        "memory": {"block_size": 1, "num_blocks": blocks, "kv_bytes_per_token": 1.0}, **more,
    }


def scenario(
    clients: list[Data], rows: list[tuple[int, int, int]], router: Data | None = None, **more: Any
) -> Data:
    """rows: arrival in units (microseconds; a step takes 10), prompt, output."""
    pools = {"kind": "mixed_pool", "prompt": ["p"], "token": ["t"], **(router or {})}
    return {
        "clients": clients, "router": pools, "workload": {
            "requests": len(rows), "arrivals": {"kind": "test_listed", "units": [row[0] for row in rows]},
            "lengths": {"kind": "test_listed", "rows": [[*row[1:], 0, -1, -1, 0] for row in rows]},
        }, **more,
    }


def placed(data: Data) -> list[tuple[str, str]]:
    """Per request the clients of its two phases, the same in both modes; all of them completed."""
    outcome = run(data)
    assert_same(outcome, run(data, "every_step"))
    record = outcome.record
    assert (record.status == 1).all(), record.reject_reasons
    balanced(outcome)
    names = [client.name for client in record.clients]
    first, last = {}, {}
    for request, kind, client in zip(*(record.stages[c].tolist() for c in ("request", "kind", "client")), strict=True):
        if record.stage_kinds[kind] != "decode":
            first[request] = names[client]
            last.setdefault(request, names[client])
        else:
            last[request] = names[client]
    return [(first[i], last[i]) for i in range(len(record.status))]


def balanced(outcome: Outcome) -> None:
    """Nothing is left in the router's books, and everybody but idle lenders is at home."""
    for router in outcome.simulation.coordinator.routers.values():
        router = getattr(router, "_router", router)
        assert isinstance(router, MixedPool)
        assert not router._placed
        for book in router._books:
            assert (book.pending_tokens, book.scheduled_tokens, book.chained) == (0, 0, 0), book.client.name
        assert sorted(book.client.index for book in router._listed()) == list(range(len(router._books)))


def test_fewest_pending_tokens_and_least_memory_ties_to_the_first() -> None:
    rows = [(0, 30, 5), (1, 20, 5), (2, 5, 5), (3, 5, 5), (4, 5, 5)]
    # Pending tokens: 0 and 0, 30 and 0, 30 and 20, 30 and 25, 30 and 30. Memory: 0 0, 35 0, 35 25, 35 35, 45 35.
    assert placed(scenario([group("p", 2), group("t", 2)], rows)) == [
        ("p-0", "t-0"), ("p-1", "t-1"), ("p-1", "t-1"), ("p-1", "t-0"), ("p-0", "t-1"),
    ]


def test_a_pool_with_a_long_queue_borrows_and_the_borrowed_client_goes_home() -> None:
    rows = [(0, 40, 3), (1, 40, 3), (2, 40, 3), (200, 40, 3)]
    # 1 queues behind 0: nobody did, so the limit did not count. 2 finds a queue, and t-0 is borrowed, which decodes it
    # as well, since the decode was placed before that. At 200 t-0 is home again, at the end of the list.
    assert placed(scenario([group("p"), group("t", 2)], rows, {"max_pending_tokens": 60})) == [
        ("p", "t-0"), ("p", "t-1"), ("t-0", "t-0"), ("p", "t-1"),
    ]


def test_a_borrowed_client_is_asked_before_another_is_borrowed() -> None:
    rows = [(0, 40, 3), (1, 40, 3), (2, 5, 3), (3, 5, 3), (4, 40, 3)]
    # 2 borrows t-2, which has no decodes; 3 fits within the limit there; 4 does not, and finds t-1 with fewer decodes.
    got = placed(scenario([group("p"), group("t", 3)], rows, {"max_pending_tokens": 30}))
    assert [prompt for prompt, _ in got] == ["p", "p", "t-2", "t-2", "t-1"]


def test_full_token_clients_borrow_from_the_prompt_pool() -> None:
    clients = [group("p", 2), group("t", blocks=50)]
    rows = [(0, 20, 20), (1, 20, 20), (2, 20, 20)]
    # 40 of t's 50 are promised to 0; 1 goes to the prompt client with the least memory, and so does 2: it is mixed now.
    assert placed(scenario(clients, rows)) == [("p-0", "t"), ("p-1", "p-1"), ("p-0", "p-1")]


def test_both_phases_on_one_client_where_a_pool_is_empty() -> None:
    clients = [group("p", blocks=60), group("t", blocks=60)]
    rows = [(0, 20, 20), (1, 20, 20), (2, 20, 20), (3, 20, 20)]
    got = placed(scenario(clients, rows, {"max_pending_tokens": 1}))
    assert got[0] == ("p", "t")
    assert any(prompt == token for prompt, token in got)


def test_clients_in_neither_list_serve_both_phases() -> None:
    rows = [(i, 20, 4) for i in range(12)]
    got = placed(scenario([group("p"), group("t"), group("m")], rows, {"max_pending_tokens": 30}))
    assert {"m"} <= {prompt for prompt, _ in got}


def test_pools_by_role_where_no_names_are_given() -> None:
    clients = [group("p", 2, role="prefill"), group("d", 1, role="decode")]
    rows = [(i, 20, 4) for i in range(9)]
    got = placed(scenario(clients, rows, {"prompt": [], "token": [], "max_pending_tokens": 1}))
    assert {prompt for prompt, _ in got} == {"p-0", "p-1"}
    assert {token for _, token in got} == {"d"}


def test_one_output_token_needs_no_decode() -> None:
    outcome = run(scenario([group("p"), group("t")], [(0, 5, 1), (1, 5, 1)]))
    assert outcome.record.stages["client"].tolist() == [0, 0]
    assert len(outcome.record.transfers["request"]) == 0
    balanced(outcome)


def test_what_can_never_fit_leaves_no_trace_in_the_books() -> None:
    outcome = run(scenario([group("p", blocks=30), group("t", blocks=30)], [(0, 28, 3), (1, 5, 5), (2, 40, 1)]))
    assert outcome.record.status.tolist() == [2, 1, 2]
    balanced(outcome)


@pytest.mark.parametrize("retry", [None, 5e-5])
def test_clients_full_of_kv_for_each_other_start_over(retry: float | None) -> None:
    """Each client holds a prompt's KV that is to go to the other, and has no room for what the other holds."""

    class CrossWise:   # 0 and 1 each prefill one that the other is to decode
        def __init__(self, clients: list[Any]) -> None:
            self.clients = clients

        def choose(self, stage: Any) -> Any:
            here = stage.request.id % 2
            stage.decode_on = self.clients[1 - here]
            return self.clients[here]

    outcomes = []
    for stepping in ("runs", "every_step"):
        data = scenario([group("p", blocks=50), group("t", blocks=50)], [(0, 30, 5), (0, 30, 5)],
                        kv_transfer_retry=retry, stepping=stepping, first_token="prefill")
        checked = load_scenario(data)
        simulation = build(checked)
        simulation.coordinator.routers = {("generate", ""): CrossWise(simulation.clients)}
        record = simulation.run()
        assert record.status.tolist() == [1, 1]
        assert record.stages["output_tokens"].tolist().count(4) == 2
        assert 0 in record.transfers["bytes"].tolist()   # one was handed over without its KV
        assert record.stages["preemptions"].sum() == 1
        for client in simulation.clients:
            assert client.scheduler.pool.free_blocks == 50
        outcomes.append(record.finish_ns.tolist())
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(("change", "field"), [
    ({"router": {"kind": "mixed_pool", "prompt": ["p"], "token": ["q"]}}, "router.token.0"),
    ({"router": {"kind": "mixed_pool", "prompt": ["p", "t"], "token": ["t"]}}, "router.token.0"),
    ({"kv_transfer_scope": "local"}, "kv_transfer_scope"),
])
def test_what_makes_no_sense_is_refused(change: Data, field: str) -> None:
    checked = load_scenario({**scenario([group("p"), group("t")], [(0, 5, 5)]), **change})
    with pytest.raises(InputError) as caught:
        build(checked)
    assert caught.value.field == field


@st.composite
def elastic(draw: st.DrawFn) -> Data:
    names = ("p", "t", "m")[: draw(st.sampled_from([2, 2, 2, 3]))]
    kinds = draw(st.sampled_from([("mixed",), ("mixed", "chunked", "continuous")]))
    clients = [draw(groups(name, kinds)) for name in names]
    if draw(st.booleans()):
        clients[1]["memory"] = clients[0]["memory"]
    in_milliseconds = any(client["hardware"]["kind"] == "polynomial" for client in clients)
    pools = {"kind": "mixed_pool", "prompt": ["p"], "token": ["t"],
             "max_pending_tokens": draw(st.sampled_from([1, 20, 60, 8192]))}
    return {
        "clients": clients, "workload": [draw(workloads("w", 24))], "router": {"kind": "test_probe", "router": pools},
        "network": draw(networks(names)),
        "kv_transfer_retry": draw(st.sampled_from([None, 3e-3 if in_milliseconds else 3e-6])),
    }


@quick_and_full(8, 60, derandomize=True,
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=elastic())
def test_runs_equal_single_steps_and_books_balance(data: Data) -> None:
    runs = run(data)
    assert_same(runs, run(data, "every_step"))
    assert (runs.record.status != 0).all()
    balanced(runs)
    for client in runs.simulation.clients:
        assert client.scheduler.pool.free_blocks == client.scheduler.pool.num_blocks
