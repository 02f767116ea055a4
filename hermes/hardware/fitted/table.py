"""Hardware model `table`: step times, interpolated linearly in one feature per phase.

All-prompt steps take the prefill table, all-decode steps the decode table. Steps with both take `mixed_factor` times
the prefill table at all tokens of the step (or a mixed table of their own).

More work is never cheaper (`monotone`): falls between the points are smoothed (`rising` in
`hermes.hardware.fitted.operator_curves`), the line past the last point has at least the slope of the upper half of the
table, and a step with both phases takes at least as long as its prefills or its decodes alone. With `monotone: false`
and a table of medians of splitwise-sim's measurements the times are those of splitwise-sim, which takes the points as
they are and extends the first and the last line.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from hermes.arrays import FloatArray, IntArray
from hermes.config import ConfigModel, Name
from hermes.config.validation import load
from hermes.errors import InputError, inside
from hermes.hardware.base import StepStats
from hermes.hardware.config import HardwareConfig
from hermes.hardware.descriptions.files import find
from hermes.hardware.fitted.operator_curves import rising
from hermes.hardware.fitted.profile import Provenance
from hermes.hardware.fitted.ranges import steps_outside
from hermes.hardware.fitted.terms import VARYING
from hermes.hardware.info import HardwareInfo, measured_info
from hermes.units import NS_PER_S

__all__ = ["Table", "TableData", "TableModel", "Tables", "load_table"]

X = Literal[
    "prefill_seqs", "prefill_tokens", "prefill_past", "prefill_attn", "decode_seqs", "decode_ctx", "decode_ctx_max",
    "tokens",
]


class TableData(ConfigModel):
    """Step times as a function of one feature of the batch."""

    x: X
    """The feature; `tokens` is prefill_tokens + decode_seqs."""
    points: Annotated[
        list[Annotated[list[float], Field(min_length=2, max_length=2)]], Field(min_length=2, max_length=100_000)]
    """[x, seconds], x rising."""

    @model_validator(mode="after")
    def _rising(self) -> TableData:
        for index, ((x, _), (following, _)) in enumerate(pairwise(self.points)):
            if not x < following:
                raise InputError(f"x above {x:g}", following, field=f"points.{index + 1}")
        for index, (x, seconds) in enumerate(self.points):
            if x < 0 or not 0 < seconds <= 1e6:
                raise InputError("x >= 0 and 0 < seconds <= 1e6", [x, seconds], field=f"points.{index}")
        return self


class Tables(ConfigModel):
    """A file of interpolation tables, format `hermes-table/1`."""

    format: Literal["hermes-table/1"]
    name: Name
    provenance: Provenance
    prefill: TableData
    decode: TableData
    mixed: TableData | None = None
    """Steps with both. Left out, `mixed_factor` times the prefill table at all tokens of the step."""


def load_table(name_or_path: str | Path, base_dir: Path | None = None) -> Tables:
    """Load a shipped table by name, or a file by path relative to `base_dir`. Raises `InputError`."""
    path = find(name_or_path, base_dir, "tables", "an interpolation table")
    return load(Tables, path)


class _Curve:
    """One table in nanoseconds, as lists for a step and as arrays for a run, with the same numbers."""

    def __init__(
        self, data: TableData, factor: float, extrapolate: bool, monotone: bool, x: str | None = None
    ) -> None:
        self.feature = x or data.x
        self.range = [data.points[0][0], data.points[-1][0]]
        self.extrapolate = extrapolate
        self.xs = [point[0] for point in data.points]
        self.ys = [point[1] * factor for point in data.points]
        if monotone:
            self.ys = rising(np.array(self.ys)).tolist()
        self.slopes = [(d - b) / (c - a) for (a, b), (c, d) in pairwise(zip(self.xs, self.ys, strict=True))]
        if monotone:  # one more piece, past the last point
            half = max(0, min(bisect_right(self.xs, self.xs[-1] / 2), len(self.xs) - 1) - 1)
            upper = (self.ys[-1] - self.ys[half]) / (self.xs[-1] - self.xs[half])
            self.slopes.append(max(self.slopes[-1], upper))
        # half of the shortest entry: an extended line below it is not plausible
        self.floor = max(1.0, float(round(min(self.ys) / 2)))
        self._xs, self._ys, self._slopes = np.array(self.xs), np.array(self.ys), np.array(self.slopes)

    def step(self, stats: StepStats) -> int:
        """Return the nanoseconds of one step."""
        return self.at(_feature(stats, self.feature))

    def run(self, stats: StepStats, step: FloatArray) -> IntArray:
        """Return the nanoseconds of the steps of a run with indices `step`; bit for bit equal to `step` for each."""
        return self.along(_along_run(stats, self.feature, step))

    def at(self, x: float) -> int:
        """Return nanoseconds at one x."""
        if not self.extrapolate:
            x = min(max(x, self.range[0]), self.range[1])
        i = min(max(bisect_right(self.xs, x) - 1, 0), len(self.slopes) - 1)
        return round(max(self.ys[i] + self.slopes[i] * (x - self.xs[i]), self.floor))

    def along(self, x: FloatArray) -> IntArray:
        """Return nanoseconds at many x, shape of x; bit for bit equal to `at` for each."""
        if not self.extrapolate:
            x = np.clip(x, self.range[0], self.range[1])
        i = np.clip(np.searchsorted(self._xs, x, side="right") - 1, 0, len(self.slopes) - 1)
        ns: FloatArray = self._ys[i] + self._slopes[i] * (x - self._xs[i])
        return np.rint(np.maximum(ns, self.floor)).astype(np.int64)


class TableModel:
    """Tables prepared for the kernel."""

    def __init__(
        self, tables: Tables, scale: float = 1.0, mixed_factor: float = 1.1, extrapolate: bool = True,
        monotone: bool = True,
    ) -> None:
        self.tables = tables
        self.name = tables.name
        source = tables.provenance
        self.description = f"table {tables.name}: {source.model}, {source.hardware}, TP{source.tensor_parallel}"
        self.notes = [source.contains()]
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
        """Lower bounds of a step with both phases: its prefills alone, its decodes alone."""
        if monotone:
            self.bounds = [
                _Curve(prefill, factor, extrapolate, monotone, "prefill_tokens" if prefill.x == "tokens" else None),
                _Curve(decode, factor, extrapolate, monotone, "decode_seqs" if decode.x == "tokens" else None),
            ]

    @property
    def info(self) -> HardwareInfo:
        """Properties of the tables' measurement."""
        return measured_info(self.name, "table", self.tables.provenance)

    def _curves(self, stats: StepStats) -> list[_Curve]:
        """Return the curves of a step, which takes the longest of their times."""
        if not stats.decode_seqs:
            return [self.prefill]
        return [self.mixed, *self.bounds] if stats.prefill_tokens else [self.decode]

    def step_ns(self, stats: StepStats) -> int:
        """Return the duration of one step in nanoseconds."""
        return max(curve.step(stats) for curve in self._curves(stats))

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        """Return the durations of `num_steps` steps in nanoseconds, int64, shape (num_steps,)."""
        curves = self._curves(stats)
        if not stats.decode_seqs or not any(curve.feature in VARYING for curve in curves):
            return np.full(num_steps, self.step_ns(stats), dtype=np.int64)
        step = np.arange(num_steps, dtype=np.float64)
        ns = np.zeros(num_steps, dtype=np.int64)
        for curve in curves:
            ns = np.maximum(ns, curve.run(stats, step))
        return ns

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        """Return how many steps of each run left the table's x, int64, shape (runs,)."""
        decodes, prefills = columns["decode_seqs"] > 0, columns["prefill_tokens"] > 0
        out = np.zeros(len(num_steps), dtype=np.int64)
        for rows, curve in (
            (~decodes, self.prefill), (decodes & ~prefills, self.decode), (decodes & prefills, self.mixed),
        ):
            part = {name: values[rows] for name, values in columns.items()}
            out[rows] = steps_outside({curve.feature: curve.range}, part, num_steps[rows])
        return out


