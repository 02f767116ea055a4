"""Groups whose pools have one name share its nodes: a budget of devices over several deployments."""

from __future__ import annotations

from typing import Any

import pytest
from conservation import assert_nothing_leaks, ran

from hermes.core.record import GONE, READY, STARTING
from hermes.errors import InputError

S = 1_000_000_000


def group(name: str, most: int, *changes: tuple[float, int], start: int = 1, **pool: Any) -> dict[str, Any]:
    phases = {"process": 1.0, "tokenizer": 0, "weights": 0, "compile": 0, "profiling": 0, "capture": 0, "probe": 0}
    return {
        "name": name, "count": 4, "model": "llama-3.1-8b", "memory": {"num_blocks": 400},
        "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
        "fleet": {"start": start, "start_up": {
            **phases, "pool": {"name": "cards", "provisioning": 2.0, "most": most, "keep": 0, **pool}},
            "autoscaler": {"kind": "schedule", "changes": [{"at": at, "replicas": n} for at, n in changes]}}}


def scenario(*groups: dict[str, Any]) -> dict[str, Any]:
    return {"clients": list(groups), "router": {"kind": "least_loaded"}, "gateway": {"queue": {"ttl": 60}},
            "workload": {"requests": 200, "arrivals": {"kind": "poisson", "rate": 20},
                         "lengths": {"kind": "fixed", "prompt": 64, "output": 16}}}


@pytest.mark.feature("Plug-ins of research", "Groups that share the nodes of a pool (`start_up.pool.name`)")
def test_a_group_waits_for_what_another_one_gives_back_by_hand() -> None:
    """Four nodes: one of each group at the start, and two that `a` orders at 1 s, which join at 3 s and are ready at
    4 s. `b` wants another one at 2 s: there is none until a replica of `a` has drained, from 6 s on; it takes that node
    at once, and is ready a second later."""
    simulation, record = ran(scenario(group("a", 4, (1.0, 3), (6.0, 1)), group("b", 4, (2.0, 2))))
    assert_nothing_leaks(simulation)
    rows = [(record.clients[client].name, time / S, state) for client, _, time, state in record.membership.tolist()
            if time and state in (STARTING, READY, GONE)]
    first = {key: min(time for name, time, state in rows if (name, state) == key) for key in {
        (name, state) for name, _, state in rows}}
    assert first["a-1", READY] == first["a-2", READY] == 4.0
    gone = min(first["a-1", GONE], first["a-2", GONE])
    assert gone > 6.0
    assert first["b-1", STARTING] == gone
    assert first["b-1", READY] == pytest.approx(gone + 1.0, abs=1e-9)


def test_groups_that_describe_a_pool_in_two_ways_are_refused() -> None:
    with pytest.raises(InputError, match="described in two ways") as found:
        ran(scenario(group("a", 4, (1.0, 2)), group("b", 5, (1.0, 2))))
    assert found.value.field == "clients.1.fleet.start_up.pool"


def test_replicas_at_the_start_fit_the_pool() -> None:
    with pytest.raises(InputError, match="nodes at the start of all its groups, 4 or more") as found:
        ran(scenario(group("a", 3, (1.0, 3), start=2), group("b", 3, (1.0, 3), start=2)))
    assert found.value.field == "clients.1.fleet.start_up.pool.most"
