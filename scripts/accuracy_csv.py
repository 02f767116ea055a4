"""Write `docs/accuracy/all-sets.csv` from what `hermes accuracy --json` prints.

    hermes accuracy --data DIR --json | python scripts/accuracy_csv.py > docs/accuracy/all-sets.csv

Means, medians, p99 and counts of each set, card, model and metric; `best` is whose median error is smaller, ours or the
best peer's, where one answers.
"""

from __future__ import annotations

import csv
import json
import sys

STATS = ("count", "mean", "p50", "p99")
HEAD = ("set", "engine", "card", "model", "metric", "stat", "cases", "median_percent", "worst_percent",
        "best_peer_percent", "best")


def main() -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(HEAD)
    for line in json.load(sys.stdin)["lines"]:
        if line["about"][-1] not in STATS:
            continue
        median, worst, peer = f"{100 * line['median']:.1f}", f"{100 * line['worst']:+.1f}", ""
        best = ""
        if line["peer"] is not None:
            peer = f"{100 * line['peer']:.1f}"
            best = "here" if float(median) <= float(peer) else "peer"
        about = ("" if text == "-" else text for text in line["about"])
        out.writerow([*about, line["cases"], median, worst, peer, best])


if __name__ == "__main__":
    main()
