"""Compare `hermes capacity` with a scan of all loads, on ten scenarios.

    python scripts/capacity_check.py [NAME ...] [--workers N]

For each scenario: the answer of one seed, the runs it took, and the highest load of a scan in steps of 1%, from 26%
below the answer to 35% above it, up to which every load is met. Exit code 1 if a difference is more than 2%, or a
search took more than 12 runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hermes.explore.capacity import RATIO, axis_of, capacity
from hermes.explore.objective import missed, slo_overrides
from hermes.explore.sweep.executor import of_workers
from hermes.explore.trials import Trials
from hermes.scenario import load_scenario

MOST_RUNS, MOST_DIFFERENCE = 12, 0.02
CHAT = {"requests": 1000, "arrivals": {"kind": "poisson", "rate": 10}, "lengths": {"kind": "empirical",
                                                                                  "profile": "azure-conv-2023"}}
CODE = {**CHAT, "lengths": {"kind": "empirical", "profile": "azure-code-2023"}}


def split(prefill: int, decode: int) -> list[dict[str, Any]]:
    """Return clients of Llama-3.1-70B on four H100 each, some for prompts and some for answers."""
    base = {"model": "llama-3.1-70b", "device": "h100-sxm", "parallel": {"tp": 4}}
    return [{**base, "name": "prefill", "role": "prefill", "count": prefill},
            {**base, "name": "decode", "role": "decode", "count": decode}]


# scenario, settings, limits, over
CASES: dict[str, tuple[str | dict[str, Any], list[str], str, str]] = {
    "quickstart": ("quickstart", ["workload.requests=1000"], "ttft_p99=1s,tpot_p99=50ms", "rate"),
    "clients": ("quickstart", ["workload.requests=3000", "workload.arrivals.rate=60"], "ttft_p99=1s,tpot_p99=50ms",
                "clients"),
    "chatbot": ("chatbot", ["workload.requests=1500"], "ttft_p90=500ms,tpot_p90=40ms", "rate"),
    "continuous": ("batching/continuous", ["workload.requests=600"], "ttft_p90=2s", "rate"),
    "mixed": ("batching/mixed", ["workload.requests=600"], "ttft_p99=2s,tpot_p99=200ms", "rate"),
    "rag": ("pipelines/rag", ["workload.requests=600"], "ttft_p99=3s", "rate"),
    "minimal": ({"workload": CHAT, "clients": [{"model": "llama-3.1-8b", "device": "l40s"}]}, [],
                "ttft_p99=2s,tpot_p99=80ms", "rate"),
    "2P/2D, conversations": ({"workload": CHAT, "clients": split(2, 2), "network": {
        "kind": "link", "bandwidth": "50 GB/s"}}, [], "ttft_p99=1s,tpot_p99=40ms", "rate"),
    "3P/1D, code": ({"workload": CODE, "clients": split(3, 1), "network": {
        "kind": "link", "bandwidth": "50 GB/s"}}, [], "ttft_p99=2s,tpot_p99=60ms", "rate"),
    "disaggregated": ("batching/disaggregated", ["workload.requests=600"], "ttft_p99=2s,tpot_p99=200ms", "rate"),
}


def scanned(source: str | Mapping[str, Any], settings: list[str], over: str, answer: float, workers: int
            ) -> tuple[float | None, int]:
    """Return the hardest load up to which every one near `answer` is met, and the number of simulations."""
    checked = load_scenario(source, settings)
    axis = axis_of(checked, over)
    middle = axis.level(answer)
    around = range(middle - 30, middle + 31) if over == "rate" else range(2 * middle, 0)
    with TemporaryDirectory() as folder, closing(of_workers(workers)) as executor:
        trials = Trials("scan", checked, Path(folder), executor)
        rows = trials.run({str(level): (axis.settings(axis.load(level)), checked.seed) for level in around})
    best: float | None = None
    for level in around:
        if missed(rows[str(level)]) is not None:
            break
        best = axis.load(level)
    return best, len(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    failed = False
    print(f"{'scenario':22} {'answer':>9} {'runs':>5} {'scan':>9} {'runs':>5} {'difference':>11}")
    for name in options.names or CASES:
        source, more, limits, over = CASES[name]
        settings = [*more, *slo_overrides(limits)]
        found = capacity(source, over=over, overrides=settings, seeds=1, max_runs=MOST_RUNS, workers=options.workers,
                         quick=over == "rate")
        load = found.answers[0].load
        if load is None:
            print(f"{name:22} {'none':>9} {found.runs:5}")
            failed = True
            continue
        best, runs = scanned(source, settings, over, load, options.workers)
        difference = None if best is None else load / best - 1.0
        wrong = difference is None or abs(difference) > MOST_DIFFERENCE
        failed |= wrong
        print(f"{name:22} {found.base * load:9.4g} {found.runs:5} {found.base * (best or 0.0):9.4g} {runs:5} "
              f"{'-' if difference is None else f'{difference:+.1%}':>11}{'  MISSED' if wrong else ''}"
              f"{'' if found.answers[0].complete else '  (open: the limit is noisy)'}", flush=True)
    print(f"loads are {RATIO - 1:.0%} apart")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
