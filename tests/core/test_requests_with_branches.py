"""Requests with branches from arrival to results, small enough to follow by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outcomes import run, stage_token_steps

from hermes.results import Results
from hermes.results.files.export import write_results
from hermes.results.files.stored import open_run
from hermes.results.files.trace import trace_events

Data = dict[str, Any]
MODES = ("runs", "every_step")
US = 1e-6


def client(name: str, role: str = "both", *, blocks: int = 1000, **hardware: int) -> Data:
    slow = {"kind": "test_ticks", "per_token": 10**6, "per_ctx": 10**6}
    return {
        "name": name, "role": role, "hardware": slow | hardware, "scheduler": {"kind": "chunked"},
        "memory": {"block_size": 4, "num_blocks": blocks, "kv_bytes_per_token": 1.0},
    }


class Listed:
    """Output tokens of branches written out, in place of those a workload draws."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: list[tuple[int, ...]]) -> None:
        monkeypatch.setattr("hermes.workload.workload.branch_tokens", lambda *_: np.array(rows, dtype=np.int64))


def scenario(clients: list[Data], prompts: list[int], units: list[int], branches: int, **more: Any) -> Data:
    return {
        "clients": clients, "workload": {
            "requests": len(prompts), "arrivals": {"kind": "test_listed", "units": units},
            "lengths": {"kind": "test_listed", "rows": [[prompt, 9, 0, -1, -1, 0] for prompt in prompts]},
            "branches": branches,
        }, **more,
    }