def _feature(stats: StepStats, name: str) -> int:
    """Return a feature of the batch by its name in a table."""
    if name == "tokens":
        return stats.prefill_tokens + stats.decode_seqs
    return int(getattr(stats, name))


def _along_run(stats: StepStats, name: str, step: FloatArray) -> FloatArray:
    """Return a feature in each step of a run, shape of `step`."""
    slope = {"decode_ctx": stats.decode_seqs, "decode_ctx_max": 1}.get(name, 0)
    return _feature(stats, name) + step * slope


class Table(HardwareConfig):
    """Lookup in measured tables of whole steps, with linear interpolation."""

    kind: Literal["table"] = "table"
    profile: Annotated[str, Field(min_length=1, max_length=4096)]
    """Name of a shipped table (`hw_profiles/tables/NAME.yaml`) or the path of a table file."""
    mixed_factor: Annotated[float, Field(gt=0, le=1e3)] = 1.1
    """Steps with prefill and decode take this many times the prefill table. Unused if the file has a mixed table."""
    extrapolate: bool = True
    """Extend the first and last line past the table; false keeps the first and last value."""
    scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Factor of every step time."""
    monotone: bool = True
    """Make more work never cheaper, even where measured times fall; false takes the points as they are, as
    splitwise-sim does."""

    def build(self, base_dir: Path | None = None) -> TableModel:
        """Build the model; a file path is relative to `base_dir`. Raises `InputError` for a bad file."""
        with inside("profile"):
            table = load_table(self.profile, base_dir)
        return TableModel(table, self.scale, self.mixed_factor, self.extrapolate, self.monotone)
