"""Compare with a real vLLM 0.32.0 on one CPU thread: scenarios/validation/vllm-cpu.yaml against its online runs.

    python scripts/validate_vllm_cpu.py [DATA_DIR] [--refit] [--json]

DATA_DIR (tests/data/vllm-cpu by default) holds online-cpuclock.csv and online-wallclock.csv, one request a row, and
steps.csv and model-config.json. The scenario replays the arrivals of those runs; its profile was fitted on steps.csv,
other workloads of the same engine. `--refit` fits it anew from DATA_DIR. Exit code 1 if a mean is further off than
allowed: 10% for TTFT, 5% for TPOT and E2E.

The steps were timed on the wall clock, the CPU clock was not recorded for them: the same profile answers for both runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from hermes.api import simulate
from hermes.errors import HermesError, InputError
from hermes.results.compare import CompareRow, compare
from hermes.results.reference import mapping_from_options

ROOT = Path(__file__).resolve().parents[1]
SCENARIO = ROOT / "scenarios" / "validation" / "vllm-cpu.yaml"
DATA = ROOT / "tests" / "data" / "vllm-cpu"
RUNS = ("online-cpuclock", "online-wallclock")
COLUMNS = ["arrival=arrival_s", "first_token=first_token_s", "finish=finish_s", "output_tokens=output_len"]
TOLERANCES = {"ttft": 0.10, "tpot": 0.05, "e2e": 0.05}
"""Largest error of the means."""


@dataclass
class Outcome:
    """One run: every statistic, and whether the means are within `TOLERANCES`."""

    run: str
    rows: list[CompareRow]
    out_of_range_steps: int
    steps: int

    @property
    def ok(self) -> bool:
        means = {row.metric: row.error for row in self.rows if row.stat == "mean" and row.metric in TOLERANCES}
        return len(means) == len(TOLERANCES) and all(
            error is not None and abs(error) <= TOLERANCES[metric] for metric, error in means.items())


def refit(data: Path, folder: Path) -> Path:
    """A profile fitted on the steps in `data`, written to `folder`."""
    from hermes.calibration.fit import fit_steps
    from hermes.calibration.importers.vllm_cpu import VllmCpu
    from hermes.calibration.steps import load_steps, save_steps
    from hermes.hardware.profile import dump_yaml

    importer = VllmCpu(source=str(data / "steps.csv"), model_config_file=str(data / "model-config.json"))
    save_steps(importer.steps(), folder / "steps.yaml")
    profile = fit_steps(load_steps(folder / "steps.yaml"), "vllm-cpu-small-llama").profile
    dump_yaml(profile, folder / "profile.yaml", "fitted by scripts/validate_vllm_cpu.py --refit")
    return folder / "profile.yaml"


def run(data: Path, name: str, profile: Path | None = None) -> Outcome:
    """Simulate and compare with one online run."""
    reference = data / f"{name}.csv"
    if not reference.is_file():
        raise InputError("a file with the engine's times of each request", str(reference))
    overrides = [] if profile is None else [f"clients.0.hardware.profile={profile}"]
    results = simulate(SCENARIO, overrides=overrides)
    table = compare(results, reference, mapping_from_options(COLUMNS, None))
    rows = [row for row in table.rows if row.metric in TOLERANCES]
    record = results.record
    return Outcome(name, rows, int(sum(record.out_of_range_steps)), int(record.counters["steps"]))


def show(outcome: Outcome) -> None:
    """One run as text."""
    print(outcome.run)
    print(f"  {'metric':6} {'stat':5} {'hermes':>11} {'vLLM':>11} {'error':>8}")
    for row in outcome.rows:
        if row.ours_s is not None and row.reference_s is not None and row.error is not None:
            print(f"  {row.metric.upper():6} {row.stat:5} {row.ours_s * 1e3:8.2f} ms {row.reference_s * 1e3:8.2f} ms "
                  f"{row.error:+8.2%}")
    print(f"  {outcome.out_of_range_steps} of {outcome.steps} steps outside the measured range; means within "
          f"{', '.join(f'{m.upper()} {t:.0%}' for m, t in TOLERANCES.items())}: {'ok' if outcome.ok else 'FAILED'}\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare with the online runs of a real vLLM on a CPU.")
    parser.add_argument("data", type=Path, nargs="?", default=DATA, help="folder with the engine's runs")
    parser.add_argument("--refit", action="store_true", help="fit the profile from steps.csv first")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory() as folder:
            profile = refit(options.data, Path(folder)) if options.refit else None
            outcomes = [run(options.data, name, profile) for name in RUNS]
    except HermesError as error:
        print(f"validate_vllm_cpu: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([{**asdict(outcome), "ok": outcome.ok} for outcome in outcomes], indent=2))
    else:
        for outcome in outcomes:
            show(outcome)
    return 0 if all(outcome.ok for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
