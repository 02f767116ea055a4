"""Simulated requests per second on the RAGPulse trace, beside the figure that another simulator reports.

    python benchmarks/duel.py [--json FILE]

Runs the cases of `benchmarks/core.py` with that trace, each in a process of its own, from files of this repository
alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from core import CASES, figures, run_case

NAMES = ("ragpulse", "ragpulse_unshared", "ragpulse_profile", "ragpulse_blocks")
OTHER = (2_000, 2_900)   # requests/s that another simulator reports for its own replay of this trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures as flat JSON")
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES, help="these cases only")
    options = parser.parse_args()
    results = {}
    print(f"{'case':58} {'requests':>9} {'seconds':>8} {'CPU s':>6} {'req/s':>8} {'RSS MB':>7}")
    for name in options.only:
        result = results[name] = run_case(name)
        print(f"{CASES[name][0]:58} {result['requests']:9,.0f} {result['seconds']:8.1f} "
              f"{result['cpu_seconds']:6.1f} {result['requests_per_s']:8,.0f} "
              f"{result['rss_bytes'] / 1e6:7,.0f}", flush=True)
    low, high = OTHER
    print(f"another simulator, its own replay of this trace: {low:,} to {high:,} requests/s, as it reports.\n"
          "The loads are not proven equal: copies, cluster, machine and recorded metrics of that replay may differ.")
    if options.json:
        Path(options.json).write_text(json.dumps(figures(results), indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"written to {options.json}")


if __name__ == "__main__":
    main()
