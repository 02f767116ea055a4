"""Compare simulated with measured latencies of vLLM 0.32.0 on one CPU thread (scenarios/validation/vllm-cpu.yaml).

    python scripts/validate_vllm_cpu.py [DATA_DIR] [--refit] [--causes] [--json]

DATA_DIR (tests/data/vllm-cpu by default) holds online-cpuclock.csv and online-wallclock.csv, one request a row,
steps.csv (the engine's record) and steps.yaml (the same as measured steps). The scenario replays the arrivals of those
runs; its profile was fitted on those steps, other workloads of the same engine. `--refit` fits it anew from DATA_DIR;
`--causes` prints the error of the means with one cause at a time left out of the steps before they are fitted. Exit
code 1 if the error of a mean exceeds its limit: 10% for TTFT, 5% for TPOT and E2E; 2 if a run served other requests
than the scenario.

The steps were timed on the wall clock only, so the same profile serves both runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pandas as pd

from hermes.api import simulate
from hermes.errors import HermesError, InputError
from hermes.results.compare import CompareRow, compare
from hermes.results.compare.reference import mapping_from_options
from hermes.results.layout import markdown_table

ROOT = Path(__file__).resolve().parents[1]
SCENARIO = ROOT / "scenarios" / "validation" / "vllm-cpu.yaml"
DATA = ROOT / "tests" / "data" / "vllm-cpu"
RUNS = ("online-cpuclock", "online-wallclock")
COLUMNS = ["arrival=arrival_s", "first_token=first_token_s", "finish=finish_s", "output_tokens=output_len",
           "prompt_tokens=prompt_len", "join=order"]
TOLERANCES = {"ttft": 0.10, "tpot": 0.05, "e2e": 0.05}
"""Largest error of the means."""

Change = Callable[[pd.DataFrame, pd.DataFrame], pd.DataFrame]
"""Convert (measured steps, the raw file in order of time) to steps to fit."""


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


def refit(data: Path, folder: Path, change: Change | None = None) -> Path:
    """Fit a profile on the steps in `data`, changed by `change`, and write it to `folder`."""
    from hermes.calibration.fit import fit_steps
    from hermes.calibration.steps import load_steps, save_steps
    from hermes.hardware.fitted.profile import dump_yaml

    steps = load_steps(data / "steps.yaml")
    if change is not None:
        steps = replace(steps, rows=change(steps.rows, pd.read_csv(data / "steps.csv").sort_values("t0")))
    save_steps(steps, folder / "steps.yaml")
    profile = fit_steps(load_steps(folder / "steps.yaml"), "vllm-cpu-small-llama").profile
    dump_yaml(profile, folder / "profile.yaml", "fitted by scripts/validate_vllm_cpu.py --refit")
    return folder / "profile.yaml"


def _step_alone(rows: pd.DataFrame, raw: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(time_s=raw["step_s"].to_numpy(), overhead_s=(raw["step_s"] - raw["t_exec"]).to_numpy())


def _execution_alone(rows: pd.DataFrame, raw: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(time_s=raw["t_exec"].to_numpy(), overhead_s=0.0)


def _no_attention(rows: pd.DataFrame, raw: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(prefill_attn=0, prefill_past=0)


def _no_context(rows: pd.DataFrame, raw: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(decode_ctx=rows["decode_seqs"], decode_ctx_max=rows["decode_seqs"].clip(upper=1))


def _no_mixed(rows: pd.DataFrame, raw: pd.DataFrame) -> pd.DataFrame:
    mixed = (rows["prefill_tokens"] > 0) & (rows["decode_seqs"] > 0)
    return rows[~mixed].reset_index(drop=True)


CAUSES: dict[str, Change | None] = {
    "everything": None,
    "without the engine's time until its next step": _step_alone,
    "without any of the engine's own time": _execution_alone,
    "attention of prompts costs nothing": _no_attention,
    "context of decodes costs nothing": _no_context,
    "no mixed steps measured (composed)": _no_mixed,
}


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
    """Print one run."""
    print(outcome.run)
    print(f"  {'metric':6} {'stat':5} {'hermes':>11} {'vLLM':>11} {'error':>8}")
    for row in outcome.rows:
        if row.ours_s is not None and row.reference_s is not None and row.error is not None:
            print(f"  {row.metric.upper():6} {row.stat:5} {row.ours_s * 1e3:8.2f} ms {row.reference_s * 1e3:8.2f} ms "
                  f"{row.error:+8.2%}")
    print(f"  {outcome.out_of_range_steps} of {outcome.steps} steps outside the measured range; means within "
          f"{', '.join(f'{m.upper()} {t:.0%}' for m, t in TOLERANCES.items())}: {'ok' if outcome.ok else 'FAILED'}\n")


def show_causes(data: Path) -> None:
    """Print the error of the means with one cause left out, as a table."""
    table = []
    for name, change in CAUSES.items():
        with tempfile.TemporaryDirectory() as folder:
            profile = refit(data, Path(folder), change)
            rows = [row for run_name in RUNS for row in run(data, run_name, profile).rows if row.stat == "mean"]
        table.append((name, *(f"{row.error:+.1%}" for row in rows if row.error is not None)))
    heads = (f"{clock} {metric.upper()}" for clock in ("CPU clock", "wall clock") for metric in TOLERANCES)
    print(markdown_table(("error of the means", *heads), table))
    cpu, wall = (
        {row.metric: row.reference_s or 0.0 for row in run(data, name).rows if row.stat == "mean"} for name in RUNS
    )
    apart = (f"{metric.upper()} {wall[metric] / cpu[metric] - 1:+.1%}" for metric in TOLERANCES)
    print(f"\nThe engine's two runs, wall clock against CPU clock: {', '.join(apart)}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare with the online runs of a real vLLM on a CPU.")
    parser.add_argument("data", type=Path, nargs="?", default=DATA, help="folder with the engine's runs")
    parser.add_argument("--refit", action="store_true", help="fit the profile from steps.yaml first")
    parser.add_argument("--causes", action="store_true", help="print what each cause is worth (a minute)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        if options.causes:
            show_causes(options.data)
            return 0
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
