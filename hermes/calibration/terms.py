"""Measured terms (`hermes-terms/1`): single operators and watts of one card, as `hermes fit` reads them.

As with measured steps (`hermes.calibration.steps`), `NAME.yaml` holds the source and `NAME.parquet` beside it a row per
repetition. Points that could not be measured are listed with the reason; nothing stands in for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from hermes.calibration.collect.counters import LIMIT, contended, steady
from hermes.calibration.plan import Records, chosen_clock, read_records
from hermes.calibration.table_files import MeasuredHeader, MeasuredTable, sha256
from hermes.calibration.terms_plan import TermsPlan
from hermes.config.validation import validate
from hermes.core.noise import tally
from hermes.errors import InputError
from hermes.hardware.descriptions.devices import DeviceDescription
from hermes.hardware.descriptions.models import ModelDescription

__all__ = ["COLUMNS", "MeasuredTerms", "TermsHeader", "load_terms", "pack_terms"]

SIZES = ("rows", "n", "k", "width", "batch", "new", "past", "context", "heads", "kv_heads", "head_dim")
CLOCKS = {
    "wall": "wall clock, many runs of an operator together",
    "cpu": "CPU time of all threads, many runs of an operator together",
    "cuda-events": "CUDA events around many launches",
}
COLUMNS: dict[str, str] = {
    "point": "string", "term": "string", "load": "string", "share": "float64",
    **dict.fromkeys(SIZES, "int64"),
    "time_s": "float64",       # of one run
    "cpu_time_s": "float64",   # CPU time of one run; NaN on a GPU
    "power_w": "float64",      # watts of one device under a load; NaN elsewhere
    "rate": "float64",         # bytes/s moved or flop/s computed by a load; NaN elsewhere
    "repetition": "int64", "sequence": "int64",
    "excluded": "string",      # reason against using the row in a fit
}
"""Columns of the Parquet file; sizes that a term does not have are 0 (`hermes.calibration.terms_plan.TermPoint`)."""

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


class TermsHeader(MeasuredHeader):
    """Source of measured terms. `hardware` is the device's name for itself, `engine` the library of the kernels and its
    version."""

    format: Literal["hermes-terms/1"] = "hermes-terms/1"
    description: DeviceDescription
    """The device's data sheet, as the plan had it."""
    model: ModelDescription
    tensor_parallel: list[Annotated[int, Field(ge=1)]]
    dtype: str
    launch: Literal["one launch", "apart"]
    """How a prompt and decodes of one step were served."""
    planned: Count
    """Points of the plan."""
    measured: Count
    estimated_s: Seconds
    """Planned seconds of the points that were reached."""
    taken_s: Seconds
    """Seconds that they took."""
    unavailable: list[str] = Field(default_factory=list)
    """Points that could not be measured, with reasons."""


class MeasuredTerms(MeasuredTable[TermsHeader]):
    """A header and its rows (columns as in `COLUMNS`)."""

    header_class: ClassVar[type[Any]] = TermsHeader
    columns: ClassVar[Mapping[str, str]] = COLUMNS

    def medians(self) -> pd.DataFrame:
        """Return one row per point that a fit may use: its sizes, and the medians of its repetitions."""
        used = self.usable()
        sizes = ["term", "load", "share", *SIZES]
        groups = used.groupby("point", sort=False)
        return pd.concat([groups[sizes].first(), groups[["time_s", "power_w", "rate"]].median()], axis=1).reset_index()


load_terms = MeasuredTerms.load


def pack_terms(journal: Path, name: str, command: str = "", clock: str | None = None) -> MeasuredTerms:
    """Return the terms of a journal, complete or cut off.

    Args:
        clock: "cpu" takes CPU time for `time_s`, "wall" the wall clock; by default the plan's clock.

    Raises `InputError` for a file that is not a journal of such a plan, or has no rows.
    """
    plan, found = read_records(journal, TermsPlan)
    chosen = chosen_clock(plan, clock)
    rows, classes = _rows(plan, found, chosen, journal)
    environment = dict(found.environment)
    notes = environment.pop("notes", [])
    if not isinstance(notes, list):
        raise InputError("a list", notes, file=str(journal), line=1, field="environment.notes")
    reached = {record["point"] for record in found.points}
    return MeasuredTerms(validate(TermsHeader, {
        "name": name, "hardware": str(environment.get("device", plan.device)),
        "description": plan.description.model_dump(), "engine": str(environment.get("engine", plan.backend)),
        "model": plan.model.model_dump(), "tensor_parallel": plan.tensor_parallel, "dtype": plan.dtype,
        "date": str(environment.get("date", "unknown")), "clock": CLOCKS[chosen],
        "launch": environment.get("beside", "apart"), "planned": len(plan.points),
        "measured": int(rows["point"].nunique()),
        "estimated_s": round(sum(p["estimate_s"] for p in plan.points if p["name"] in reached), 2),
        "taken_s": round(sum(record.get("seconds", 0.0) for record in found.points), 2),
        "source": f"measured by {plan.collector}", "source_sha256": sha256(journal), "collected_by": command,
        "options": {"repetitions": plan.repetitions, "warmup_s": plan.warmup_s, "threads": plan.threads,
                    "clock": chosen, "noise": classes, "drift": found.drift()},
        "environment": environment,
        "unavailable": found.failed, "notes": [*notes, *found.unreached(plan)],
    }, str(journal)), rows)


def _rows(plan: TermsPlan, found: Records, clock: str, journal: Path) -> tuple[pd.DataFrame, str]:
    """Return all rows in the order of their measurement, and the classes of the last attempts."""
    points = {point["name"]: point for point in plan.points}
    out, classes = [], []
    for record, superseded in found.attempts():
        point, verdict = points[record["point"]], record.get("class", "single")
        reason = f"{verdict}, measured again" if superseded else "rejected" if verdict == "rejected" else ""
        classes += [] if superseded else [verdict]
        kept = {row["repetition"] for row in steady(record["rows"])} if clock == "wall" else None
        for row in record["rows"]:
            waited = kept is not None and contended(row) and row["repetition"] not in kept
            out.append(_row(point, row, clock) | {
                "excluded": reason or (f"waited for a core for more than {LIMIT:.0%} of the time" if waited else "")})
    if not out:
        raise InputError("at least one measured point", file=str(journal))
    rows = pd.DataFrame(out).assign(sequence=np.arange(len(out)))
    return MeasuredTerms.tidy(rows, str(journal)), tally(classes)


def _row(point: Mapping[str, Any], row: Mapping[str, Any], clock: str) -> dict[str, Any]:
    seconds = row.get("cpu_time_s", row["time_s"]) if clock == "cpu" else row["time_s"]
    return {
        "point": point["name"], "term": point["term"], "load": point.get("load", ""),
        "share": float(point.get("share", 0.0)),
        **{size: int(point.get(size, 0)) for size in SIZES},
        "time_s": max(seconds, 1e-9),   # the CPU clock may stand still during a run of nanoseconds
        "cpu_time_s": row.get("cpu_time_s", np.nan), "power_w": row.get("power_w", np.nan),
        "rate": row.get("rate", np.nan), "repetition": row.get("repetition", 0),
    }
