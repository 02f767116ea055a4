"""Hardware model `layerwise`: a step is the sum of its operators, each looked up in a measured table.

The tables are those of layer-wise vLLM profiles (a folder with `dense.csv`, `per_sequence.csv`, `attention.csv` and,
optionally, `skew.csv`; microseconds of one layer):

    step = embedding(T) + layers * (2 layernorm + qkv + rotary + attention + o + gate_up + act + down)(T)
           + final norm + lm_head(S) + sampler(S) + overhead

T: tokens of the step, S: sequences that emit a token. Tables are interpolated linearly (attention in four dimensions:
new tokens and past of the prefill, number and context of the decodes) and extended along their last line.

Several prefills in one step look up attention once, at their total of new tokens and at the past that gives the same
number of attention pairs; where that past would be negative (short prompts side by side) the entry without past is
scaled by the share of pairs. Decodes of unequal context take t(mean) + alpha * (t(longest) - t(mean)), with alpha per
(new prefill tokens, number of decodes) fitted to `skew.csv` by relative least squares.

`overhead` is the engine's own time per step. Under asynchronous scheduling the engine prepares the next step while the
device computes this one, and a step takes the longer of the two (`asynchronous: true`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field

from hermes.config import ConfigModel, Duration
from hermes.errors import InputError, inside
from hermes.hardware.base import HARDWARE, FloatArray, IntArray, StepStats
from hermes.hardware.models import load_model
from hermes.hardware.ranges import steps_outside
from hermes.units import NS_PER_S

__all__ = ["Layerwise", "LayerwiseModel", "OperatorTables", "load_operator_tables"]

ONCE, PER_LAYER = ("embedding", "final_layernorm"), {
    "layernorm": 2, "qkv_proj": 1, "rotary_emb": 1, "o_proj": 1, "gate_up_proj": 1, "act_fn": 1, "down_proj": 1,
}
PER_SEQUENCE = ("lm_head", "sampler")
AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
US_PER_S = 1e6


class Attention(NamedTuple):
    """Attention of one layer in seconds on the product of four axes (`AXES`); `seconds` has their shape."""

    axes: tuple[FloatArray, FloatArray, FloatArray, FloatArray]
    seconds: FloatArray


class OperatorTables(NamedTuple):
    """The tables of one profile, in seconds."""

    dense: dict[str, tuple[FloatArray, FloatArray]]
    """Operator -> (tokens, seconds)."""
    per_sequence: dict[str, tuple[FloatArray, FloatArray]]
    """Operator -> (sequences, seconds)."""
    attention: Attention
    skew: tuple[FloatArray, FloatArray, FloatArray] | None
    """(prefill tokens, decodes, alpha of shape (prefill tokens, decodes)); None without `skew.csv`."""


def _read(folder: Path, name: str, columns: Sequence[str]) -> pd.DataFrame:
    path = folder / name
    try:
        frame = pd.read_csv(path)
    except FileNotFoundError:
        raise InputError(f"a file {name} in the folder of the profile", file=str(folder)) from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"a CSV file ({str(error).splitlines()[0]})", file=str(path)) from None
    missing = [column for column in columns if column not in frame]
    if missing:
        raise InputError(f"the columns {', '.join(columns)}", f"no {', '.join(missing)}", file=str(path))
    numbers = [column for column in columns if column != "layer"]
    for column in numbers:
        values = pd.to_numeric(frame[column], errors="coerce")
        bad = ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise InputError("a number of at least 0", frame[column][row], file=str(path), line=row + 2, field=column)
        frame[column] = values
    return frame


def _curves(
    frame: pd.DataFrame, x: str, operators: Sequence[str], path: Path
) -> dict[str, tuple[FloatArray, FloatArray]]:
    out = {}
    for name in operators:
        part = frame[frame["layer"] == name].groupby(x)["time_us"].mean()
        if len(part) < 2:
            raise InputError(f"at least two rows of the operator {name}", len(part), file=str(path), field="layer")
        out[name] = (part.index.to_numpy(np.float64), part.to_numpy(np.float64) / US_PER_S)
    return out


def _fill_along(axis_values: FloatArray, values: FloatArray, axis: int, extend: bool = False) -> FloatArray:
    """Fill NaN between measured points of a line along `axis`, by linear interpolation; with `extend` those beyond the
    last measured point too, along the last line. Other NaN stay."""
    moved = np.moveaxis(values.copy(), axis, -1)
    lines = moved.reshape(-1, moved.shape[-1])
    for line in lines:
        known = ~np.isnan(line)
        if known.sum() >= 2 and not known.all():
            at = axis_values[known]
            gaps = ~known & (axis_values > at[0]) & (extend | (axis_values < at[-1]))
            line[gaps] = _line(at, line[known], axis_values[gaps])
    return np.moveaxis(lines.reshape(moved.shape), -1, axis)


def _attention(frame: pd.DataFrame, path: Path) -> Attention:
    """The attention table on the full product of its axes.

    Measured grids are not always products (two grids laid over each other): holes are filled along the context, past,
    chunk and decode axes, in this order; the most decodes do not fit beside a prefill and are extended from fewer.
    Without prefill tokens the past, without decodes the context means nothing.
    """
    axes: list[FloatArray] = [np.unique(frame[name].to_numpy(np.float64)) for name in AXES]
    for name, values in zip(AXES, axes, strict=True):
        if len(values) < 2:
            raise InputError("at least two values", len(values), file=str(path), field=name)
    cube = np.full([len(axis) for axis in axes], np.nan)
    index = tuple(np.searchsorted(axis, frame[name].to_numpy()) for name, axis in zip(AXES, axes, strict=True))
    cube[index] = frame["time_us"].to_numpy(np.float64) / US_PER_S
    if axes[0][0] == 0:
        cube[0] = cube[0, :1]
    if axes[2][0] == 0:
        cube[:, :, 0] = cube[:, :, 0, :1]
        cube[0, :, 0] = 0.0
    if axes[3][0] == 0:  # decodes always have a context: the first measured one stands for none
        cube[:, :, 1:, 0] = np.where(np.isnan(cube[:, :, 1:, 0]), cube[:, :, 1:, 1], cube[:, :, 1:, 0])
    for axis in (3, 1, 0, 2):
        cube = _fill_along(axes[axis], cube, axis, extend=axis == 2)
    if np.isnan(cube).any():
        where = [float(axis[i]) for axis, i in zip(axes, np.argwhere(np.isnan(cube))[0], strict=True)]
        raise InputError(f"entries around {dict(zip(AXES, where, strict=True))}", "none", file=str(path))
    return Attention((axes[0], axes[1], axes[2], axes[3]), cube)


def _skew(frame: pd.DataFrame) -> tuple[FloatArray, FloatArray, FloatArray]:
    """alpha per (prefill tokens, decodes): least squares of relative excess over relative reach."""
    excess = ((frame["t_skew_us"] - frame["t_mean_us"]) / frame["t_mean_us"]).to_numpy(np.float64)
    reach = ((frame["t_max_us"] - frame["t_mean_us"]) / frame["t_mean_us"]).to_numpy(np.float64)
    chunk, decodes = (frame[name].to_numpy(np.float64) for name in ("pc", "n"))
    rows, columns = np.unique(chunk), np.unique(decodes)
    alpha = np.full((len(rows), len(columns)), np.nan)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            here = (chunk == row) & (decodes == column)
            weight = float((reach[here] ** 2).sum())
            if weight > 0:
                # a longer sequence among equals never makes a step shorter
                alpha[i, j] = max(0.0, float((excess[here] * reach[here]).sum()) / weight)
    for i in range(len(rows)):  # beyond the measured numbers of decodes: the nearest measured
        known = ~np.isnan(alpha[i])
        alpha[i] = np.interp(columns, columns[known], alpha[i, known]) if known.any() else 0.0
    return rows, columns, alpha


def load_operator_tables(folder: Path) -> OperatorTables:
    """The tables of a layer-wise profile. Raises `InputError` naming file, line and column."""
    dense = _read(folder, "dense.csv", ("layer", "tokens", "time_us"))
    sequences = _read(folder, "per_sequence.csv", ("layer", "sequences", "time_us"))
    attention = _read(folder, "attention.csv", (*AXES, "time_us"))
    skew = None
    if (folder / "skew.csv").exists():
        columns = ("pc", "n", "t_mean_us", "t_max_us", "t_skew_us")
        skew = _skew(_read(folder, "skew.csv", columns))
    return OperatorTables(
        _curves(dense, "tokens", (*ONCE, *PER_LAYER), folder / "dense.csv"),
        _curves(sequences, "sequences", PER_SEQUENCE, folder / "per_sequence.csv"),
        _attention(attention, folder / "attention.csv"), skew,
    )


def _line(xs: FloatArray, ys: FloatArray, x: FloatArray) -> FloatArray:
    """Piecewise linear through (xs, ys), extended along the first and last piece; elementwise in x."""
    i = np.clip(np.searchsorted(xs, x, side="right") - 1, 0, len(xs) - 2)
    return np.asarray(ys[i] + (ys[i + 1] - ys[i]) / (xs[i + 1] - xs[i]) * (x - xs[i]))


def _bracket(xs: FloatArray, x: float) -> tuple[int, float]:
    """Left neighbour of x among xs and the weight of the right one; beyond the ends the weight leaves [0, 1]."""
    i = min(max(int(np.searchsorted(xs, x, side="right")) - 1, 0), len(xs) - 2)
    return i, float((x - xs[i]) / (xs[i + 1] - xs[i]))


class LayerwiseModel:
    """Operator tables composed for the kernel. All answers are in nanoseconds."""

    def __init__(
        self, tables: OperatorTables, num_layers: int, *, skewed: bool = True, overhead_s: float = 0.0,
        asynchronous: bool = True, scale: float = 1.0, name: str = "layerwise",
    ) -> None:
        self.tables, self.num_layers, self.name = tables, num_layers, name
        self.description = f"layer-wise tables {name}, {num_layers} layers"
        self.skew = tables.skew if skewed else None
        self.overhead_ns = overhead_s * NS_PER_S * scale
        self.asynchronous = asynchronous
        self._scale = scale * NS_PER_S
        # all operators on T tokens at once: their tables have the union of their points
        dense = [(tables.dense[name], 1) for name in ONCE]
        dense += [(tables.dense[name], count * num_layers) for name, count in PER_LAYER.items()]
        self._dense = self._sum(dense)
        self._per_sequence = self._sum([(curve, 1) for curve in tables.per_sequence.values()])
        self._attention = tables.attention.seconds * (self._scale * num_layers)

    def _sum(self, curves: Sequence[tuple[tuple[FloatArray, FloatArray], int]]) -> tuple[FloatArray, FloatArray]:
        xs = np.unique(np.concatenate([x for (x, _), _ in curves]))
        total = sum((_line(x, y, xs) * (count * self._scale) for (x, y), count in curves), np.zeros(len(xs)))
        return xs, total

    def _past(self, stats: StepStats) -> tuple[float, float]:
        """Past tokens that give the step's attention pairs to one prefill of all its tokens, and the factor of its
        attention time where even no past gives more."""
        tokens = stats.prefill_tokens
        alone = tokens * (tokens + 1) / 2
        if stats.prefill_attn >= alone:
            return (stats.prefill_attn - alone) / tokens, 1.0
        return 0.0, stats.prefill_attn / alone

    def _over_context(self, stats: StepStats) -> tuple[FloatArray, float]:
        """Attention of all layers over the table's context axis, shape (contexts,), and its factor."""
        past, factor = self._past(stats) if stats.prefill_tokens else (0.0, 1.0)
        corners = [(0, 0, 0, 1.0)]
        values = (stats.prefill_tokens, past, stats.decode_seqs)
        for axis, (xs, x) in enumerate(zip(self.tables.attention.axes, values, strict=False)):
            i, weight = _bracket(xs, x)
            split = []
            for corner in corners:
                for step, part in ((0, 1.0 - weight), (1, weight)):
                    if part:
                        index = list(corner[:3])
                        index[axis] = i + step
                        split.append((index[0], index[1], index[2], corner[3] * part))
            corners = split
        total = np.zeros(self._attention.shape[3])
        for a, b, c, weight in corners:
            total = total + self._attention[a, b, c] * weight
        return total, factor

    def _alpha(self, stats: StepStats) -> float:
        if self.skew is None or stats.decode_seqs < 2:
            return 0.0
        rows, columns, alpha = self.skew
        i, u = _bracket(rows, min(stats.prefill_tokens, rows[-1]))
        j, v = _bracket(np.log2(columns), float(np.log2(np.clip(stats.decode_seqs, columns[0], columns[-1]))))
        low = alpha[i, j] * (1 - v) + alpha[i, j + 1] * v
        high = alpha[i + 1, j] * (1 - v) + alpha[i + 1, j + 1] * v
        return float(low * (1 - u) + high * u)

    def attention_ns(self, stats: StepStats, num_steps: int = 1) -> FloatArray:
        """Attention of all layers in each step of a run, shape (num_steps,)."""
        curve, factor = self._over_context(stats)
        contexts = self.tables.attention.axes[3]
        if not stats.decode_seqs:
            return np.full(num_steps, curve[0] * factor)
        step = np.arange(num_steps, dtype=np.float64)
        mean = (step * stats.decode_seqs + stats.decode_ctx) / stats.decode_seqs
        ns = _line(contexts, curve, mean)
        alpha = self._alpha(stats)
        if alpha:
            ns = ns + alpha * (_line(contexts, curve, step + stats.decode_ctx_max) - ns)
        return np.asarray(ns * factor if factor != 1.0 else ns)

    def operators_ns(self, stats: StepStats) -> dict[str, float]:
        """Nanoseconds by operator, all layers together; for reports."""
        tokens = np.array([float(stats.prefill_tokens + stats.decode_seqs)])
        out = {name: float(_line(*self.tables.dense[name], tokens)[0]) * self._scale for name in ONCE}
        for name, count in PER_LAYER.items():
            out[name] = float(_line(*self.tables.dense[name], tokens)[0]) * self._scale * count * self.num_layers
        out["attention"] = float(self.attention_ns(stats)[0])
        for name, curve in self.tables.per_sequence.items():
            seqs = np.array([float(stats.sampled)])
            out[name] = float(_line(*curve, seqs)[0]) * self._scale if stats.sampled else 0.0
        return out

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        """Durations of `num_steps` steps in nanoseconds, int64, shape (num_steps,)."""
        fixed = _line(*self._dense, np.array([float(stats.prefill_tokens + stats.decode_seqs)]))
        if stats.sampled:
            fixed = fixed + _line(*self._per_sequence, np.array([float(stats.sampled)]))
        ns = self.attention_ns(stats, num_steps) + fixed
        ns = np.maximum(ns, self.overhead_ns) if self.asynchronous else ns + self.overhead_ns
        return np.maximum(np.rint(ns), 1.0).astype(np.int64)

    def step_ns(self, stats: StepStats) -> int:
        """Duration of one step in nanoseconds."""
        return int(self.run_ns(stats, 1)[0])

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        """How many steps of each run left the tables, int64, shape (runs,)."""
        axes = self.tables.attention.axes
        tokens = next(iter(self.tables.dense.values()))[0][-1]
        seqs = next(iter(self.tables.per_sequence.values()))[0][-1]
        ranges = {
            "tokens": (0.0, float(tokens)), "prefill_tokens": (0.0, float(axes[0][-1])), "sampled": (0.0, float(seqs)),
            "decode_seqs": (0.0, float(axes[2][-1])), "decode_ctx_max": (0.0, float(axes[3][-1])),
        }
        return steps_outside(ranges, columns, num_steps)


