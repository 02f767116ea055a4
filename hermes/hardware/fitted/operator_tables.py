"""Read and check per-operator tables of layer-wise vLLM profiles (microseconds in the files, seconds from here on)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hermes.arrays import BoolArray, FloatArray
from hermes.config.columns import Column
from hermes.config.tables import csv_table
from hermes.errors import InputError, Verbatim, suggest

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "AXES",
    "ONCE",
    "PER_LAYER",
    "PER_SEQUENCE",
    "WHERE_THERE",
    "Attention",
    "OperatorTables",
    "Skew",
    "line",
    "load_operator_tables",
]

ONCE, PER_LAYER = ("embedding", "final_layernorm"), {
    "layernorm": 2, "qkv_proj": 1, "rotary_emb": 1, "o_proj": 1, "gate_up_proj": 1, "act_fn": 1, "down_proj": 1,
}
WHERE_THERE = {"qk_norm": 1}
"""Operators of some models: they count, once a layer, where `dense.csv` has them."""
PER_SEQUENCE = ("lm_head", "sampler")
AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
US_PER_S = 1e6


def line(xs: FloatArray, ys: FloatArray, x: FloatArray) -> FloatArray:
    """Interpolate linearly through (xs, ys), extended along the first and last piece; elementwise in x.

    `ys` may have several lines, shape (..., points).
    """
    i = np.clip(np.searchsorted(xs, x, side="right") - 1, 0, len(xs) - 2)
    return np.asarray(ys[..., i] + (ys[..., i + 1] - ys[..., i]) / (xs[i + 1] - xs[i]) * (x - xs[i]))


class Attention(NamedTuple):
    """Attention of one layer in seconds on the product of four axes (`AXES`); `seconds` has their shape."""

    axes: tuple[FloatArray, FloatArray, FloatArray, FloatArray]
    seconds: FloatArray


class Skew(NamedTuple):
    """Extra time of unequal decode contexts; see `hermes.hardware.fitted.layerwise`."""

    single: float
    prefill_tokens: FloatArray
    decode_seqs: FloatArray
    by_batch: FloatArray
    """alpha, shape (prefill_tokens, decode_seqs)."""


class OperatorTables(NamedTuple):
    """The tables of one profile, in seconds."""

    dense: dict[str, tuple[FloatArray, FloatArray]]
    """Operator -> (tokens, seconds)."""
    per_sequence: dict[str, tuple[FloatArray, FloatArray]]
    """Operator -> (sequences, seconds)."""
    attention: Attention
    skew: Skew | None
    """None without `skew.csv`."""


def _read(folder: Path, name: str, columns: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    if not (folder / name).exists():
        raise InputError(f"a file {name} in the folder of the profile", file=str(folder))
    table = csv_table(folder / name)
    table.need(columns)
    return pd.DataFrame({column: table.typed(Column(column, "text") if column == "layer" else Column(column, low=0))
                         for column in columns})


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
    """Fill NaN between measured points of a line along `axis`, by linear interpolation; with `extend` also beyond the
    last measured point, along the last line. Other NaN stay."""
    moved = np.moveaxis(values.copy(), axis, -1)
    lines = moved.reshape(-1, moved.shape[-1])
    masks, which = np.unique(~np.isnan(lines), axis=0, return_inverse=True)
    for number, known in enumerate(masks):   # most lines were measured at the same points
        if known.sum() >= 2 and not known.all():
            at, rows = axis_values[known], np.flatnonzero(which.reshape(-1) == number)
            gaps = ~known & (axis_values > at[0]) & (extend | (axis_values < at[-1]))
            lines[np.ix_(rows, gaps)] = line(at, lines[np.ix_(rows, known)], axis_values[gaps])
    return np.moveaxis(lines.reshape(moved.shape), -1, axis)


def _attention(frame: pd.DataFrame, path: Path) -> Attention:
    """Return the attention table on the full product of its axes.

    Measured grids are not always products (two grids may overlap). Holes are filled along the context, past, chunk and
    decode axes, in this order. The largest numbers of decodes do not fit beside a prefill and are extrapolated from
    fewer. The past has no meaning without prefill tokens, nor the context without decodes.
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
    if axes[3][0] == 0:  # decodes always have a context: the first measured one replaces zero
        cube[:, :, 1:, 0] = np.where(np.isnan(cube[:, :, 1:, 0]), cube[:, :, 1:, 1], cube[:, :, 1:, 0])
    for axis in (3, 1, 0, 2):
        cube = _fill_along(axes[axis], cube, axis, extend=axis == 2)
    if np.isnan(cube).any():
        where = [float(axis[i]) for axis, i in zip(axes, np.argwhere(np.isnan(cube))[0], strict=True)]
        raise InputError(Verbatim(f"no entries around {dict(zip(AXES, where, strict=True))}; measure some"),
                         file=str(path))
    return Attention((axes[0], axes[1], axes[2], axes[3]), cube)


