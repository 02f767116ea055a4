"""Same scenario, same seed, same bytes: again in this process, in others, and whatever Python's hash seed is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from digest_scenarios import digests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from long_runs import count
from outcomes import digest, run
from random_scenarios import FAMILIES, scenarios

HERE = Path(__file__).parent


def some_scenarios(per_family: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    family = ""

    @settings(max_examples=per_family, derandomize=True, deadline=None, phases=[Phase.generate], database=None,
              suppress_health_check=list(HealthCheck))
    @given(st.data())
    def collect(data: st.DataObject) -> None:
        found.append(data.draw(scenarios(family)))

    for family in FAMILIES:   # noqa: B007  # `collect` draws from it
        collect()
    return found


def in_a_process(path: Path, hash_seed: str) -> list[str]:
    paths = os.pathsep.join([str(HERE.parents[1]), str(HERE)])
    done = subprocess.run(
        [sys.executable, str(HERE / "digest_scenarios.py"), str(path)], capture_output=True, text=True, check=True,
        timeout=300, env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths},
    )
    return list(json.loads(done.stdout))


@pytest.mark.feature("Scenarios and commands", "Same scenario, same bytes")
@pytest.mark.long(quick=2)
def test_same_bytes_in_any_process(tmp_path: Path) -> None:
    chosen = some_scenarios(count(2, 8))
    path = tmp_path / "scenarios.json"
    path.write_text(json.dumps(chosen))
    here = digests(chosen)
    assert len(set(here)) > len(here) // 2, "the hash tells records apart"
    assert digests(chosen) == here, "again in this process"
    assert in_a_process(path, "0") == here
    assert in_a_process(path, "4242") == here


def test_another_seed_gives_other_arrivals() -> None:
    scenario = {
        "clients": [{"hardware": {"kind": "test_ticks"}, "memory": {"num_blocks": 100}}],
        "workload": {"requests": 20, "arrivals": {"kind": "poisson", "rate": 1e5},
                     "lengths": {"kind": "fixed", "prompt": 10, "output": 5}},
    }
    first, same, other = (digest(run(scenario, seed=seed).record) for seed in (1, 1, 2))
    assert first == same != other
