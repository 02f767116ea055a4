"""Hardware model `table`: measured step times, interpolated linearly in one feature per phase.

All-prompt steps take the prefill table, all-decode steps the decode table, and steps with both `mixed_factor` times the
prefill table at all tokens of the step (or a mixed table of their own).

More work is never cheaper (`monotone`): falls between the points are smoothed (`rising` in
`hermes.hardware.operator_curves`), past the last point the line has at least the slope of the upper half of the table,
and a step with both phases takes at least as long as its prefills or its decodes alone. With `monotone: false` and a
table made from medians of splitwise-sim's measurements the answers are those of splitwise-sim, which take the points as
they are and extend the first and the last line.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, field_validator

from hermes.config import ConfigModel
from hermes.config.validation import load
from hermes.errors import InputError, inside
from hermes.hardware.base import FloatArray, IntArray, StepStats
from hermes.hardware.facts import HardwareFacts, measured_facts
from hermes.hardware.files import find
from hermes.hardware.operator_curves import rising
from hermes.hardware.profile import Provenance
from hermes.hardware.ranges import steps_outside
from hermes.hardware.terms import VARYING
from hermes.units import NS_PER_S

__all__ = ["Table", "TableData", "TableModel", "Tables", "load_table"]

X = Literal[
    "prefill_seqs", "prefill_tokens", "prefill_past", "prefill_attn", "decode_seqs", "decode_ctx", "decode_ctx_max",
    "tokens",
]


class TableData(ConfigModel):
    """Step times over one feature of the batch."""

    x: X
    """The feature; `tokens` is prefill_tokens + decode_seqs."""
    points: Annotated[list[Annotated[list[float], Field(min_length=2, max_length=2)]], Field(min_length=2)]
    """[x, seconds], x rising."""

    @field_validator("points")
    @classmethod
    def _rising(cls, points: list[list[float]]) -> list[list[float]]:
        for index, ((x, _), (following, _)) in enumerate(pairwise(points)):
            if not x < following:
                raise InputError(f"x above {x:g}", following, field=f"{index + 1}")
        for index, (x, seconds) in enumerate(points):
            if x < 0 or not 0 < seconds <= 1e6:
                raise InputError("x >= 0 and 0 < seconds <= 1e6", [x, seconds], field=f"{index}")
        return points


class Tables(ConfigModel):
    """A file of interpolation tables, format `hermes-table/1`."""

    format: Literal["hermes-table/1"]
    name: Annotated[str, Field(min_length=1, max_length=200)]
    provenance: Provenance
    prefill: TableData
    decode: TableData
    mixed: TableData | None = None
    """Steps with both; without it, `mixed_factor` times the prefill table at all tokens of the step."""


def load_table(name_or_path: str | Path, base_dir: Path | None = None) -> Tables:
    """A shipped table by name, or a file by path relative to `base_dir`. Raises `InputError`."""
    path = find(name_or_path, base_dir, "tables", "an interpolation table")
    return load(Tables, path)


class _Curve:
    """One table in nanoseconds, as lists for a step and as arrays for a run; the same numbers in both."""

    def __init__(
        self, data: TableData, factor: float, extrapolate: bool, monotone: bool, x: str | None = None
    ) -> None:
        self.x = x or data.x
        self.range = [data.points[0][0], data.points[-1][0]]
        self.extrapolate = extrapolate
        self.xs = [point[0] for point in data.points]
        self.ys = [point[1] * factor for point in data.points]
        if monotone:
            self.ys = rising(np.array(self.ys)).tolist()
        self.slopes = [(d - b) / (c - a) for (a, b), (c, d) in pairwise(zip(self.xs, self.ys, strict=True))]
        if monotone:  # one more piece: past the last point
            half = max(0, min(bisect_right(self.xs, self.xs[-1] / 2), len(self.xs) - 1) - 1)
            upper = (self.ys[-1] - self.ys[half]) / (self.xs[-1] - self.xs[half])
            self.slopes.append(max(self.slopes[-1], upper))
        # half of the shortest entry: where an extended line falls below it, the line is not believed
        self.floor = max(1.0, float(round(min(self.ys) / 2)))
        self._xs, self._ys, self._slopes = np.array(self.xs), np.array(self.ys), np.array(self.slopes)

    def at(self, x: float) -> int:
        """Nanoseconds at one x."""
        if not self.extrapolate:
            x = min(max(x, self.range[0]), self.range[1])
        i = min(max(bisect_right(self.xs, x) - 1, 0), len(self.slopes) - 1)
        return round(max(self.ys[i] + self.slopes[i] * (x - self.xs[i]), self.floor))

    def along(self, x: FloatArray) -> IntArray:
        """Nanoseconds at many x, shape of x; bit for bit what `at` answers for each."""
        if not self.extrapolate:
            x = np.clip(x, self.range[0], self.range[1])
        i = np.clip(np.searchsorted(self._xs, x, side="right") - 1, 0, len(self.slopes) - 1)
        ns: FloatArray = self._ys[i] + self._slopes[i] * (x - self._xs[i])
        return np.rint(np.maximum(ns, self.floor)).astype(np.int64)


class TableModel:
    """Tables ready for the kernel."""

    def __init__(
        self, tables: Tables, scale: float = 1.0, mixed_factor: float = 1.1, extrapolate: bool = True,
        monotone: bool = True,
    ) -> None:
        self.tables = tables
        self.name = tables.name
        source = tables.provenance
        self.description = f"table {tables.name}: {source.model}, {source.hardware}, TP{source.tensor_parallel}"
        factor = scale * NS_PER_S
        prefill, decode = tables.prefill, tables.decode
        self.prefill = _Curve(prefill, factor, extrapolate, monotone)
        self.decode = _Curve(decode, factor, extrapolate, monotone)
        if tables.mixed is not None:
            self.mixed = _Curve(tables.mixed, factor, extrapolate, monotone)
        else:
            x = "tokens" if prefill.x == "prefill_tokens" else None
            self.mixed = _Curve(prefill, factor * mixed_factor, extrapolate, monotone, x)
        self.bounds: list[_Curve] = []
        """What a step with both phases never falls below: its prefills alone, its decodes alone."""
        if monotone:
            self.bounds = [
                _Curve(prefill, factor, extrapolate, monotone, "prefill_tokens" if prefill.x == "tokens" else None),
                _Curve(decode, factor, extrapolate, monotone, "decode_seqs" if decode.x == "tokens" else None),
            ]

    @property
    def facts(self) -> HardwareFacts:
        """What the tables were measured on."""
        return measured_facts(self.name, "table", self.tables.provenance)

    def _curves(self, stats: StepStats) -> list[_Curve]:
        """The step takes the longest of what these say."""
        if not stats.decode_seqs:
            return [self.prefill]
        return [self.mixed, *self.bounds] if stats.prefill_tokens else [self.decode]

    def step_ns(self, stats: StepStats) -> int:
        """Duration of one step in nanoseconds."""
        return max(curve.at(_feature(stats, curve.x)) for curve in self._curves(stats))

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        """Durations of `num_steps` steps in nanoseconds, int64, shape (num_steps,)."""
        curves = self._curves(stats)
        if not stats.decode_seqs or not any(curve.x in VARYING for curve in curves):
            return np.full(num_steps, self.step_ns(stats), dtype=np.int64)
        step = np.arange(num_steps, dtype=np.float64)
        ns = np.zeros(num_steps, dtype=np.int64)
        for curve in curves:
            slope = {"decode_ctx": stats.decode_seqs, "decode_ctx_max": 1}.get(curve.x, 0)
            ns = np.maximum(ns, curve.along(_feature(stats, curve.x) + step * slope))
        return ns

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        """How many steps of each run left the table's x, int64, shape (runs,)."""
        decodes, prefills = columns["decode_seqs"] > 0, columns["prefill_tokens"] > 0
        out = np.zeros(len(num_steps), dtype=np.int64)
        for rows, curve in (
            (~decodes, self.prefill), (decodes & ~prefills, self.decode), (decodes & prefills, self.mixed),
        ):
            part = {name: values[rows] for name, values in columns.items()}
            out[rows] = steps_outside({curve.x: curve.range}, part, num_steps[rows])
        return out