@HARDWARE.register("layerwise")
class Layerwise(ConfigModel):
    """Sums of per-operator tables measured layer by layer."""

    kind: Literal["layerwise"] = "layerwise"
    path: Annotated[str, Field(min_length=1, max_length=4096)]
    """Folder of the tables (dense.csv, per_sequence.csv, attention.csv, skew.csv), relative to the scenario."""
    model: Annotated[str, Field(min_length=1, max_length=4096)]
    """The model the tables were measured for: its number of layers multiplies them."""
    skewed: bool = True
    """Whether decodes of unequal context cost more than equal ones (where the folder has skew.csv)."""
    overhead: Duration = 0.0
    """The engine's own time per step."""
    asynchronous: bool = True
    """Whether that time hides behind the device's (asynchronous scheduling); false adds it."""
    scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Multiplies every time."""

    def build(self, base_dir: Path | None = None) -> LayerwiseModel:
        """The model; the folder is relative to `base_dir`. Raises `InputError` for bad tables."""
        with inside("model"):
            layers = load_model(self.model, base_dir).num_layers
        folder = (base_dir or Path()) / self.path
        with inside("path"):
            if not folder.is_dir():
                raise InputError("a folder of operator tables", self.path)
            tables = load_operator_tables(folder)
        return LayerwiseModel(
            tables, layers, skewed=self.skewed, overhead_s=self.overhead, asynchronous=self.asynchronous,
            scale=self.scale, name=folder.resolve().parent.name if folder.name == "profile" else folder.name,
        )
