"""Measured steps beside what some other profile says of them: a card against its tables, an engine against another.

Unlike the held-out error of a fit, nothing here was fitted on these steps. Repetitions of a step count once, by their
median.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hermes.calibration.steps import STATS, MeasuredSteps, phase_of
from hermes.errors import InputError
from hermes.hardware.base import StepStats

__all__ = ["PhaseCheck", "check_steps"]


@dataclass(frozen=True)
class PhaseCheck:
    """How a profile's prices compare with measured steps of one phase; errors are (profile - measured) / measured."""

    phase: str
    steps: int
    mape: float
    bias: float
    """Median error: what the profile is off by as a rule."""
    p10: float
    p90: float
    worst: float
    """Largest absolute error, signed."""
    worst_step: str
    out_of_range: int
    """Steps outside the range the profile was measured on."""

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def check_steps(steps: MeasuredSteps, model: Any) -> tuple[list[PhaseCheck], pd.DataFrame]:
    """(one line per phase and one for all, every step with `measured_s`, `predicted_s` and `error`).

    model: a `HardwareModel`. Raises `InputError` where no row is usable.
    """
    rows = steps.usable()
    if rows.empty:
        raise InputError("at least one usable row", field="steps")
    table = rows.groupby(["configuration", *STATS], sort=False)[["time_s"]].median().reset_index()
    table["measured_s"] = table.pop("time_s")
    batches = [StepStats(**dict(zip(STATS, map(int, values), strict=True)))
               for values in table[list(STATS)].itertuples(index=False)]
    table["predicted_s"] = [model.step_ns(batch) * 1e-9 for batch in batches]
    table["error"] = table["predicted_s"] / table["measured_s"] - 1
    table["phase"] = phase_of(table)
    columns = {name: table[name].to_numpy(dtype=np.int64) for name in STATS}
    table["outside"] = model.out_of_range(columns, np.ones(len(table), dtype=np.int64))
    parts = [(phase, table[table["phase"] == phase]) for phase in ("prefill", "decode", "mixed")]
    return [_line(phase, part) for phase, part in (*parts, ("all", table)) if len(part)], table


def _line(phase: str, part: pd.DataFrame) -> PhaseCheck:
    errors = part["error"].to_numpy()
    worst = int(np.abs(errors).argmax())
    p10, median, p90 = (float(q) for q in np.percentile(errors, (10, 50, 90)))
    return PhaseCheck(
        phase=phase, steps=len(part), mape=float(np.abs(errors).mean()), bias=median, p10=p10, p90=p90,
        worst=float(errors[worst]), worst_step=str(part["configuration"].iloc[worst]),
        out_of_range=int(part["outside"].sum()),
    )