def _feature(stats: StepStats, name: str) -> int:
    """A feature of the batch by its name in a table."""
    if name == "tokens":
        return stats.prefill_tokens + stats.decode_seqs
    return int(getattr(stats, name))


class Table(ConfigModel):
    """Lookup in measured tables of whole steps, with linear interpolation."""

    kind: Literal["table"] = "table"
    profile: Annotated[str, Field(min_length=1, max_length=4096)]
    """Name of a shipped table (`hw_profiles/tables/NAME.yaml`) or the path of a table file."""
    mixed_factor: Annotated[float, Field(gt=0, le=1e3)] = 1.1
    """Steps with prefill and decode take this many times the prefill table; unused if the file has a mixed table."""
    extrapolate: bool = True
    """Extend the first and last line past the table; false holds the first and last value."""
    scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Multiplies every step time."""
    monotone: bool = True
    """More work is never cheaper, where measured times fall too; false takes the points as they are, as splitwise-sim
    does."""

    def build(self, base_dir: Path | None = None) -> TableModel:
        """The model; a file path is relative to `base_dir`. Raises `InputError` for a bad file."""
        with inside("profile"):
            table = load_table(self.profile, base_dir)
        return TableModel(table, self.scale, self.mixed_factor, self.extrapolate, self.monotone)
