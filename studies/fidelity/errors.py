"""Errors against measurements: fits of step times, and servers that others recorded."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from hermes.hardware import load_profile
from hermes.study import Compared
from hermes.study.compared import NEAR

__all__ = ["cells", "fits", "servers"]

WHERE = "fidelity, error against vLLM"
MEAN, WORST = 2.0, 14.65   # of the paper's errors, percent
PHASES = {"decode": 4.09e-7, "prefill": 6.49e-5}   # the paper's mean square errors, s^2
# name of recorded servers -> their card in all-sets.csv
SERVERS = {"one or two H100, five models": "h100-sxm", "two H100, Llama-3.1-70B": "h100-sxm tp2",
           "four H100, Llama-3.1-70B": "h100-sxm tp4", "eight H100, Llama-3.1-70B": "h100-sxm tp8"}
OWN = ("h100-sxm tp4", "h100-sxm tp8")   # the paper's parallelism and model; its grid has one workload, these another
# errors of the end-to-end runtime by (TP, chunk), percent: 10, 20, 50, 100 requests, of 1k and 2k prompt tokens each
CELLS = {
    (8, 512): (-14.65, 0.70, -7.33, -1.95, -0.49, -0.11, -2.75, -0.86),
    (8, 1024): (-4.39, -0.40, -3.98, -3.07, -1.19, -0.79, -3.50, -2.08),
    (4, 512): (-3.31, 0.13, -1.06, -0.94, -0.45, 0.51, -2.36, -0.72),
    (4, 1024): (-1.06, 0.42, -1.30, -1.11, -1.07, -0.22, -2.41, -1.53),
}
ALL_REDUCES = {"llm-d, NCCL": "NCCL's", "llm-d, 1 user": "one found from a single user"}
TABLES = "llm-d, tables"


def servers(errors: Path) -> list[Compared]:
    """Return errors of E2E on recorded vLLM servers; none without the file. errors: docs/accuracy/all-sets.csv."""
    if not errors.is_file():
        return []
    frame = pd.read_csv(errors)
    frame = frame[(frame["metric"] == "e2e") & (frame["stat"] == "mean")]
    found = []
    for name, card in SERVERS.items():
        by_set = {str(label): rows for label, rows in frame[frame["card"] == card].groupby("set")}
        if TABLES in by_set:
            mine = by_set[TABLES]
            others = [f"{said} {_text(*_typical(by_set[label]))}" for label, said in ALL_REDUCES.items()]
            why = f"All-reduce of the kernel tables; with {'; with '.join(others)}."
        else:
            mine, why = pd.concat(by_set.values()), f"{', '.join(sorted(by_set))}: kernels decide, not links."
        typical, worst = _typical(mine)
        found.append(Compared(
            f"error of mean E2E, recorded vLLM servers of {name}, %", _text("about 2", -14.65), _text(typical, worst),
            f"{mine['cases'].sum()} loads, another workload than the paper's. {why}", where=WHERE,
            agrees=typical <= (1 + NEAR) * MEAN and abs(worst) <= (1 + NEAR) * WORST,
            qualifier="" if card in OWN else "not comparable"))
    return found


def cells(makespans: pd.DataFrame) -> list[Compared]:
    """Return the cells of the paper's figure 6, each with the makespan here. makespans: a row for each cell of the
    grid, with `tp`, `chunk`, `requests`, `prompt` and `makespan s`."""
    found = {(row["tp"], row["chunk"], row["requests"], row["prompt"]): row["makespan s"]
             for row in makespans.to_dict("records")}
    rows = []
    for (tp, chunk), errors in CELLS.items():
        for error, (count, prompt) in zip(errors, ((n, p) for n in (10, 20, 50, 100) for p in (1000, 2000)),
                                          strict=True):
            seconds = found.get((tp, chunk, count, prompt))
            said = "" if seconds is None else f"The makespan here is {seconds:.2f} s; "
            rows.append(Compared(
                f"error of the runtime, TP{tp}, chunk {chunk}, {count} requests of {prompt // 1000}k, %", error, None,
                f"{said}vLLM's own was not measured: no node of {tp} H100 was at hand.",
                2, "Fig. 6", qualifier="not computed"))
    return rows


def _typical(rows: pd.DataFrame) -> tuple[float, float]:
    """Return the mean of the sets' median errors, weighed by loads, and the worst error."""
    mean = float((rows["median_percent"] * rows["cases"]).sum() / rows["cases"].sum())
    return mean, max(map(float, rows["worst_percent"]), key=abs)


def _text(mean: float | str, worst: float) -> str:
    said = mean if isinstance(mean, str) else f"{mean:.1f}"
    return f"{said} on average, {worst:+g} at worst"


def fits() -> list[Compared]:
    """Return the errors of the fits to splitwise-sim's measurements of Llama-2-70B, and the number of their steps."""
    profiles = [load_profile(f"splitwise-2023-llama-2-70b-h100-tp{tp}") for tp in (2, 4, 8)]
    own = load_profile("llama-3.1-70b-h100-tp8-bf16")
    found, steps = [], 0
    for phase, paper in PHASES.items():
        parts = [part for profile in profiles if (part := getattr(profile.phases, phase)) is not None]
        steps += sum(part.points for part in parts)
        errors = [part.error.mse_s2 for part in parts if part.error]
        relative = [100 * part.error.mape for part in parts if part.error]
        kernels = getattr(own.phases, phase).error
        found.append(Compared(
            f"mean square error of a {phase} step, Llama-2-70B at TP2, TP4, TP8, s^2", paper,
            (min(errors), max(errors)),
            f"{sum(part.points for part in parts)} public steps, whole configurations held out, relative errors "
            f"({min(relative):.1f} to {max(relative):.1f}%) fitted; kernel tables of this grid at TP8: "
            f"{kernels.mse_s2:.2g}.", where="hardware models, regression"))
    found.append(Compared("measured steps behind the regression", 58_000, steps,
                          "The paper's steps are not published; splitwise-sim's file has these.",
                          where="hardware models, regression"))
    return found
