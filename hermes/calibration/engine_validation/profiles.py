"""Measured steps of a validation, one set per clock, and the profiles fitted to them.

Wall times predict a run on the wall clock, CPU times of the same steps a run on the CPU clock. Steps during which a CPU
engine lost its CPU do not measure the engine: the wall clock's set excludes them by the same share as
`hermes.calibration.engine_validation.contention`.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np

from hermes.calibration.collect.online import REFERENCE_OUTPUT, REFERENCE_PROMPT, REFERENCE_SEQS
from hermes.calibration.engine_validation.contention import LOST_SHARE
from hermes.calibration.pack import pack
from hermes.calibration.plan import Plan
from hermes.calibration.records import read_records
from hermes.calibration.steps import MeasuredSteps, load_steps, save_steps
from hermes.hardware.profile import dump_yaml

__all__ = ["collected_steps", "fit_profile", "given_steps", "reference_s"]

CPU_CLOCK = "CPU time of the process in the step"


def _without_contended(steps: MeasuredSteps) -> MeasuredSteps:
    """Return the same steps; those that lost more than `LOST_SHARE` of their wall time to other work are excluded."""
    rows = steps.rows.copy()
    lost = 1 - rows["cpu_time_s"] / rows["time_s"]
    contended = (lost > LOST_SHARE) & (rows["excluded"] == "")
    rows.loc[contended, "excluded"] = f"contended: less than {1 - LOST_SHARE:.0%} of a CPU"
    note = f"{int(contended.sum())} steps excluded in which the process had less than {1 - LOST_SHARE:.0%} of a CPU"
    header = steps.header.model_copy(update={"notes": [*steps.header.notes, note]})
    return replace(steps, header=header, rows=rows)


def collected_steps(journal: Path, clock: str, path: Path, command: str, *, on_cpu: bool) -> None:
    """Write the steps of a collector's journal for one clock."""
    steps = pack(journal, clock=clock if on_cpu else None, command=command)
    save_steps(_without_contended(steps) if on_cpu and clock == "wall" else steps, path)


def fit_profile(steps: Path, path: Path) -> None:
    """Fit a profile on a file of steps and write it. Raises `InputError` for steps that do not suffice."""
    from hermes.calibration.fit import fit_steps  # scipy takes a second to import

    dump_yaml(fit_steps(load_steps(steps), path.stem).profile, path, f"fitted on {steps.name}")


def given_steps(source: Path, clock: str, path: Path) -> str:
    """Write the user's steps for one clock; return a note if they do not fit the clock.

    Steps without CPU times serve both clocks unchanged.
    """
    steps = load_steps(source)
    cpu = steps.rows["cpu_time_s"].to_numpy()
    if clock == "wall":
        save_steps(steps, path)
        return "steps given were timed by CPU time" if steps.header.clock == CPU_CLOCK else ""
    if not (np.isfinite(cpu) & (cpu > 0)).all():
        save_steps(steps, path)
        return "steps given have no CPU times: the CPU clock is predicted from their wall times"
    rows = steps.rows.assign(time_s=cpu)
    save_steps(replace(steps, header=steps.header.model_copy(update={"clock": CPU_CLOCK}), rows=rows), path)
    return ""


def reference_s(journal: Path | None, *, on_cpu: bool) -> float | None:
    """Return the reference step while calibrating: median over its visits of the median step.

    None if it was not measured, or the calibration's reference is another batch than the online server's.
    """
    if journal is None or not journal.is_file():
        return None
    column = "cpu_time_s" if on_cpu else "time_s"
    plan, found = read_records(journal, Plan)
    batch = [[0, REFERENCE_PROMPT, REFERENCE_OUTPUT]] * REFERENCE_SEQS
    if (plan.reference or {}).get("requests") != batch:
        return None
    visits = [statistics.median(row[column] for row in record["rows"] if column in row)
              for record in found.references]
    return statistics.median(visits) if visits else None
