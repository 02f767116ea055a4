"""CPU seconds of the kernel's cases, here and in another checkout, in interleaved pairs of processes.

    python benchmarks/pairs.py --against TREE [--only CASE ...] [--pairs N]

Each process simulates a case three times, after a short run, and keeps the median; the median of the pairs' ratios is
printed. Under other work a figure still differs by some hundredths: `benchmarks/bytecodes.py` and
`benchmarks/instructions.py` give counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUESTS = {
    "chunked": 20_000, "clients_10": 10_000, "clients_100": 20_000, "clients_100_tokens_left": 8_000,
    "continuous": 20_000, "static": 20_000, "mixed": 15_000, "disaggregated": 12_000, "preemption": 15_000,
    "prefix_cache": 15_000, "cached": 15_000, "every_step": 1_000,
}
CHILD = """\
import json, resource, sys
import hermes
def user():
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime
def simulated(requests):
    spec = json.loads(sys.argv[1])
    spec["workload"]["requests"] = requests
    began = user()
    results = hermes.simulate(spec)
    took = user() - began
    results.summary_of_run if hasattr(type(results), "summary_of_run") else results.summary   # older commits
    return took, user() - began
simulated(200)
print(json.dumps(sorted(simulated(int(sys.argv[2])) for _ in range(3))[1]))
"""


def measured(tree: Path, name: str) -> tuple[float, float]:
    """Return user seconds of a case with the package in `tree`: until the results, and with their summary."""
    sys.path.append(str(ROOT))
    from benchmarks.core import CASES

    environment = os.environ | {
        "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CHILD, json.dumps(CASES[name][1]), str(REQUESTS[name])],
                          env=environment, cwd=tree, capture_output=True, text=True, check=True)
    took, with_summary = json.loads(done.stdout)
    return took, with_summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="TREE", required=True, help="another checkout")
    parser.add_argument("--only", nargs="*", metavar="CASE", choices=REQUESTS, default=list(REQUESTS))
    parser.add_argument("--pairs", type=int, default=10, metavar="N")
    options = parser.parse_args()
    other, ratios = options.against.resolve(), []
    print(f"{'case':26} {'us a request':>13} {'there':>8} {'ratio':>7} {'with summary':>13}")
    for name in options.only:
        here, there = [], []
        for pair in range(options.pairs):
            for tree, found in ((ROOT, here), (other, there))[:: 1 if pair % 2 else -1]:
                found.append(measured(tree, name))
        ratio, whole = (statistics.median(a[i] / b[i] for a, b in zip(here, there, strict=True)) for i in (0, 1))
        ratios.append(ratio)
        us = [1e6 / REQUESTS[name] * min(took for took, _ in each) for each in (here, there)]
        print(f"{name:26} {us[0]:13.1f} {us[1]:8.1f} {ratio:7.3f} {whole:13.3f}", flush=True)
    print(f"median of the ratios: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
