"""Non-negative, relative, robust least squares.

Residuals are relative to the measured time, so that the fit minimises squared *relative* errors; without that, the
longest steps decide everything (an unweighted fit with a fine R^2 is several times worse by MAPE). Every configuration
counts the same, however many rows it has. Rows far off the rest (a step in which the machine did something else) are
weighted down by Huber's rule, so that a few of them do not move the fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from hermes.calibration.fit_rows import FitRows
from hermes.hardware.base import FloatArray
from hermes.hardware.terms import Term, evaluate

__all__ = ["Fit", "design", "fit_terms", "solve"]

HUBER = 1.345
"""Residuals beyond this many standard deviations (estimated from their median) count linearly, not squared: 95%
efficient for normal errors."""
ROUNDS = 15


class Fit(NamedTuple):
    """A fitted polynomial: seconds per term, none negative, without the engine's constant overhead."""

    terms: tuple[Term, ...]
    seconds: FloatArray

    def predict(self, rows: FitRows) -> FloatArray:
        """Seconds of whole steps, overhead included, shape (rows,)."""
        return np.asarray(design(self.terms, rows) @ self.seconds + rows.overhead_s)


def design(terms: Sequence[Term], rows: FitRows) -> FloatArray:
    """Values of the terms, shape (rows, terms)."""
    return np.column_stack([evaluate(term, rows.columns, len(rows)) for term in terms])


def solve(matrix: FloatArray, target: FloatArray, weights: FloatArray, rounds: int = ROUNDS) -> FloatArray:
    """Non-negative x, shape (terms,), that minimises the weighted Huber loss of matrix @ x - target."""
    size = np.sqrt(weights @ matrix**2)
    size[size == 0.0] = 1.0  # an absent feature gets coefficient 0
    scaled = matrix / size  # tokens^2 and 1 differ by ten orders of magnitude
    robust = np.ones(len(target))
    x = np.zeros(matrix.shape[1])
    for _ in range(rounds):
        root = np.sqrt(weights * robust)
        x, _ = nnls(scaled * root[:, None], target * root)
        residual = np.abs(scaled @ x - target)
        deviation = 1.4826 * _weighted_median(residual, weights)
        if deviation <= 1e-12:
            break
        new = np.minimum(1.0, HUBER * deviation / np.maximum(residual, 1e-300))
        if np.max(np.abs(new - robust)) < 1e-3:
            break
        robust = new
    return np.asarray(x / size)


def _weighted_median(values: FloatArray, weights: FloatArray) -> float:
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


def fit_terms(terms: Sequence[Term], rows: FitRows) -> Fit:
    """The best non-negative coefficients of these terms; terms that get none are dropped (the constant stays)."""
    matrix = design(terms, rows) / rows.seconds[:, None]
    x = solve(matrix, 1.0 - rows.overhead_s / rows.seconds, rows.weights())
    kept = [i for i in range(len(terms)) if x[i] > 0 or not terms[i]]
    return Fit(tuple(terms[i] for i in kept), x[kept])
