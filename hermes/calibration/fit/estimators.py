"""Weighted least squares without negative coefficients, on relative errors, and errors on held-out groups: every fit.

Without negative coefficients a step never gets cheaper by more work (`hermes.hardware.fitted.terms`). Residuals are
relative to the measured time if `relative` is set: otherwise the longest steps decide everything, and an unweighted fit
with a fine R^2 is several times worse by mean relative error. Huber's rule gives outliers (a step in which the machine
did other work) less weight, so that a few of them do not move the fit.

Errors (`hermes.calibration.comparison`) are those of held-out groups, never of single rows: `held_out` leaves out whole
configurations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls
from sklearn.model_selection import LeaveOneGroupOut

from hermes.arrays import FloatArray, IntArray

__all__ = ["HUBER", "held_out", "held_out_parts", "solve", "weighted_median"]

HUBER = 1.345
"""Residuals beyond this many standard deviations (estimated from their median) count linearly, not squared: 95%
efficient for normal errors."""
ROUNDS = 15   # of reweighting for Huber's loss


def solve(
    features: FloatArray, target: FloatArray, weights: FloatArray | None = None, *, relative: bool = True,
    huber: float | None = None, offset: float = 0.0,
) -> FloatArray:
    """Return the coefficients, none negative, shape (features,).

    Args:
        features: Shape (rows, features).
        target: Shape (rows,).
        weights: Of the squared errors, shape (rows,); None for equal ones.
        relative: Minimise errors relative to the target.
        huber: Deviations beyond which a residual counts linearly; None for least squares.
        offset: A part of the target that is known and not fitted.

    Raises `ValueError` for a target of 0 or less where errors are relative, and for values that are not finite.
    """
    weights = np.ones(len(target)) if weights is None else weights
    if relative:
        if (target <= 0).any():
            raise ValueError("relative errors need a target above 0")
        features, target = features / target[:, None], 1.0 - offset / target
    else:
        target = target - offset
    size = np.sqrt(weights @ features**2)
    size[size == 0.0] = 1.0   # an absent feature gets coefficient 0
    scaled = features / size   # tokens^2 and 1 differ by ten orders of magnitude
    robust = np.ones(len(target))
    for _ in range(ROUNDS if huber else 1):
        root = np.sqrt(weights * robust)
        x, _ = nnls(scaled * root[:, None], target * root)
        if huber is None:
            break
        residual = np.abs(scaled @ x - target)
        deviation = 1.4826 * weighted_median(residual, weights)
        if deviation <= 1e-12:
            break
        new = np.minimum(1.0, huber * deviation / np.maximum(residual, 1e-300))
        if np.max(np.abs(new - robust)) < 1e-3:
            break
        robust = new
    return np.asarray(x / size)


def weighted_median(values: FloatArray, weights: FloatArray) -> float:
    """Return the smallest value that has half of the weight at or below it."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


def held_out_parts(groups: npt.NDArray[Any], most: int) -> IntArray:
    """Return the part of each row, shape (rows,): whole groups, spread over at most `most` parts of equal size.

    The assignment depends only on the hashes of the names, not on the order of the rows or a random seed.
    """
    names = np.unique(groups)
    order = sorted(range(len(names)), key=lambda i: hashlib.sha256(str(names[i]).encode()).digest())
    part = np.empty(len(names), dtype=np.int64)
    part[order] = np.arange(len(names)) % most
    return np.asarray(part[np.searchsorted(names, groups)])


def held_out(predict: Callable[[IntArray, IntArray], FloatArray], parts: npt.NDArray[Any]) -> FloatArray:
    """Predict every row by a fit without its part, shape (rows,); at least two parts.

    predict: Fits the rows of its first argument and predicts those of its second; both are indices.
    """
    out = np.empty(len(parts))
    for fitted, held in LeaveOneGroupOut().split(parts, groups=parts):
        out[held] = predict(fitted, held)
    return out
