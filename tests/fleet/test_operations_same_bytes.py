"""Crashes, retries, autoscalers and flow control give the same bytes with any hash seed and any number of workers."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes.explore import run_sweep

CLIENT: dict[str, Any] = {
    "name": "llm", "count": 4, "model": "llama-3.1-8b", "memory": {"num_blocks": 90},
    "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
    "fleet": {"start": 3, "start_up": {"total": 0.4}, "probe": {"period": 0.2, "failures": 2, "delay": 0.05},
              "crashes": [{"at": 0.7, "replica": 1}, {"at": 1.1, "replica": 0}, {"at": 2.0, "replica": 2}],
              "autoscaler": {"kind": "hpa", "metrics": [{"metric": "running", "target": 6}], "period": 0.3,
                             "scrape": 0.1, "scale_down": {"window": 0.5}}},
}
SCENARIO: dict[str, Any] = {
    "seed": 4, "clients": [CLIENT], "router": {"kind": "power_of_two"}, "slo": {"ttft": 0.2},
    "workload": {"requests": 200, "arrivals": {"kind": "poisson", "rate": 60}, "branches": 2,
                 "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 20, "max": 200},
                             "output": {"kind": "uniform", "min": 2, "max": 60}}},
    "gateway": {"retries": 3, "backoff": 0.1, "per_try": 1.0, "cancel_delay": 0.05, "begun": "restart",
                "queue": {"ttl": 1.0}},
}


HELD = SCENARIO | {
    "workload": SCENARIO["workload"] | {
        "tenants": {"values": ["a", "b", "c"]}, "classes": {"values": ["gold", "batch"]}},
    "gateway": {"retries": 3, "backoff": 0.1, "begun": "restart",
                "classes": {"gold": {"priority": 1}, "batch": {"priority": -1}}, "tenants": {"a": {"weight": 2}},
                "flow_control": {"fairness": {"kind": "deficit_round_robin"}, "ttl": 1.0, "revoke": {}}},
}
MOVED = SCENARIO | {
    "workload": SCENARIO["workload"] | {"branches": 1},
    "gateway": {"migration": {"limit": 3, "idle": 0.5}, "cancel_delay": 0.05, "queue": {"ttl": 1.0}},
}
each_scenario = pytest.mark.parametrize("scenario", [SCENARIO, HELD, MOVED], ids=["queue", "flow control", "migration"])


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.mark.long
@each_scenario
def test_any_hash_seed_gives_the_same_files(tmp_path: Path, scenario: dict[str, Any]) -> None:
    (tmp_path / "ops.yaml").write_text(json.dumps(scenario))
    found = []
    for seed in ("0", "1", "77"):
        command = [sys.executable, "-m", "hermes", "run", "ops.yaml", "-o", f"out{seed}"]
        subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONHASHSEED": seed}, check=True,
                       capture_output=True, text=True)
        found.append(digests(tmp_path / f"out{seed}"))
    assert len(found[0]) > 5
    assert found[0] == found[1] == found[2]


@pytest.mark.long
@each_scenario
def test_any_number_of_workers_gives_the_same_rows(tmp_path: Path, scenario: dict[str, Any]) -> None:
    sweep = {"scenario": "ops.yaml", "seeds": [1, 2], "grid": {"gateway.retries": [0, 3]}}
    (tmp_path / "ops.yaml").write_text(json.dumps(scenario))
    (tmp_path / "sweep.yaml").write_text(json.dumps(sweep))
    frames = []
    for workers in (1, 2):
        run_sweep(tmp_path / "sweep.yaml", tmp_path / f"out{workers}", workers=workers)
        frames.append((tmp_path / f"out{workers}" / "results.parquet").read_bytes())
    assert frames[0] == frames[1]
    assert b"attempts" in frames[0]
