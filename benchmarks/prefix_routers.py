"""Process time of routers that know prefixes beside `least_loaded`, on one scenario of 64 clients.

    python benchmarks/prefix_routers.py [--requests N] [--repeats N] [--clients N]

The prompts have prefixes, of which each client comes to hold several. Runs are interleaved in one process, and the
figures are medians of CPU seconds (`time.process_time`) from the start of the clock to the end of the last request,
with the speed beside `least_loaded` in the same round.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.core import scenario
from benchmarks.views import race

ROUTERS: dict[str, dict[str, Any]] = {
    "least_loaded": {"kind": "least_loaded"},
    "llm_d": {"kind": "llm_d"},
    "dynamo_kv": {"kind": "dynamo_kv"},
    "sglang_cache_aware": {"kind": "sglang_cache_aware"},
    "aibrix_prefix": {"kind": "aibrix_prefix"},
    "production_stack, prefix": {"kind": "production_stack", "by": "prefix"},
    "dynamo_kv, exact": {"kind": "dynamo_kv", "caches": "exact"},
    "dynamo_kv, events": {"kind": "dynamo_kv", "caches": {"kind": "events"}},
}


def prefixed(requests: int, clients: int, rate: float, router: dict[str, Any]) -> dict[str, Any]:
    """Return the benchmark's scenario with prefixes, a prefix cache and a router."""
    data = scenario(requests, clients, rate_per_client=rate)
    data["workload"]["prefixes"] = {"groups": 200, "tokens": 1000}
    data["clients"][0]["memory"] = {"num_blocks": 20_000, "prefix_caching": True}
    data["router"] = router
    return data


def main() -> None:
    times = race(__doc__, lambda requests, clients, rate: {
        name: prefixed(requests, clients, rate, router) for name, router in ROUTERS.items()})
    first = times["least_loaded"]
    for name, found in times.items():
        speed = statistics.median(b / a for a, b in zip(found, first, strict=True))
        print(f"{name:26} {statistics.median(found):8.2f} s   {speed:6.0%} of the speed")


if __name__ == "__main__":
    main()
