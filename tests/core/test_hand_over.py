"""Disaggregated prefill and decode in scenarios small enough to follow by hand."""

from __future__ import annotations

from typing import Any

import pytest
from found_parts import handoff_of
from outcomes import run

import hermes
from hermes.results import Results
from hermes.scenario import load_scenario
from hermes.scenario.build import build

Data = dict[str, Any]


def client(name: str, role: str, *, blocks: int = 1000, kind: str = "chunked", **hardware: int) -> Data:
    slow = {"kind": "test_ticks", "per_token": 10**6, "per_ctx": 10**6}
    return {
        "name": name, "role": role, "hardware": slow | hardware,
        "scheduler": {"kind": kind}, "memory": {"block_size": 1, "num_blocks": blocks, "kv_bytes_per_token": 1.0},
    }


def scenario(clients: list[Data], rows: list[list[int]], units: list[int], **more: Any) -> Data:
    return {
        "clients": clients, "workload": {
            "requests": len(rows), "arrivals": {"kind": "test_listed", "units": units},
            "lengths": {"kind": "test_listed", "rows": [[*row, 0, -1, -1, 0] for row in rows]},
        }, **more,
    }


@pytest.mark.feature("LLM clients", "Disaggregated prefill and decode")
@pytest.mark.parametrize("kind", ["chunked", "continuous", "mixed"])
def test_kv_that_fills_the_memory_can_still_go_on(kind: str) -> None:
    # Prompts of 3 tokens fill all 6 blocks; each needs another block for its next token.
    clients = [client("p", "prefill"), client("d", "decode", blocks=6, kind=kind)]
    for stepping in ("runs", "every_step"):
        record = run(scenario(clients, [[3, 3], [3, 3]], [0, 0]), stepping).record
        assert record.status.tolist() == [1, 1]


US = 1e-6


def moved(**more: Any) -> Results:
    """Results of one request: a prompt of 10 tokens, 3 output tokens, steps of a microsecond, 25 kB of KV a token."""
    clients = [client("p", "prefill"), client("d", "decode")]
    for one in clients:
        one["memory"]["kv_bytes_per_token"] = 25_000.0
    return hermes.simulate(scenario(clients, [[10, 3]], [0], **more))


@pytest.mark.parametrize("stepping", ["runs", "every_step"])
def test_the_first_token_comes_from_the_decode_client_after_the_kv(stepping: str) -> None:
    # The prefill ends at 1 us. 250 kB take 5 us at 50 GB/s, and the decode client's three steps end at 7, 8 and 9.
    found = moved(stepping=stepping)
    request = found.requests.iloc[0]
    assert [request[name] for name in ("ttft_s", "prefill_ttft_s", "tpot_s", "e2e_s")] == pytest.approx(
        [7 * US, 1 * US, 1 * US, 9 * US])
    assert found.token_times_s(0).tolist() == pytest.approx([7 * US, 8 * US, 9 * US])
    assert found.stages["output_tokens"].tolist() == [0, 3]
    latency = found.summary["latency"]
    assert (latency["ttft_s"]["p99"], latency["prefill_ttft_s"]["p99"]) == pytest.approx((7 * US, 1 * US))
    assert found.summary["tokens"] == {"output": 3, "answers": 3, "prompt": 10, "cached": 0}
    assert found.summary["headline"]["output_tokens_per_s"] == pytest.approx(3 / (9 * US))
    assert "prefill's own 1 µs, 1 µs" in found.to_text().splitlines()[2]


def test_the_first_token_may_come_from_the_prefill_client() -> None:
    found = moved(first_token="prefill")
    request = found.requests.iloc[0]
    assert [request[name] for name in ("ttft_s", "prefill_ttft_s", "tpot_s", "e2e_s")] == pytest.approx(
        [1 * US, 1 * US, 3.5 * US, 8 * US])
    assert found.stages["output_tokens"].tolist() == [1, 2]


@pytest.mark.feature("Routing and networks", (
    "Networks `ideal`, `kv_link` (the default), `link`, `topology` with max-min fair sharing"))
def test_kv_takes_a_link_unless_the_network_is_named() -> None:
    ends = {network: moved(network={"kind": network}, first_token="prefill").requests["e2e_s"].iloc[0] / US
            for network in ("ideal", "kv_link")}
    assert ends == pytest.approx({"ideal": 3, "kv_link": 8})
    simulation = build(load_scenario(scenario([client("p", "prefill"), client("d", "decode")], [[10, 3]], [0])))
    handoff = handoff_of(simulation)
    assert handoff is not None
    assert handoff.network.estimate_ns("p", "d", 50_000_000_000) == 1_000_000_000
    assert simulation.network.estimate_ns("p", "d", 50_000_000_000) == 0   # all that is not KV of a hand-over


def test_kv_moves_at_50_gb_a_second_by_default() -> None:
    # 250 kB: 5 us later than where KV moves in no time.
    default, ideal = (found.requests["e2e_s"].iloc[0] / US for found in (moved(), moved(network={"kind": "ideal"})))
    assert default - ideal == pytest.approx(5)


def test_a_single_token_comes_from_the_decode_client_too() -> None:
    clients = [client("p", "prefill"), client("d", "decode")]
    record = run(scenario(clients, [[10, 1], [1, 1]], [0, 10])).record
    kinds = [record.stage_kinds[code] for code in record.stages["kind"]]
    assert kinds == ["prefill", "decode"] * 2
    assert record.stages["output_tokens"].tolist() == [0, 1] * 2


def test_output_tokens_of_a_decode_client_leave_out_the_first() -> None:
    # Each decode client has 4 tokens to give (2 + 2, and 4): equally loaded, so the fourth request goes to the first.
    clients = [client("p", "prefill"), {**client("d", "decode", base=100), "count": 2}]
    rows, router = [[3, 3], [3, 5], [3, 3], [3, 9]], {"kind": "least_loaded", "load": "output_tokens"}
    outcome = run(scenario(clients, rows, [0, 2, 4, 6], router={"kind": "test_probe", "router": router},
                           first_token="prefill"))
    stages = outcome.record.stages
    decodes = stages["kind"] == outcome.record.stage_kinds.index("decode")
    target = dict(zip(stages["request"][decodes].tolist(), stages["client"][decodes].tolist(), strict=True))
    assert target == {0: 1, 1: 2, 2: 1, 3: 1}
