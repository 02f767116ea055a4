"""Convert a collector's journal to measured steps (`hermes-steps/1`).

All measurements are kept: rows of points that were rejected, or measured again because their repetitions disagreed,
have the reason in `excluded`.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field

from hermes.calibration.plan import Plan, Records, chosen_clock, read_records
from hermes.calibration.steps import STATS, STEP, MeasuredSteps, StepsHeader
from hermes.calibration.table_files import sha256
from hermes.config import ConfigModel
from hermes.config.validation import validate
from hermes.core.noise import classify, spread
from hermes.errors import InputError, Verbatim

__all__ = ["noise_classes", "pack"]

CLOCKS = {
    "wall": "wall clock around the step",
    "cpu": "CPU time of the process in the step",
    "cuda-events": "CUDA events around the step",
}


def pack(journal: Path, *, clock: str | None = None, name: str | None = None, command: str = "") -> MeasuredSteps:
    """Return the steps of a journal, complete or cut off.

    Args:
        clock: "cpu" takes CPU time for `time_s`, "wall" the wall clock; by default the plan's clock.

    Raises `InputError` for a file that is not a plan's journal, or has no rows.
    """
    plan, found = read_records(journal, Plan)
    if "all_reduce" in plan.options:
        raise InputError(Verbatim("one rank of several, measured alone by an earlier version: its all-reduces are "
                                  "missing; measure it again"), file=str(journal), line=1,
                         field="plan.options.all_reduce")
    chosen = chosen_clock(plan, clock)
    rows = _rows(found, chosen, journal)
    seen = validate(_Environment, {k: v for k, v in found.environment.items() if k in _Environment.model_fields},
                    str(journal))
    column = "cpu_time_s" if chosen == "cpu" else "time_s"
    if any(column not in row for record in found.references for row in record["rows"]):
        raise InputError("CPU times in every row", file=str(journal), field=column)
    options = {**plan.options, "repetitions": plan.repetitions, "warmup_s": plan.warmup_s, "clock": chosen,
               "noise": noise_classes(rows), "drift": found.drift(column), **seen.options}
    header = {
        "name": name or f"{plan.model.name}-{plan.engine}-{plan.device}-tp{plan.tensor_parallel}-{plan.dtype}",
        "hardware": seen.device or plan.device, "engine": plan.engine, "engine_version": seen.engine_version,
        "model": plan.model.name, "model_config_json": plan.config_json, "tensor_parallel": plan.tensor_parallel,
        "dtype": plan.dtype, "kv_dtype": seen.kv_dtype, "date": seen.date, "clock": CLOCKS[chosen],
        "source": f"measured by {plan.collector}", "source_sha256": sha256(journal), "collected_by": command,
        "options": options, "memory": seen.memory, "idle_w": seen.idle_w, "excluded": found.failed,
        "notes": [*seen.notes, *found.unreached(plan)],
        "environment": {name: value for name, value in found.environment.items()
                        if name not in ("notes", "options", "memory", "idle_w")},
    }
    return MeasuredSteps(validate(StepsHeader, header, str(journal)), rows)


class _Environment(ConfigModel):
    """Return the collector's description of the machine, as the header needs it."""

    device: str = ""
    engine_version: str = ""
    kv_dtype: str = ""
    date: str = "unknown"
    notes: list[str] = Field(default_factory=list)
    options: dict[str, Any] = Field(default_factory=dict)
    memory: dict[str, Any] | None = None
    idle_w: float | None = None


def _rows(found: Records, clock: str, journal: Path) -> pd.DataFrame:
    """Return all rows in the order of their measurement, with the reasons against them."""
    parts = []
    for record, superseded in found.attempts():
        part = pd.DataFrame(record["rows"])
        if "configuration" not in part:
            part["configuration"] = record["point"]
        if "excluded" not in part:
            part["excluded"] = ""
        if superseded:
            part["excluded"] = f"{record.get('class')} (CV {record.get('cv', 0.0):.0%}), measured again"
        parts.append(part)
    if not parts:
        raise InputError("at least one measured point", file=str(journal))
    rows = pd.concat(parts, ignore_index=True)
    missing = sorted(set(STATS) - set(rows.columns))
    lacking = rows[[name for name in (*STATS, "repetition") if name in rows]].isna().any(axis=1)
    if missing or lacking.any():
        raise InputError(f"the columns {', '.join(STATS)} in every row", Verbatim(f"rows without {missing or 'some'}"),
                         file=str(journal), field="rows")
    rows["sequence"] = np.arange(len(rows))
    if clock == "cpu":
        if "cpu_time_s" not in rows or not (rows["cpu_time_s"] > 0).all():
            raise InputError("CPU times in every row", file=str(journal), field="cpu_time_s")
        rows["time_s"] = rows["cpu_time_s"]
    return _reject(rows)


def _reject(rows: pd.DataFrame) -> pd.DataFrame:
    """Mark repetitions of one step that spread by half their mean as SVAB class `rejected`."""
    used = rows[rows["excluded"] == ""]
    for _, group in used.groupby(STEP, sort=False):
        found = spread(group["time_s"])
        if found.verdict == "rejected":
            rows.loc[group.index, "excluded"] = f"rejected: {found.samples} repetitions, CV {found.cv:.0%}"
    return rows


def noise_classes(rows: pd.DataFrame) -> dict[str, Any]:
    """Return how far repetitions of a step agree: SVAB classes of the steps, and the median CV of those that a fit may
    use (all but the rejected)."""
    used = rows[rows["excluded"] == ""]
    out = rows[rows["excluded"].str.startswith("rejected: ")]
    rejected = out.groupby(STEP).ngroups
    spreads = [spread(group["time_s"]) for _, group in used.groupby(STEP, sort=False)]
    repeated = [found for found in spreads if found.samples > 1]
    if not repeated:
        return {"repeated_steps": rejected, **({"rejected": rejected} if rejected else {})}
    counts = {name: sum(classify(f.cv) == name for f in repeated) for name in ("excellent", "good", "flaky")}
    return {
        "repeated_steps": len(repeated) + rejected, **counts, "rejected": rejected,
        "excluded_rows": len(rows) - len(used),
        "median_cv": round(statistics.median(f.cv for f in repeated), 5),
        "median_ci95": round(statistics.median(f.ci95 / f.mean for f in repeated), 5),
    }
