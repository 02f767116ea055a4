"""Comparison of predicted with measured times of steps: relative errors and their statistics.

Fits and `hermes calibrate check` judge predictions with this module. Errors are (predicted - measured) / measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from hermes.arrays import FloatArray
from hermes.calibration.steps import STATS, STEP, MeasuredSteps, phase_of
from hermes.errors import InputError
from hermes.hardware.base import HardwareModel, StepStats

__all__ = ["Errors", "PhaseErrors", "check_steps", "compare_times", "group_weights"]


@dataclass(frozen=True)
class Errors:
    """Relative errors of predictions, fractions."""

    points: int
    mape: float
    """Mean absolute error, weighted."""
    mean: float
    """Mean with sign, weighted."""
    median: float
    p10: float
    p90: float
    worst: float
    """The error of the largest size, with its sign."""
    worst_at: int
    """Index of that prediction."""


def compare_times(predicted: FloatArray, measured: FloatArray, weights: FloatArray | None = None) -> Errors:
    """Return the relative errors of `predicted`, both in seconds, shape (points,), at least one. `weights` weigh the
    two means."""
    errors = predicted / measured - 1
    size = np.abs(errors)
    worst = int(size.argmax())
    p10, median, p90 = (float(value) for value in np.percentile(errors, (10, 50, 90)))
    counted = np.ones(len(errors)) if weights is None else weights
    total = np.sum(counted)
    return Errors(
        points=len(errors), mape=float(np.sum(counted * size) / total), mean=float(np.sum(counted * errors) / total),
        median=median, p10=p10, p90=p90, worst=float(errors[worst]), worst_at=worst,
    )


def group_weights(groups: npt.NDArray[Any]) -> FloatArray:
    """Return one over the rows of the same group, so that every group counts the same; shape (rows,)."""
    _, index, count = np.unique(groups.astype(np.str_), return_inverse=True, return_counts=True)
    return np.asarray(1.0 / count[index], dtype=np.float64)


# -- steps compared with a profile that was not fitted on them ---------------------------------------------------------


@dataclass(frozen=True)
class PhaseErrors:
    """Errors of a profile on the measured steps of one phase."""

    phase: str
    errors: Errors
    worst_step: str
    out_of_range: int
    """Steps outside the profile's measured range."""

    def as_dict(self) -> dict[str, Any]:
        found = self.errors
        return {"phase": self.phase, "steps": found.points, "mape": found.mape, "bias": found.median, "p10": found.p10,
                "p90": found.p90, "worst": found.worst, "worst_step": self.worst_step,
                "out_of_range": self.out_of_range}


def check_steps(steps: MeasuredSteps, model: HardwareModel) -> tuple[list[PhaseErrors], pd.DataFrame]:
    """Price measured steps with a model; return (errors of each phase and of all, one row per step).

    Repetitions of a step count once, by their median. The rows have `measured_s`, `predicted_s` and `phase`. Raises
    `InputError` if no row is usable.
    """
    rows = steps.usable()
    if rows.empty:
        raise InputError("at least one usable row", field="steps")
    table = rows.groupby(STEP, sort=False)[["time_s"]].median().reset_index()
    table["measured_s"] = table.pop("time_s")
    batches = [StepStats(**dict(zip(STATS, map(int, values), strict=True)))
               for values in table[list(STATS)].itertuples(index=False)]
    table["predicted_s"] = [model.step_ns(batch) * 1e-9 for batch in batches]
    table["phase"] = phase_of(table)
    columns = {name: table[name].to_numpy(dtype=np.int64) for name in STATS}
    table["outside"] = model.out_of_range(columns, np.ones(len(table), dtype=np.int64))
    parts = [(phase, table[table["phase"] == phase]) for phase in ("prefill", "decode", "mixed")]
    found = []
    for phase, part in (*parts, ("all", table)):
        if len(part):
            errors = compare_times(part["predicted_s"].to_numpy(), part["measured_s"].to_numpy())
            worst = str(part["configuration"].iloc[errors.worst_at])
            found.append(PhaseErrors(phase, errors, worst, int(part["outside"].sum())))
    return found, table
