"""Monotone curves of operator tables, between and beyond their measured points.

Measured times fall in places, through noise and kernels that suit one size less than a larger one. Added work must not
make a step cheaper, so a rising table replaces the measured one (`rising`). It lies between the largest rising table
below the measured one and the smallest rising one above, at the height that keeps the sum of the measured times. Points
that no larger batch undercuts keep their time.

Beyond the last measured point an operator keeps its efficiency there, and its time grows with its work:

- Matrix products and element-wise operators have work in proportion to tokens: time = last time * tokens / last tokens.
  A roofline of that efficiency grows as fast if it is bound by arithmetic or by activations, and slower if it is bound
  by weights. The device's peak rates cancel out, so no device description is needed.
- Attention of decodes grows in proportion to their context, and to their number.
- Attention of a prefill grows in proportion to its past, and to its pairs of tokens (plus the masked half of the tiles
  on the diagonal, which make a prompt without past slower per pair) at the rate of the largest measured one.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hermes.arrays import FloatArray
from hermes.hardware.base import StepStats
from hermes.hardware.fitted.operator_tables import Attention, line

__all__ = ["AttentionCube", "Curve", "brackets", "rising"]

FAR = 2.0**20        # reach of the extended grid, as a multiple of the last measured point
MAX_CELLS = 2**18    # table entries per lookup


def rising(values: FloatArray) -> FloatArray:
    """Return a non-negative array that rises along all axes, with the sum of `values`, between the largest one below
    `values` and the smallest one above; equal to `values` where they rise."""
    values = np.maximum(values, 0.0)
    below, above = -np.flip(_rising_above(np.flip(-values))), _rising_above(values)
    between = float((above - below).sum())
    if between == 0.0:
        return values
    return np.asarray(below + (above - below) * (float((values - below).sum()) / between))


def _rising_above(values: FloatArray) -> FloatArray:
    """Return the smallest array above `values` that rises along all axes: no entry is below an earlier one."""
    for axis in range(values.ndim):
        values = np.maximum.accumulate(values, axis=axis)
    return values


class Curve:
    """Time of an operator as a function of its tokens (or sequences); never falls, never negative."""

    def __init__(self, xs: FloatArray, ys: FloatArray, stairs: bool) -> None:
        """stairs: Between two measured points take the time of the upper one instead of interpolating."""
        self.xs, self.ys, self.stairs = xs, rising(ys), stairs

    def at(self, x: float) -> float:
        """Return the time at `x`, in the unit of the table."""
        last = self.xs[-1]
        if x > last:
            return float(self.ys[-1] * (x / last))
        if self.stairs:
            return float(self.ys[np.searchsorted(self.xs, x)])
        return max(0.0, float(line(self.xs, self.ys, np.array([x]))[0]))


def brackets(xs: FloatArray, x: FloatArray) -> tuple[npt.NDArray[np.intp], FloatArray]:
    """Return the left neighbours of x in xs and the weights of the right ones (outside [0, 1] beyond the ends)."""
    i = np.clip(np.searchsorted(xs, x, side="right") - 1, 0, len(xs) - 2)
    return i, (x - xs[i]) / (xs[i + 1] - xs[i])


def _pairs(tokens: float) -> float:
    return tokens * (tokens + 1) / 2


class AttentionCube:
    """Attention of one layer (or of several, in the unit of the table) for any batch; never falls as a batch grows.

    A step's prefills are looked up as one prefill of `tokens` new tokens after `past` cached ones. Its decodes are
    looked up as `decode_seqs` sequences of the mean context, plus `alpha` times the difference to the longest.

    Both could make a larger batch cheaper: two new tokens beside a prefill with a long past halve the past per token,
    and a short decode beside a long one halves the mean context. A batch therefore takes at least as long as every
    part of it: its first t tokens with as many pairs as they may have, and m of its decodes with as much context as
    they may have. This does not affect a single prefill, nor decodes of equal context.
    """

    def __init__(self, attention: Attention, factor: float) -> None:
        chunks, pasts, decodes, contexts = attention.axes
        cube = rising(attention.seconds) * factor
        self.last_chunk, last_past = float(chunks[-1]), float(pasts[-1])
        work = self.last_chunk * last_past + _pairs(self.last_chunk)
        self.per_pair = float(cube[-1, -1, 0, 0]) / work
        masked = float(cube[-1, 0, 0, 0]) / self.per_pair - self.last_chunk * float(pasts[0]) - _pairs(self.last_chunk)
        self.masked_pairs = max(0.0, masked / self.last_chunk) if self.per_pair else 0.0
        none = np.zeros(1)
        without = cube[:, :, :1, -1] if decodes[0] == 0 else none
        cube, contexts = _extended(cube, contexts, 3, without)
        cube, decodes = _extended(cube, decodes, 2, cube[:, :, 0] if decodes[0] == 0 else none)
        cube, pasts = _extended(cube, pasts, 1, cube[:1, -1] if chunks[0] == 0 else none)
        self.chunks, self.pasts, self.decodes, self.contexts, self.cube = chunks, pasts, decodes, contexts, cube

    def times(self, stats: StepStats, num_steps: int, alpha: FloatArray | float) -> FloatArray:
        """Return the time in each step of a run, shape (num_steps,). alpha: For 1 to `stats.decode_seqs` decodes, or
        one number for all."""
        seqs = stats.decode_seqs
        if not seqs:
            return np.full(num_steps, self._plane(stats, slice(0, 1), slice(0, 1))[0, 0])
        step = np.arange(num_steps, dtype=np.float64)
        total, longest = stats.decode_ctx + step * seqs, stats.decode_ctx_max + step
        unequal = stats.decode_ctx < stats.decode_ctx_max * seqs
        # parts with fewer decodes than hold the whole context contain one another
        first = max(1, int(np.min(total // np.maximum(longest, 1.0)))) if unequal else seqs
        parts = np.arange(min(first, seqs), seqs + 1, dtype=np.float64)
        i, weight = brackets(self.decodes, parts)
        reach = np.array([total[0] / seqs, longest[-1] if unequal else total[-1] / seqs])
        low, high = brackets(self.contexts, reach)[0]
        columns = slice(int(low), int(high) + 2)
        plane = self._plane(stats, slice(int(i[0]), int(i[-1]) + 2), columns)
        i, contexts = i - i[0], self.contexts[columns]
        rows = plane[i] + (plane[i + 1] - plane[i]) * weight[:, None]
        if not unequal:
            return np.asarray(_along(contexts, rows, total / seqs)[0])
        share = np.broadcast_to(alpha, (seqs,))[seqs - len(parts):]
        size = max(1, MAX_CELLS // len(parts))
        cut = [_most(contexts, parts, rows, share, total[k:k + size], longest[k:k + size])
               for k in range(0, num_steps, size)]
        return cut[0] if len(cut) == 1 else np.concatenate(cut)

    def _plane(self, stats: StepStats, rows: slice, columns: slice) -> FloatArray:
        """Return the time beside the step's prefills on part of the axes `decodes` and `contexts`, (rows, columns)."""
        cube = self.cube[:, :, rows, columns]
        if not stats.prefill_tokens and self.chunks[0] == 0:
            return np.asarray(cube[0, 0])
        tokens, past = _prefills_of(stats)
        size = max(1, MAX_CELLS // cube[0, 0].size)
        out = np.zeros(cube.shape[2:])
        for k in range(0, len(tokens), size):
            i, u = brackets(self.chunks, np.minimum(tokens[k:k + size], self.last_chunk))
            j, v = brackets(self.pasts, past[k:k + size])
            u, v = u[:, None, None], v[:, None, None]
            low = cube[i, j] + (cube[i, j + 1] - cube[i, j]) * v
            high = cube[i + 1, j] + (cube[i + 1, j + 1] - cube[i + 1, j]) * v
            more = self._beyond(tokens[k:k + size], past[k:k + size])
            out = np.maximum(out, (low + (high - low) * u + more[:, None, None]).max(axis=0))
        return out

    def _beyond(self, tokens: FloatArray, past: FloatArray) -> FloatArray:
        """Return the time of a prefill's tokens beyond the longest measured one."""
        more = np.maximum(tokens - self.last_chunk, 0.0)
        pairs = more * (past + self.last_chunk + (more + 1) / 2)
        return np.asarray(self.per_pair * (pairs + self.masked_pairs * more))


def _prefills_of(stats: StepStats) -> tuple[FloatArray, FloatArray]:
    """Return single prefills (new tokens, past of each) that are parts of the step's; the longest represents all."""
    tokens, pairs, cached = stats.prefill_tokens, stats.prefill_attn, stats.prefill_past
    if not tokens:
        return np.zeros(1), np.zeros(1)
    if pairs >= tokens * cached + _pairs(tokens):     # usually a single prefill
        return np.array([float(tokens)]), np.array([max(0.0, (pairs - _pairs(tokens)) / tokens)])
    fresh = (math.sqrt(8.0 * pairs + 1) - 1) / 2      # tokens of one prompt without past that has as many pairs
    if not cached:
        return np.array([fresh]), np.zeros(1)
    # above this many tokens, the cached ones cannot be the past of all of them; smaller parts contain one another
    known = (math.sqrt((2.0 * cached + 1) ** 2 + 8.0 * pairs) - (2.0 * cached + 1)) / 2
    parts = np.arange(max(1, math.floor(known)), min(tokens, math.floor(fresh)) + 1, dtype=np.float64)
    if fresh < tokens:
        parts = np.append(parts, fresh)
    return parts, np.maximum(np.minimum(pairs / parts - (parts + 1) / 2, cached), 0.0)


def _most(contexts: FloatArray, parts: FloatArray, rows: FloatArray, share: FloatArray, total: FloatArray,
          longest: FloatArray) -> FloatArray:
    """Return the largest time among parts of a step's decodes, for each of some steps."""
    mean = np.minimum(total / parts[:, None], longest)
    ns = _along(contexts, rows, mean)
    if share.any():
        ns = ns + share[:, None] * (_along(contexts, rows, np.broadcast_to(longest, mean.shape)) - ns)
    whole = parts[:, None] >= total // np.maximum(longest, 1.0)
    return np.asarray(np.where(whole, ns, 0.0).max(axis=0))


def _extended(cube: FloatArray, axis: FloatArray, number: int, without: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the cube and its axis `number` with a far point: beyond the last measured point, the time above `without`
    (the step without this kind of work) grows in proportion."""
    last = np.take(cube, -1, axis=number)
    per_unit = _rising_above((last - without) / axis[-1])
    far = last + per_unit * (axis[-1] * (FAR - 1))
    return np.concatenate([cube, np.expand_dims(far, number)], axis=number), np.append(axis, axis[-1] * FAR)


def _along(xs: FloatArray, rows: FloatArray, x: FloatArray) -> FloatArray:
    """Interpolate each row, piecewise linear through xs, at its row of x; shape of x (one row may serve a vector)."""
    i, weight = brackets(xs, np.atleast_2d(x))
    r = np.arange(len(rows))[:, None]
    low = rows[r, i]
    return np.asarray(low + (rows[r, i + 1] - low) * weight)
