"""Compare the predictions of the shipped scenarios in two versions: a Markdown table, old -> new.

    python scripts/compare_versions.py OLD [SCENARIO ...] [--set KEY=VALUE ...]

OLD is a checkout of the older version (`git worktree add OLD COMMIT`). Without scenarios, all that are neither studies
nor validation. The fleet is simulated with a tenth of its requests. `--set` changes the newer version's scenarios only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = ("studies", "validation", "sweeps")
FEWER = {"pipelines/fleet": ["workload.0.requests=9200", "workload.1.requests=800"]}
COLUMNS = {"TTFT p50": "ttft_s.p50", "TTFT p99": "ttft_s.p99", "TPOT p50": "tpot_s.p50", "TPOT p99": "tpot_s.p99",
           "E2E p99": "e2e_s.p99"}


def scenarios() -> list[str]:
    """Return the names of the shipped scenarios to compare."""
    folder = ROOT / "scenarios"
    found = [path.relative_to(folder) for path in sorted(folder.rglob("*.yaml"))]
    return [str(path.with_suffix("")) for path in found if path.parts[0] not in LEFT_OUT]


def summary(checkout: Path, scenario: str, settings: list[str]) -> dict[str, Any]:
    """Return the summary of a scenario as simulated by a checkout."""
    with TemporaryDirectory() as folder:
        options = [part for setting in [*FEWER.get(scenario, []), *settings] for part in ("--set", setting)]
        subprocess.run([sys.executable, "-m", "hermes", "run", scenario, *options, "-o", f"{folder}/run"], check=True,
                       env={**os.environ, "PYTHONPATH": str(checkout)}, stdout=subprocess.DEVNULL, cwd=folder)
        found: dict[str, Any] = json.loads((Path(folder) / "run" / "summary.json").read_text(encoding="utf-8"))
        return found


def figures(found: dict[str, Any]) -> list[str]:
    """Return the figures of the columns, the share of requests within the SLO, its verdict, and joules per request."""
    out = []
    for path in COLUMNS.values():
        name, statistic = path.split(".")
        value = found["latency"][name][statistic]
        out.append("-" if value is None else f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s")
    share, verdict = found["goodput"]["share"], found["slo"]["pass"]
    out.append("-" if share is None else f"{share:.1%} {'met' if verdict else 'missed'}")
    joules = (found["energy"] or {}).get("per_request_j")
    out.append("-" if joules is None else f"{joules:.4g}")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("scenarios", nargs="*")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    heads = ["scenario", *COLUMNS, "within the SLO", "J/request"]
    print(f"| {' | '.join(heads)} |\n|" + " --- |" * len(heads))
    for name in options.scenarios or scenarios():
        old = figures(summary(options.old.resolve(), name, []))
        new = figures(summary(ROOT, name, options.set))
        cells = [a if a == b else f"{a} -> {b}" for a, b in zip(old, new, strict=True)]
        print(f"| `{name}` | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
