"""Groups of clients that differ in nothing but their names share one hardware model."""

from __future__ import annotations

from typing import Any

import hermes
from hermes.scenario import load_scenario

ONE = {"model": "llama-3.1-8b", "device": "h100-sxm"}


def scenario(*clients: dict[str, Any]) -> dict[str, Any]:
    return {"workload": {"requests": 40, "arrivals": {"kind": "poisson", "rate": 20.0},
                         "lengths": {"kind": "fixed", "prompt": 300, "output": 20}}, "clients": list(clients)}


def test_only_groups_alike_share() -> None:
    given = [{**ONE, "name": "a"}, {**ONE, "name": "b"}, {**ONE, "name": "c", "device": "h200"}, {**ONE, "name": "d"},
             {**ONE, "name": "e", "parallel": {"tp": 2}}]
    found = load_scenario(scenario(*given))
    hardware = found.source.hardware
    assert hardware[0] is hardware[1] is hardware[3]
    assert len({id(one) for one in hardware.values()}) == 3
    assert [client.name for client in found.clients] == list("abcde")
    for number, client in enumerate(given):
        assert found.clients[number] == load_scenario(scenario({**ONE, "name": "z"}, client)).clients[1]


def test_a_run_of_groups_alike_is_that_of_one_group() -> None:
    several = hermes.simulate(scenario({**ONE, "name": "llm-0"}, {**ONE, "name": "llm-1"}))
    one = hermes.simulate(scenario({**ONE, "name": "llm", "count": 2}))
    assert several.requests.drop(columns="client", errors="ignore").equals(
        one.requests.drop(columns="client", errors="ignore"))