def tokens(record: Any) -> dict[tuple[str, int], list[int]]:
    """By kind of stage and branch: the units at which its tokens came."""
    stages = record.stages
    return {
        (record.stage_kinds[stages["kind"][row]], int(stages["branch"][row])):
        (record.step_ends[stages["client"][row]][stage_token_steps(record, row)] // 1000).tolist()
        for row in range(len(stages["kind"]))
    }


@pytest.mark.parametrize("mode", MODES)
def test_metrics_of_branches(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Listed(monkeypatch, [(2, 4, 7)])
    # Steps take 1 unit, and 1 more for every 3 tokens: 2 for the prompt, 2 while three branches decode, then 1.
    outcome = run(scenario([client("c", per_token=3)], [5], [10], 3), mode)
    assert tokens(outcome.record) == {
        ("generate", 0): [12, 14], ("generate", 1): [12, 14, 15, 16], ("generate", 2): [12, 14, 15, 16, 17, 18, 19],
    }
    results = Results(outcome.record)
    request = results.requests.iloc[0]
    assert request["ttft_s"] == pytest.approx(2 * US)
    assert request["e2e_s"] == pytest.approx(9 * US)
    assert request["tpot_s"] == pytest.approx((2 + 4 / 3 + 7 / 6) / 3 * US)
    assert request["tpot_worst_s"] == pytest.approx(2 * US)
    assert request["branch_spread_s"] == pytest.approx(5 * US)
    assert (request["branches"], request["emitted_tokens"], request["stages"]) == (3, 13, 3)
    assert request["compute_s"] == pytest.approx(9 * US), "the branches run side by side"
    assert results.summary["tokens"] == {"output": 13, "answers": 13, "prompt": 5, "cached": 0}
    assert results.summary["branches"]["duration_s"]["max"] == pytest.approx(7 * US)
    branches = results.branches
    assert branches["duration_s"].tolist() == pytest.approx([2 * US, 4 * US, 7 * US])
    assert branches["output_tokens"].tolist() == [2, 4, 7]
    assert len(results.token_times_s(0)) == 13


@pytest.mark.parametrize("mode", MODES)
def test_kv_moves_once_to_one_decode_client(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Listed(monkeypatch, [(3, 1, 2)])
    data = scenario([client("p", "prefill"), {**client("d", "decode"), "count": 3}], [10], [0], 3,
                    network={"kind": "link", "bandwidth": 1e7, "latency": 0}, first_token="prefill")
    record = run(data, mode).record
    # A byte a token, ten bytes a unit: the KV is there at 2.
    assert tokens(record) == {
        ("prefill", 0): [1], ("generate", 1): [1], ("prefill", 2): [1], ("decode", 0): [3, 4], ("decode", 2): [3],
    }
    assert record.transfers["bytes"].tolist() == [10]
    decodes = record.stages["kind"] == record.stage_kinds.index("decode")
    assert len(set(record.stages["client"][decodes].tolist())) == 1
    used = record.runs["used_blocks"][record.runs["client"] > 0]
    assert used.max() == 2 + 1 + 1, "two whole blocks, and a third of each branch's own"
    results = Results(record)
    request = results.requests.iloc[0]
    assert request["emitted_tokens"] == 6
    assert request["tpot_s"] == pytest.approx((3 / 2 + 2) / 2 * US)
    assert request["branch_spread_s"] == pytest.approx(3 * US)
    assert request["queue_s"] == pytest.approx(0)
    assert request["communication_s"] == pytest.approx(1 * US)
    assert results.summary["tokens"]["prompt"] == 10
    assert sum(request[f"path_{cause}_s"] for cause in ("queue", "communication", "compute")) == pytest.approx(4 * US)
    assert request["path_communication_s"] == pytest.approx(1 * US)


@pytest.mark.parametrize("mode", MODES)
def test_first_tokens_of_branches_come_from_the_decode_client(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Listed(monkeypatch, [(3, 1, 2)])
    data = scenario([client("p", "prefill"), client("d", "decode")], [10], [0], 3,
                    network={"kind": "link", "bandwidth": 1e7, "latency": 0})
    results = Results(run(data, mode).record)
    request = results.requests.iloc[0]
    # The KV is there at 2; each branch computes the prompt's last token, and then its own.
    assert (request["emitted_tokens"], request["stages"]) == (6, 6)
    assert (request["ttft_s"], request["prefill_ttft_s"]) == pytest.approx((3 * US, 1 * US))
    assert request["tpot_s"] == pytest.approx(1 * US)
    assert results.branches["output_tokens"].tolist() == [3, 1, 2]
    assert results.branches["duration_s"].tolist() == pytest.approx([2 * US, 0, 1 * US])


def test_two_prefills_fill_the_memory_of_the_decode_client(monkeypatch: pytest.MonkeyPatch) -> None:
    # Prompts of 8 tokens and a first one here are 3 blocks; with two more branches each, 5 of 6.
    Listed(monkeypatch, [(3, 3, 3)] * 2)
    for mode in MODES:
        data = scenario([client("p", "prefill"), client("d", "decode", blocks=6)], [8, 8], [0, 0], 3)
        record = run(data, mode).record
        assert record.status.tolist() == [1, 1]


def test_the_longest_branch_decides_whether_a_request_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    Listed(monkeypatch, [(2, 14, 2), (2, 13, 2)])
    record = run(scenario([client("c", blocks=5)], [8, 8], [0, 0], 3)).record
    assert record.status.tolist() == [2, 1]
    assert "needs 6 KV blocks of 4 tokens for 8 prompt and 14 output tokens" in record.reject_reasons[0]


def test_written_and_read_back(tmp_path: Path) -> None:
    record = run(scenario([client("c", blocks=12)], [10, 7], [0, 3], 4)).record
    results = Results(record)
    write_results(results, tmp_path)
    stored = open_run(tmp_path)
    assert stored.branches.equals(results.branches)
    assert stored.summary == json.loads(json.dumps(results.summary))
    assert stored.requests["tpot_worst_s"].tolist() == results.requests["tpot_worst_s"].tolist()


def test_the_trace_shows_branches() -> None:
    results = Results(run(scenario([client("c")], [10], [0], 3)).record)
    spans = [e for e in trace_events(results.record, results.metrics) if e.get("cat") == "stage" and e["ph"] == "b"]
    assert [(e["name"], e["ts"]) for e in spans] == [
        ("generate branch 0", 0.0), ("generate branch 1", 1.0), ("generate branch 2", 1.0),
    ]


@pytest.mark.parametrize("role", ["both", "prefill"])
def test_joules_add_up(role: str) -> None:
    power = {"power": {"idle": 100, "prefill": 500, "decode": 300}}
    clients = [client("c", role, per_token=3) | power]
    if role == "prefill":
        clients.append(client("d", "decode", per_token=3) | power)
    energy = Results(run(scenario(clients, [10, 6], [0, 2], 4)).record).summary["energy"]
    assert energy["unattributed_j"] == pytest.approx(0, abs=1e-12)
    assert energy["requests_j"] + energy["idle_j"] == pytest.approx(energy["total_j"])


def test_branches_take_less_memory_and_prefill_than_copies() -> None:
    """The same tokens as independent generations would have."""
    clients = [client("c", per_token=4, per_ctx=50)]
    shared = run(scenario(clients, [40], [0], 8)).record
    apart = run(scenario(clients, [40] * 8, [0] * 8, 1)).record
    assert shared.stages["output_tokens"].sum() == apart.stages["output_tokens"].sum() == 8 * 9
    assert (shared.runs["prefill_tokens"].sum(), apart.runs["prefill_tokens"].sum()) == (40, 8 * 40)
    assert apart.runs["used_blocks"].max() - shared.runs["used_blocks"].max() == 7 * (40 // 4)