def _skew(frame: pd.DataFrame) -> Skew:
    """Fit relative excess over relative reach by least squares; never negative, because a longer sequence among equals
    never shortens a step."""
    excess = ((frame["t_skew_us"] - frame["t_mean_us"]) / frame["t_mean_us"]).to_numpy(np.float64)
    reach = ((frame["t_max_us"] - frame["t_mean_us"]) / frame["t_mean_us"]).to_numpy(np.float64)
    chunk, decodes = (frame[name].to_numpy(np.float64) for name in ("pc", "n"))

    def alpha(here: BoolArray) -> float:
        weight = float((reach[here] ** 2).sum())
        return max(0.0, float((excess[here] * reach[here]).sum()) / weight) if weight > 0 else math.nan

    rows, columns = np.unique(chunk), np.unique(decodes)
    by_batch = np.array([[alpha((chunk == row) & (decodes == column)) for column in columns] for row in rows])
    for row_alphas in by_batch:  # unmeasured numbers of decodes take the nearest measured one
        known = ~np.isnan(row_alphas)
        row_alphas[:] = np.interp(columns, columns[known], row_alphas[known]) if known.any() else 0.0
    single = alpha(np.ones(len(chunk), dtype=bool))
    return Skew(0.0 if math.isnan(single) else single, rows, columns, by_batch)


def _all_known(frame: pd.DataFrame, names: Sequence[str], path: Path) -> None:
    """Refuse an operator that nothing would add: a step without it is too short."""
    for row, name in enumerate(frame["layer"]):
        if name not in names:
            raise InputError(f"an operator among {', '.join(names)}", name, file=str(path), line=row + 2, field="layer",
                             suggestion=suggest(str(name), names))


def load_operator_tables(folder: Path) -> OperatorTables:
    """Load the tables of a layer-wise profile. Raises `InputError` that names file, line and column."""
    dense = _read(folder, "dense.csv", ("layer", "tokens", "time_us"))
    _all_known(dense, (*ONCE, *PER_LAYER, *WHERE_THERE), folder / "dense.csv")
    there = [name for name in WHERE_THERE if (dense["layer"] == name).any()]
    sequences = _read(folder, "per_sequence.csv", ("layer", "sequences", "time_us"))
    attention = _read(folder, "attention.csv", (*AXES, "time_us"))
    skew = None
    if (folder / "skew.csv").exists():
        columns = ("pc", "n", "t_mean_us", "t_max_us", "t_skew_us")
        skew = _skew(_read(folder, "skew.csv", columns))
    return OperatorTables(
        _curves(dense, "tokens", (*ONCE, *PER_LAYER, *there), folder / "dense.csv"),
        _curves(sequences, "sequences", PER_SEQUENCE, folder / "per_sequence.csv"),
        _attention(attention, folder / "attention.csv"), skew,
    )
