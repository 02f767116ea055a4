"""Strict reader of a collector's journal: checks types, bounds and finite numbers of every line.

The collector writes with `hermes.calibration.journal`, on machines that have only the standard library.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hermes.calibration.collect.contention import contended, steady
from hermes.calibration.journal import FORMAT
from hermes.calibration.plan import PointPlan
from hermes.config.files import parse_json, text_lines
from hermes.config.validation import validate
from hermes.core.noise import spread
from hermes.errors import InputError, Verbatim

__all__ = ["Records", "chosen_clock", "engine_of_journal", "read_records"]

LARGEST = 2**53   # integers are exact below

P = TypeVar("P", bound=PointPlan)
_FIELDS: dict[str, str] = {
    "point": "string", "attempt": "int64", "seconds": "float64", "cv": "float64", "class": "string",
    "failed": "string", "at_s": "float64", "recall": "float64", "library": "string", "peak_rss_bytes": "int64",
    "contended": "int64", "work": "mapping", "index": "mapping",
}
"""Types of a record's values beside its rows."""
_NEEDED = {"point": ("point", "rows"), "reference": ("at_s", "rows")}
_TYPES = {"int64": f"an integer from 0 to {LARGEST}", "float64": "a finite number", "string": "text",
          "mapping": "a mapping"}


class Records(NamedTuple):
    """A journal: the environment its collector found, and its records in order."""

    environment: dict[str, Any]
    records: list[dict[str, Any]]

    @property
    def points(self) -> list[dict[str, Any]]:
        """Return the records of measured points."""
        return [record for record in self.records if record["kind"] == "point"]

    @property
    def references(self) -> list[dict[str, Any]]:
        """Return the visits of the reference point that have rows."""
        return [record for record in self.records if record["kind"] == "reference" and record["rows"]]

    @property
    def failed(self) -> list[str]:
        """Return the points that could not be measured, with reasons."""
        return [f"{record['point']}: {record['failed']}" for record in self.points if "failed" in record]

    def best_attempts(self) -> list[dict[str, Any]]:
        """Return one record of each point that has rows, in order of first attempts: of several the one with most
        repetitions that were not contended, and then the steadiest."""
        best: dict[str, tuple[tuple[int, float], dict[str, Any]]] = {}
        for record in self.points:
            if rows := record["rows"]:
                merit = sum(not contended(row) for row in rows), -spread(row["time_s"] for row in steady(rows)).cv
                if record["point"] not in best or merit > best[record["point"]][0]:
                    best[record["point"]] = merit, record
        return [record for _, record in best.values()]

    def unreached(self, plan: PointPlan) -> list[str]:
        """Return a note on the points that a budget left out, if it did."""
        left = len({point["name"] for point in plan.points} - {record["point"] for record in self.points})
        return [f"{left} of {len(plan.points)} planned points were not measured (time budget)"] if left else []

    def drift(self, column: str = "time_s") -> dict[str, float]:
        """Compare the reference point over the session: medians of each visit, first against last, and lowest to
        highest. Empty without visits."""
        visits = [(record["at_s"], statistics.median(row[column] for row in record["rows"]))
                  for record in self.references]
        if not visits:
            return {}
        times = [seconds for _, seconds in visits]
        return {
            "reference_visits": len(visits), "over_s": round(visits[-1][0] - visits[0][0], 1),
            "median_s": round(statistics.median(times), 7), "last_over_first": round(times[-1] / times[0], 4),
            "highest_over_lowest": round(max(times) / min(times), 4),
        }


def chosen_clock(plan: PointPlan, clock: str | None) -> str:
    """Return the clock to take for `time_s`: `clock`, or the plan's. Raises `InputError` where there is no choice."""
    if clock is not None and (clock not in ("wall", "cpu") or plan.clock == "cuda-events"):
        expected = "no choice (CUDA events were measured)" if plan.clock == "cuda-events" else "wall or cpu"
        raise InputError(expected, clock, field="clock")
    return clock or plan.clock


def _lines(path: Path, most: int | None = None) -> list[dict[str, Any]]:
    """Return the objects of the complete lines; a kill may have torn the last one."""
    out: list[dict[str, Any]] = []
    for number, text in enumerate(text_lines(path, f"a journal ({FORMAT})"), start=1):
        if not text.endswith("\n") or len(out) == most:
            break
        record = parse_json(text, str(path), number)
        if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
            raise InputError("a record of a journal, with its kind", file=str(path), line=number)
        out.append(record)
    if not out or out[0].get("kind") != "header" or out[0].get("format") != FORMAT:
        raise InputError(f"a journal ({FORMAT})", Verbatim("no header of one"), file=str(path), line=1)
    if not isinstance(out[0].get("plan"), dict):
        raise InputError("a journal with its plan", file=str(path), line=1, field="plan")
    return out


def engine_of_journal(path: Path) -> str:
    """Return the kind of measurement: `link`, `retrieval`, or the name of an LLM engine. Raises `InputError`."""
    engine = _lines(path, 1)[0]["plan"].get("engine")
    if not isinstance(engine, str):
        raise InputError("the name of an engine", engine, file=str(path), line=1, field="plan.engine")
    return engine


def read_records(path: Path, kind: type[P]) -> tuple[P, Records]:
    """Return (plan, records) of a journal, complete or cut off, of the plans of `kind`.

    Raises `InputError` naming the line and the field of an invalid plan, record or row.
    """
    header, *records = _lines(path)
    plan = validate(kind, header["plan"], str(path))
    environment = header.get("environment", {})
    if not isinstance(environment, dict):
        raise InputError("a mapping", environment, file=str(path), line=1, field="environment")
    names = {point["name"] for point in plan.points}
    for line, record in enumerate(records, start=2):
        try:
            _check(record, kind)
        except InputError as error:
            error.file, error.line = str(path), line
            raise
        if record["kind"] == "point" and record["point"] not in names:
            raise InputError("a point of the plan", record["point"], file=str(path), line=line, field="point")
    return plan, Records(environment, records)


def _check(record: Mapping[str, Any], plan: type[PointPlan]) -> None:
    needed, columns = _NEEDED.get(record["kind"], ()), plan.row_columns
    for name in (*needed, *(plan.record_fields if record["kind"] == "point" and record.get("rows") else ())):
        if name not in record:
            raise InputError("a value (required)", field=name)
    for name, value in record.items():
        if needed and name in _FIELDS:
            _check_value(name, value, _FIELDS[name])
    if "rows" not in needed:
        return
    rows = record["rows"]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError("a list of rows", rows, field="rows")
    for number, row in enumerate(rows):
        for name, value in row.items():
            if name not in columns:
                raise InputError(f"columns among {', '.join(columns)}", name, field=f"rows.{number}")
            _check_value(f"rows.{number}.{name}", value, columns[name])
        if not row.get("time_s", 0) > 0:
            raise InputError("a time above 0", row.get("time_s"), field=f"rows.{number}.time_s")


def _check_value(field: str, value: Any, kind: str) -> None:
    good = {
        "int64": type(value) is int and 0 <= value <= LARGEST,
        "float64": type(value) in (int, float) and abs(value) <= LARGEST,
        "string": isinstance(value, str), "mapping": isinstance(value, dict),
    }[kind]
    if not good:
        raise InputError(_TYPES[kind], value, field=field)
