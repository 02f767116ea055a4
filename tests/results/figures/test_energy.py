"""Joules of requests and dollars: what is shared adds up, equal requests pay alike, sources are named."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full
from synthetic_records import by_hand, random_record

from hermes import simulate
from hermes.results import Results
from hermes.results.figures.energy import attribute
from hermes.results.figures.usage import client_usages, window_ns
from hermes.results.files.export import write_results
from hermes.results.files.stored import open_run
from hermes.scenario import load_scenario
from hermes.units import NS_PER_S

POWER = {"idle": 90.0, "prefill": 600.0, "decode": 400.0}


def scenario(tmp_path: Path, **changes: object) -> Results:
    import yaml

    client = {
        "name": "a", "model": "llama-3.1-8b",
        "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
    }
    roles = changes.pop("roles", ["both"])
    assert isinstance(roles, list)
    data = {
        "seed": 3,
        "workload": {"requests": 60, "arrivals": {"kind": "poisson", "rate": 30.0},
                     "lengths": {"kind": "fixed", "prompt": 700, "output": 50}},
        "clients": [client | changes | {"name": f"{role}-{i}", "role": role} for i, role in enumerate(roles)],
    }
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(data))
    return simulate(load_scenario(path))


def assert_adds_up(results: Results) -> None:
    energy = results.summary["energy"]
    shares = results.requests["energy_j"].to_numpy()
    assert (shares >= 0).all()
    assert shares.sum() == pytest.approx(energy["requests_j"])
    assert energy["requests_j"] + energy["unattributed_j"] + energy["idle_j"] == pytest.approx(energy["total_j"])


@given(st.integers(0, 10**6))
@quick_and_full(20, 60)
def test_shares_and_idle_are_all_there_is(seed: int) -> None:
    record, _ = random_record(seed)
    usages = client_usages(record)
    shared = attribute(record, usages)
    assert (shared.request_j >= -1e-9).all()
    busy = math.fsum(u.prefill_j + u.decode_j for u in usages)
    assert math.fsum(shared.request_j) + shared.unattributed_j == pytest.approx(busy, rel=1e-9)


def test_by_hand() -> None:
    record = by_hand()
    for client in record.clients:   # requests 0 and 1 alone in their steps of client 0, request 5 beside 1
        client.idle_w = 0.0
    shared = attribute(record, client_usages(record))
    # step 0: prompt of request 0 (1000 W, 10 ms); steps 1 and 2: its decodes (500 W)
    assert shared.request_j[0] == pytest.approx(10 + 2 * 5)
    assert shared.request_j[3] == 0.0


@pytest.mark.parametrize(
    "changes", [{}, {"power": POWER}, {"roles": ["prefill", "decode"]}, {"roles": ["both", "both"]},
                {"memory": {"num_blocks": 200}, "power": POWER},
                {"scheduler": {"kind": "continuous"}}, {"scheduler": {"kind": "static", "max_num_seqs": 8}}],
)
def test_simulated_energy_adds_up_and_is_power_times_time(tmp_path: Path, changes: dict[str, object]) -> None:
    results = scenario(tmp_path, **changes)
    assert results.summary["requests"]["completed"] == 60
    assert_adds_up(results)
    assert results.summary["energy"]["unattributed_j"] == pytest.approx(0.0, abs=1e-6)
    total = 0.0
    for info, client in zip(results.record.clients, results.summary["clients"].values(), strict=True):
        busy = client["prefill_j"] + client["decode_j"]
        idle_s = window_ns(results.record)[1] / NS_PER_S - client["stepping_s"]   # held from 0 on
        assert client["energy_j"] == pytest.approx(busy + info.idle_w * idle_s)
        total += client["energy_j"]
    assert results.summary["energy"]["total_j"] == pytest.approx(total)


def test_requests_served_side_by_side_alike_pay_alike(tmp_path: Path) -> None:
    import yaml

    data = {
        "workload": {"requests": 8, "arrivals": {"kind": "at_once"},
                     "lengths": {"kind": "fixed", "prompt": 100, "output": 20}},
        "clients": [{"name": "a", "model": "llama-3.1-8b",
                     "hardware": {"kind": "roofline", "profile": "llama-3-8b-rtx-4090"}}],
    }
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(data))
    results = simulate(load_scenario(path))
    shares = results.requests["energy_j"].to_numpy()
    assert shares == pytest.approx(np.full(8, shares[0]), rel=1e-6)
    assert "assumed: 450 W and 1.008 TB/s" in results.summary["clients"]["a"]["power_source"]


def test_dollars_are_price_times_time_held(tmp_path: Path) -> None:
    two = {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm", "tp": 2}
    results = scenario(tmp_path, price_per_hour=3.6, devices=2, hardware=two)
    cost, held_s = results.summary["cost"], window_ns(results.record)[1] / NS_PER_S   # from 0 on
    assert cost["total_dollars"] == pytest.approx(7.2 / 3600 * held_s)
    assert cost["per_million_output_tokens_dollars"] == pytest.approx(cost["total_dollars"] / (60 * 50) * 1e6)
    assert cost["per_million_tokens_dollars"] == pytest.approx(cost["total_dollars"] / (60 * 750) * 1e6)
    assert cost["per_request_dollars"] == pytest.approx(cost["total_dollars"] / 60)
    client = results.summary["clients"]["both-0"]
    assert client["dollars"] == pytest.approx(cost["total_dollars"])
    assert client["price_source"] == "given"
    assert cost["per_million_answer_tokens_dollars"] == cost["per_million_output_tokens_dollars"]
    text = " ".join(results.to_text(verbose=True).split())
    assert text.index("per million tokens of answers") < text.index("per million generated tokens")


def test_sources_are_named_and_survive_writing(tmp_path: Path) -> None:
    results = scenario(tmp_path)
    client = results.summary["clients"]["both-0"]
    assert "device h100-sxm: fitted to measured watts" in client["power_source"]
    assert "rough list price" in client["price_source"]
    assert "estimate for 8,192 tokens and 1,024 sequences" in client["memory"]["source"]
    write_results(results, tmp_path / "out")
    stored = open_run(tmp_path / "out")
    assert stored.record.clients == results.record.clients
    assert Results(stored.record).summary["clients"] == results.summary["clients"]
    assert stored.requests["energy_j"].tolist() == results.requests["energy_j"].tolist()


def test_given_watts_win_and_none_is_said(tmp_path: Path) -> None:
    given = scenario(tmp_path, power=POWER)
    assert given.summary["clients"]["both-0"]["power_source"] == "given"
    info = given.record.clients[0]
    assert (info.idle_w, info.prefill_w, info.decode_w) == (90.0, 600.0, 400.0)
    table = {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"}
    none = scenario(tmp_path, hardware=table, model="llama-2-70b", memory={"num_blocks": 1000})
    assert none.summary["energy"] is None
    assert none.summary["cost"] is None
    assert none.summary["clients"]["both-0"]["power_source"].startswith("none (no power")
    named = scenario(tmp_path, hardware=table, model="llama-2-70b", device="h100-sxm", devices=8)
    assert named.summary["energy"]["total_j"] > 0
    assert 0.3 * 700 * 8 < named.record.clients[0].decode_w < 700 * 8
    assert named.summary["clients"]["both-0"]["memory"]["weights_bytes"] > 1e10
