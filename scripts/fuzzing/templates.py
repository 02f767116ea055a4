"""Templates of families: search spaces, bars of accuracy, observations, shown profiles."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import yaml

__all__ = ["write_bars", "write_observed", "write_shown", "write_space"]

ROOT = Path(__file__).resolve().parents[2]
SPACE = """\
name: search
scenario: small.yaml
space:
  clients.0.count: {choices: [1, 2]}
  clients.0.memory.num_blocks: {min: 20, max: 60, step: 20, integer: true}
  clients.0.hardware.scale: {min: 0.5, max: 2, log: true}
  workload.arrivals.rate: {min: 10.5, max: 20, unit: /s}
objectives: {latency.ttft_s.p99: minimize, throughput.requests_per_s: maximize}
constraints: {latency.e2e_s.p50: {at_most: 0.35, at_least: 0.2}}
trials: 5
batch: 3
seed: 3
fidelity: {set: {workload.requests: 4}, keep: 0.9}
"""
BARS = [   # one is kept, one exceeded, and one is without a case
    {"set": "vLLM schedules", "metric": "identical steps", "stat": "count", "worst": 0},
    {"set": "vLLM on a CPU", "metric": "ttft", "stat": "mean", "worst": 0.001, "median": 0.001},
    {"set": "elsewhere", "metric": "e2e", "stat": "p99", "model": "llama-3.1-8b", "card": "h100-sxm", "case": "busy",
     "worst": 0.02, "median": 0.01},
]


def write_space(folder: Path, scenario: str) -> None:
    """Write a search of `hermes optimize` over a scenario."""
    (folder / "small.yaml").write_text(scenario)
    (folder / "space.yaml").write_text(SPACE)


def write_shown(folder: Path) -> None:
    """Write profiles that `hermes profile show` prints."""
    for name in ("splitwise-2023-llama-2-70b-h100-tp8", "vllm-cpu-small-llama"):
        shutil.copyfile(ROOT / f"hw_profiles/{name}.yaml", folder / f"{name}.yaml")


def write_bars(folder: Path) -> None:
    """Write two small reference sets, bars, and an earlier answer of `hermes accuracy`."""
    for name in ("vllm-schedules", "vllm-cpu"):
        (folder / "data" / name).mkdir(parents=True)
    source = min((ROOT / "tests/data/vllm-schedules").rglob("*.json"), key=lambda path: (path.stat().st_size, path))
    shutil.copyfile(source, folder / "data/vllm-schedules/short.json")
    rows = (ROOT / "tests/data/vllm-cpu/online-wallclock.csv").read_text().splitlines()[:12]
    (folder / "data/vllm-cpu/online-short.csv").write_text("\n".join([*rows, ""]))
    (folder / "bars.yaml").write_text(yaml.safe_dump({"bars": BARS, "inside": [0.0, 0.5]}, sort_keys=False))
    about = [["vLLM schedules", "vllm-0.32", "-", "-", "identical steps", "count"],
             ["vLLM on a CPU", "vllm-0.32", "cpu", "small-llama", "ttft", "mean"]]
    (folder / "old.json").write_text(json.dumps(
        {"lines": [{"about": line, "cases": 1, "median": -0.05, "worst": 0.0, "peer": None} for line in about]}))


def write_observed(folder: Path) -> None:
    """Write an observation of three attempts, the second of them disturbed, of the run in `folder`."""
    import pandas as pd

    from hermes.results.compare.observed import ObservedAttempt, ObservedReport, write_report

    (folder / "observed").mkdir()
    rows = pd.read_parquet(folder / "run/requests.parquet")
    columns = ["request", "arrival_s", "ttft_s", "tpot_s", "e2e_s", "prompt_tokens", "output_tokens"]
    files = ["observed.parquet", "observed-2.parquet", "observed-3.parquet"]
    for place, file in enumerate(files):
        table = rows[columns].copy()
        table[["ttft_s", "tpot_s", "e2e_s"]] *= 1 + 0.1 * place
        table.to_parquet(folder / "observed" / file)
    write_report(ObservedReport(
        rules=["rejected when the driver was late"], repetitions=3,
        attempts=[ObservedAttempt(
            number=place + 1, file=file, reasons=["late"] * (place == 1), requests=len(rows), failed=0, parts=1,
            late_s=0.001, windows=4, contended_windows=0) for place, file in enumerate(files)],
        noise={"ttft": {"p50": {"cv": 0.05}}}), folder / "observed")
