"""Routers that know prefixes follow replicas that come, go and crash, and repeat their choices in any process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from each import each

from hermes import simulate

ROUTERS: list[dict[str, Any]] = [
    {"kind": "llm_d"}, {"kind": "llm_d", "disaggregation": {}}, {"kind": "dynamo_kv"},
    {"kind": "llm_d", "scorers": {"session": 2, "precise_prefix": 2}, "caches": {"kind": "events", "loss": 0.1}},
    {"kind": "dynamo_kv", "temperature": 0.3, "caches": {"kind": "events", "delay": 0.05}},
    {"kind": "dynamo_kv", "caches": "exact"}, {"kind": "sglang_cache_aware", "balance_abs_threshold": 4},
    {"kind": "aibrix_prefix", "spread": 5}, {"kind": "production_stack"}, {"kind": "production_stack", "by": "prefix"},
    {"kind": "session", "affinity": "soft", "slack": 500, "ttl": 1.0},
    {"kind": "least_loaded", "load": "input_tokens", "view": "own"},
]


def scenario(router: dict[str, Any]) -> dict[str, Any]:
    fleet = {"start": 2, "start_up": {"total": 0.3}, "crashes": [{"at": 1.4, "replica": 1}],
             "probe": {"period": 0.1, "failures": 2, "delay": 0.01, "offset": 0},
             "autoscaler": {"kind": "schedule", "changes": [{"at": 0.5, "replicas": 4}, {"at": 2.0, "replicas": 2}]}}
    return {
        "workload": {"requests": 250, "arrivals": {"kind": "poisson", "rate": 80.0}, "sessions": {"count": 12},
                     "prefixes": {"groups": 6, "tokens": 160},
                     "lengths": {"kind": "fixed", "prompt": 300, "output": 30}},
        "clients": [{"name": "llm", "count": 4, "model": "llama-3.1-8b", "device": "h100-sxm",
                     "memory": {"num_blocks": 500}, "fleet": fleet}],
        "gateway": {"retries": 5, "backoff": 0.05, "begun": "restart", "queue": {"ttl": 2.0}}, "router": router}


def chosen(router: dict[str, Any]) -> list[int]:
    record = simulate(scenario(router)).record
    assert (record.status == 1).all()
    clients: list[int] = record.stages["client"].tolist()
    return clients


@pytest.mark.long
@each("router", ROUTERS)
def test_they_follow_members(router: dict[str, Any]) -> None:
    least = 2 if router.get("by") == "prefix" else 3   # each prefix stays where it was first
    assert len(set(chosen(router))) >= least


@pytest.mark.long
@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_choices_are_the_same_in_any_process(hash_seed: str) -> None:
    """Also where Python's hashes of texts differ."""
    code = f"""
import json, sys
sys.path.insert(0, {os.path.dirname(__file__)!r}); sys.path.insert(0, {os.path.dirname(os.path.dirname(__file__))!r})
from test_routers_in_fleets import ROUTERS, chosen
print(json.dumps([chosen(router) for router in ROUTERS]))
"""
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True,
                           env=os.environ | {"PYTHONHASHSEED": hash_seed})
    assert json.loads(found.stdout) == [chosen(router) for router in ROUTERS]
