"""Plans: the points that a collector measures (`hermes-plan/1`, a JSON file); and the strict reader of its journal.

A plan is complete: its collector needs no other part of hermes, on this machine or another. Points are specific to the
measurement; all have a `name`, a `level` (coarse points first) and an `estimate_s`. The collector writes the journal
with `hermes.calibration.journal`, on machines that have only the standard library; here the types, bounds and finite
numbers of every line are checked.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from pydantic import Field, model_validator

from hermes.calibration.collect.counters import contended, steady
from hermes.calibration.journal import FORMAT
from hermes.calibration.steps import COLUMNS
from hermes.config import ConfigModel
from hermes.config.files import parse_json, text_lines
from hermes.config.validation import validate
from hermes.config.writing import write_text
from hermes.core.noise import spread
from hermes.errors import InputError, Verbatim, inside
from hermes.hardware.descriptions.models import ModelDescription
from hermes.sums import float_sum

__all__ = [
    "DTYPES", "KV_SHARE", "Plan", "PlanMemory", "PointPlan", "Records", "check_dense", "chosen_clock",
    "engine_of_journal", "powers", "read_records", "save_plan",
]

DTYPES = ("bf16", "fp16", "fp32")
"""Precisions that collectors compute in."""
KV_SHARE = 0.9
"""Share of a device's memory that a plan uses, weights and activations included."""

LARGEST = 2**53   # integers are exact below
_FIELDS: dict[str, str] = {
    "point": "string", "attempt": "int64", "seconds": "float64", "cv": "float64", "class": "string",
    "failed": "string", "at_s": "float64", "recall": "float64", "library": "string", "peak_rss_bytes": "int64",
    "contended": "int64", "work": "mapping", "index": "mapping",
}
"""Types of a record's values besides its rows."""
_NEEDED = {"point": ("point", "rows"), "reference": ("at_s", "rows")}
_TYPES = {"int64": f"an integer from 0 to {LARGEST}", "float64": "a finite number", "string": "text",
          "mapping": "a mapping"}


class PlanMemory(ConfigModel):
    """Bytes that one device will need."""

    weights_bytes: Annotated[int, Field(ge=0)]
    kv_bytes: Annotated[int, Field(ge=0)]
    activation_bytes: Annotated[int, Field(ge=0)]
    capacity_bytes: Annotated[int, Field(ge=0)] = 0
    """Memory of the device, from its description; 0: unknown."""

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.activation_bytes


class PointPlan(ConfigModel):
    """Common part of plans; the session that measures a plan reads only `name`, `level` and `estimate_s` of a point."""

    row_columns: ClassVar[dict[str, str]] = {"repetition": "int64", "time_s": "float64"}
    """Columns of a journal's rows and their types; as `hermes.calibration.steps.COLUMNS`."""
    record_fields: ClassVar[tuple[str, ...]] = ()
    """Keys that a journal must hold for a measured point besides its rows."""
    point: ClassVar[type[ConfigModel] | None] = None
    """What each of `points` has to be; None for a plan that checks them itself."""

    format: Literal["hermes-plan/1"] = "hermes-plan/1"
    engine: str
    collector: str
    """Module that measures it: `python -m COLLECTOR PLAN JOURNAL`."""
    clock: Literal["wall", "cpu", "cuda-events"]
    """Clock of the plan: it judges noise, and `pack` takes it for `time_s` by default."""
    warmup_s: Annotated[float, Field(ge=0, le=3600)]
    points: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=100_000)]

    @model_validator(mode="after")
    def _named_points(self) -> Self:
        names = [point.get("name") for point in self.points]
        if not all(isinstance(name, str) and name for name in names) or len(set(names)) != len(names):
            raise InputError("points with different names", field="points")
        if self.point:
            for index, point in enumerate(self.points):
                with inside(f"points.{index}"):
                    validate(self.point, point)
        return self

    @property
    def estimate_s(self) -> float:
        """Return the seconds of all points, including warm-up but not reference points and start-up."""
        return self.warmup_s + float_sum(float(point.get("estimate_s", 0.0)) for point in self.points)


class Plan(PointPlan):
    """A grid of points for one LLM engine, model, parallelism and precision."""

    row_columns: ClassVar[dict[str, str]] = COLUMNS

    model: ModelDescription
    config_json: dict[str, Any]
    """The Hugging Face config.json of the model; written from the description if the model had none."""
    device: Literal["cpu", "cuda"]
    hardware: str = ""
    """Device description of the estimates."""
    dtype: str
    tensor_parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    repetitions: Annotated[int, Field(ge=1, le=1000)]
    reference_every_s: Annotated[float, Field(ge=0, le=1e6)] = 60.0
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the engine."""
    memory: PlanMemory | None = None
    reference: dict[str, Any] | None = None
    """Point measured during warm-up and repeatedly later, to show drift."""


def powers(low: int, high: int, factor: int) -> list[int]:
    """Return `low`, `low * factor`, ... below `high`, and `high`."""
    out = []
    while low < high:
        out.append(low)
        low *= factor
    return [*out, high]


def between(values: Iterable[int]) -> list[int]:
    """Add a value halfway between neighbours that are a factor of two apart: kernels change their tiles there too."""
    found = sorted(set(values))
    return sorted({*found, *(a + (b - a) // 2 for a, b in pairwise(found) if b > a + 1)})


def check_dense(model: ModelDescription) -> None:
    """Raise `InputError` for a model that is no dense decoder of the Llama family."""
    if not (model.gated_ffn and model.causal and model.norm == "rms" and not model.num_experts
            and not model.linear_bias and not model.embedding_norm and model.output_head != "none"):
        raise InputError("a dense decoder with RMSNorm, rotary embedding and SwiGLU (Llama, Mistral, Qwen2, Qwen3)",
                         model.name, field="model")


P = TypeVar("P", bound=PointPlan)


def save_plan(plan: PointPlan, path: Path) -> None:
    """Write a plan, one point per line, for readable differences."""
    content = plan.model_dump(mode="json")
    points = content.pop("points")
    head = json.dumps(content, indent=1)[:-2]
    lines = ",\n".join("  " + json.dumps(point, separators=(",", ":")) for point in points)
    write_text(path, f'{head},\n "points": [\n{lines}\n ]\n}}\n')


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

    def attempts(self) -> list[tuple[dict[str, Any], bool]]:
        """Return the records of points that have rows, and whether the point was measured again after that."""
        found = [record for record in self.points if record["rows"]]
        last = {record["point"]: record.get("attempt", 0) for record in found}
        return [(record, record.get("attempt", 0) < last[record["point"]]) for record in found]

    def best_attempts(self, enough: int = LARGEST) -> list[dict[str, Any]]:
        """Return one record of each point that has rows, in order of first attempts: of several the one with most
        repetitions that were not contended, and then the steadiest. More than `enough` count no more."""
        best: dict[str, tuple[tuple[int, float], dict[str, Any]]] = {}
        for record in self.points:
            if rows := record["rows"]:
                left = min(sum(not contended(row) for row in rows), enough)
                merit = left, -spread(row["time_s"] for row in steady(rows)).cv
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
