"""A day on 40 slots with an HPA beside the same day on 40 static clients: speed and memory.

    python benchmarks/day.py [--requests N]

500,000 requests whose rate alternates between 2/s and 9.6/s, long answers, on a target of two sequences a replica. Each
of the two runs in a process of its own; the figures are CPU seconds from the start of the clock to the end of the last
request, and the largest resident memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hermes.scenario import load_scenario
from hermes.scenario.build import build

FLEET: dict[str, Any] = {
    "start": 20, "start_up": {"total": 240},
    "autoscaler": {"kind": "hpa", "metrics": [{"metric": "running", "target": 2}], "min": 4},
}


def day(requests: int, fleet: dict[str, Any] | None) -> dict[str, Any]:
    client = {"name": "llm", "count": 40, "model": "llama-3.1-8b", "device": "h100-sxm"}
    return {
        "clients": [client | ({} if fleet is None else {"fleet": fleet})],
        "router": {"kind": "least_loaded", "load": "requests"},
        "workload": {
            "requests": requests, "arrivals": {"kind": "mmpp", "rates": [2, 9.6], "dwells": [7200, 7200]},
            "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 100, "max": 900},
                        "output": {"kind": "uniform", "min": 200, "max": 1500}}}}


def measure(requests: int, fleet: dict[str, Any] | None) -> dict[str, float]:
    simulation = build(load_scenario(day(requests, fleet)))
    begun = time.process_time()
    record = simulation.run()
    return {"cpu_s": time.process_time() - begun, "gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
            "hours": record.end_ns / 3.6e12, "changes": len(record.membership)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500_000)
    parser.add_argument("--one", choices=["static", "hpa"], help="run one of the two and print JSON")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.requests, FLEET if asked.one == "hpa" else None)))
        return
    found = {}
    for one in ("static", "hpa"):
        command = [sys.executable, __file__, "--requests", str(asked.requests), "--one", one]
        found[one] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{one:8} {asked.requests / found[one]['cpu_s']:9,.0f} requests/s  {found[one]['gb']:6.2f} GB  "
              f"{found[one]['hours']:.1f} hours, {found[one]['changes']:.0f} changes of replicas", flush=True)
    print(f"hpa over static: speed {found['static']['cpu_s'] / found['hpa']['cpu_s']:.2f}, "
          f"memory {found['hpa']['gb'] / found['static']['gb']:.2f}")


if __name__ == "__main__":
    main()
