"""Piecewise linear functions, and the grids that they are sampled on."""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np

from hermes.arrays import FloatArray
from hermes.hardware.composed.kernel_curves import tile_edges
from hermes.hardware.composed.term_sources import Times
from hermes.hardware.fitted.operator_curves import rising

__all__ = ["Curve", "Line", "evened", "interpolated", "listed", "row_grid", "spaced"]

RATIO = 1.2                 # between neighbouring points of the grids that curves are sampled on
FAR = 2.0**20


def spaced(last: float) -> FloatArray:
    """1, 2, 3, ... up to `last`, neighbours at most `RATIO` apart, whole numbers."""
    count = math.ceil(math.log(last) / math.log(RATIO)) + 1
    return np.unique(np.rint(np.geomspace(1.0, last, count)))


def evened(times: tuple[FloatArray, FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Points with falls of the times evened out."""
    return times[0], rising(times[1])


def row_grid(last: float) -> FloatArray:
    """The grid of `spaced`, with both sides of the edges of the tiles of matrix products."""
    return np.unique(np.concatenate([spaced(last), tile_edges()]))


Curve = tuple[list[float], list[float]]   # linear between points, in proportion beyond the last


def listed(times: Times) -> Curve:
    return times[0].tolist(), times[1].tolist()


def interpolated(xs: list[float], ys: list[float], x: float) -> float:
    """The value of a curve: that of `np.interp`, to the last bit, without the microseconds that it takes for one
    number."""
    if x > xs[-1]:
        return ys[-1] * x / xs[-1]
    i = bisect_right(xs, x) - 1
    if i < 0 or xs[i] == x:
        return ys[max(i, 0)]
    low, high, at = ys[i], ys[i + 1], xs[i]
    return (high - low) / (xs[i + 1] - at) * (x - at) + low


class Line:
    """A piecewise linear function, in proportion beyond its last point."""

    def __init__(self, xs: FloatArray, ys: FloatArray) -> None:
        """`xs` ascending, from at most the smallest argument."""
        xs, ys = np.append(xs, xs[-1] * FAR), np.append(ys, ys[-1] * FAR)
        self._lists = xs.tolist(), ys.tolist(), (np.diff(ys) / np.diff(xs)).tolist()
        self._last = len(xs) - 2

    def at(self, x: float) -> float:
        """The value at a number."""
        xs, ys, slopes = self._lists
        i = min(max(bisect_right(xs, x) - 1, 0), self._last)
        return float(ys[i] + slopes[i] * (x - xs[i]))
