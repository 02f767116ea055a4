"""Process time of `least_loaded` with a scraped view beside the exact one, on one scenario of 64 clients.

    python benchmarks/views.py [--requests N] [--repeats N] [--clients N]

Runs of both are interleaved in one process, and the figures are medians of CPU seconds (`time.process_time`) from the
start of the clock to the end of the last request, with what the scraped views take beside the exact one of the same
round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.core import scenario
from hermes.scenario import load_scenario
from hermes.scenario.build import build

ROUTERS: dict[str, dict[str, Any]] = {
    "exact, tokens_left": {"load": "tokens_left"},
    "exact, requests": {"load": "requests"},
    "scraped, requests, 50 ms": {"load": "requests", "view": {"kind": "scraped", "period": 0.05}},
    "scraped, kv_use, 50 ms": {"load": "kv_use", "view": {"kind": "scraped", "period": 0.05}},
    "scraped, requests, 1 s": {"load": "requests", "view": {"kind": "scraped", "period": 1.0}},
}


def cpu_s(data: dict[str, Any]) -> float:
    """Return the CPU seconds of one run, the building of its simulation left out."""
    simulation = build(load_scenario(data))
    begun = time.process_time()
    simulation.run()
    return time.process_time() - begun


def race(about: str | None, scenarios: Callable[[int, int, float], dict[str, dict[str, Any]]]
         ) -> dict[str, list[float]]:
    """Run scenarios (of so many requests, clients and requests/s a client), interleaved; return the CPU seconds of the
    rounds of each, in order. about: Description of the command, whose arguments say how many."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=12_800)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rate", type=float, default=4.0, help="requests/s of a client")
    asked = parser.parse_args()
    found = scenarios(asked.requests, asked.clients, asked.rate)
    times: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(asked.repeats):
        for name, data in found.items():
            times[name].append(cpu_s(data))
    print(f"{asked.clients} clients, {asked.requests} requests at {asked.rate:g}/s each, {asked.repeats} rounds")
    return times


def routed(requests: int, clients: int, rate: float) -> dict[str, dict[str, Any]]:
    return {name: scenario(requests, clients, rate_per_client=rate) | {"router": {"kind": "least_loaded", **keys}}
            for name, keys in ROUTERS.items()}


def main() -> None:
    times = race(__doc__, routed)
    first = times["exact, tokens_left"]
    for name, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(found, first, strict=True))
        print(f"{name:28} {statistics.median(found):8.2f} s   {ratio:6.3f} of the first")


if __name__ == "__main__":
    main()
