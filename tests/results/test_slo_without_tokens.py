"""Requests without tokens (embeddings): limits of TTFT and TPOT do not apply to them, a limit of E2E does."""

from __future__ import annotations

from typing import Any

import pytest

from hermes.api import simulate
from hermes.results import Results

CHAT = {"name": "chat", "requests": 60, "arrivals": {"kind": "poisson", "rate": 10},
        "lengths": {"kind": "fixed", "prompt": 300, "output": 20}}
EMBED = {"name": "embed", "requests": 40, "arrivals": {"kind": "poisson", "rate": 10}, "pipeline": "embed",
         "lengths": {"kind": "fixed", "prompt": 300, "output": 1}}


def run(slo: dict[str, Any], *workloads: dict[str, Any]) -> Results:
    return simulate({
        "seed": 1, "slo": slo, "workload": list(workloads),
        "pipelines": {"embed": {"stages": {"vector": {"kind": "embed", "tokens": "prompt"}}}},
        "clients": [
            {"name": "gpu", "model": "llama-3.1-8b", "device": "h100-sxm"},
            {"name": "encoder", "kind": "processing", "cores": 4, "serves": {
                "embed": {"kind": "per_item", "per_item": "20 ms"}}},
        ]})


def test_embeddings_are_counted_apart() -> None:
    both, chat = run({"ttft": "1 s", "tpot": "50 ms"}, CHAT, EMBED), run({"ttft": "1 s", "tpot": "50 ms"}, CHAT)
    good = both.summary["goodput"]
    assert good["without_limit"] == 40
    assert good["requests"] == 60          # not 100
    assert good["share"] == 1.0            # of the 60 to which limits apply
    assert both.summary["headline"]["goodput_share"] == pytest.approx(1.0)
    assert both.summary["by"]["workload"]["embed"]["goodput_share"] is None
    assert both.summary["by"]["workload"]["chat"]["goodput_share"] == 1.0
    assert both.summary["slo"]["pass"] is chat.summary["slo"]["pass"] is True
    assert both.requests["slo_ok"].sum() == 60
    assert "no limit applies to 40 requests without tokens" in " ".join(both.to_text().split())
    assert "without_limit" not in chat.summary["goodput"]


def test_a_limit_of_the_whole_latency_applies_to_them() -> None:
    for limit, kept in (("1 s", 40), ("10 ms", 0)):
        found = run({"ttft": "1 s", "workloads": {"embed": {"e2e": limit}}}, CHAT, EMBED)
        good = found.summary["goodput"]
        assert "without_limit" not in good
        assert good["requests"] == 60 + kept
        assert found.summary["slo_of"]["workload embed"]["pass"] is (kept > 0)
        assert found.summary["slo_of"]["workload embed"]["ttft"]["pass"] is None
        assert found.summary["slo"]["pass"] is (kept > 0)


def test_without_any_applicable_limit_there_is_no_verdict() -> None:
    found = run({"ttft": "1 s"}, EMBED)
    assert found.summary["slo"]["pass"] is None
    assert found.summary["goodput"]["share"] is None
    assert found.summary["goodput"]["requests"] == 0
    text = " ".join(found.to_text().split())
    assert "no limit applies to the 40 requests: they give no tokens; set slo.e2e" in text
    assert run({"ttft": "1 s", "e2e": "1 s"}, EMBED).summary["slo"]["pass"] is True


def test_limits_of_a_group_without_tokens_do_not_hide_the_verdict_of_the_others() -> None:
    found = run({"ttft": "1 s", "workloads": {"embed": {"ttft": "2 s"}}}, CHAT, EMBED)
    assert found.summary["slo_of"]["workload embed"]["pass"] is None
    assert found.summary["slo"]["pass"] is True
