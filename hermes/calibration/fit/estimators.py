"""Estimators of step times with scikit-learn's interface, whose coefficients are never negative.

Without negative coefficients a step never gets cheaper by more work (`hermes.hardware.terms`). Residuals are relative
to the measured time if `relative` is set: otherwise the longest steps decide everything, and an unweighted fit with a
fine R^2 is several times worse by mean relative error. Huber's rule gives outliers (a step in which the machine did
other work) less weight, so that a few of them do not move the fit.

Errors are those of held-out groups, never of single rows: `held_out_splits` leaves out whole configurations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.model_selection import LeaveOneGroupOut
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from hermes.hardware.base import FloatArray

__all__ = ["HUBER", "NonNegativeRegressor", "held_out_parts", "held_out_splits", "solve"]

HUBER = 1.345
"""Residuals beyond this many standard deviations (estimated from their median) count linearly, not squared: 95%
efficient for normal errors."""

IntVector = npt.NDArray[np.int64]


class NonNegativeRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no type stubs
    """Linear model without negative coefficients, by least squares or Huber's loss.

    Parameters:
        relative: minimise errors relative to y, which must then be above 0
        huber: deviations beyond which a residual counts linearly; None for least squares
        offset: a part of y that is known and not fitted, in the unit of y
        max_iter: rounds of reweighting for Huber's loss

    Fitted attributes: `coef_`, shape (features,), none negative; `n_iter_`.
    """

    def __init__(
        self, *, relative: bool = False, huber: float | None = None, offset: float = 0.0, max_iter: int = 15
    ) -> None:
        self.relative, self.huber, self.offset, self.max_iter = relative, huber, offset, max_iter

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.relative
        tags.regressor_tags.poor_score = True   # scikit-learn's generated data have negative slopes
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803  (scikit-learn's name)
        """Find the coefficients. Raises `ValueError` for a y of 0 or less where errors are relative."""
        features, target = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        weights = _check_sample_weight(sample_weight, features, dtype=np.float64, ensure_non_negative=True)
        self.coef_, self.n_iter_ = solve(
            features, target, weights, relative=self.relative, huber=self.huber, offset=self.offset,
            max_iter=self.max_iter)
        return self

    def predict(self, X: Any) -> FloatArray:  # noqa: N803
        """Return predictions in the unit of y, the offset included; shape (rows,)."""
        check_is_fitted(self)
        features = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray(features @ self.coef_ + self.offset)


def solve(
    features: FloatArray, target: FloatArray, weights: FloatArray, *, relative: bool = False,
    huber: float | None = None, offset: float = 0.0, max_iter: int = 15,
) -> tuple[FloatArray, int]:
    """Return the coefficients, shape (features,), and the number of rounds; `NonNegativeRegressor` has the arguments.

    For arrays of floats that need no validation: the searches of a fit solve thousands of small problems, and
    scikit-learn's checks of one take four times as long as its solution. Raises `ValueError` for a target of 0 or less
    where errors are relative, and for values that are not finite.
    """
    if relative:
        if (target <= 0).any():
            raise ValueError("relative errors need a y above 0")
        features, target = features / target[:, None], 1.0 - offset / target
    else:
        target = target - offset
    size = np.sqrt(weights @ features**2)
    size[size == 0.0] = 1.0   # an absent feature gets coefficient 0
    scaled = features / size   # tokens^2 and 1 differ by ten orders of magnitude
    robust = np.ones(len(target))
    for rounds in range(1, (max_iter if huber else 1) + 1):   # noqa: B007  (returned)
        root = np.sqrt(weights * robust)
        x, _ = nnls(scaled * root[:, None], target * root)
        if huber is None:
            break
        residual = np.abs(scaled @ x - target)
        deviation = 1.4826 * _weighted_median(residual, weights)
        if deviation <= 1e-12:
            break
        new = np.minimum(1.0, huber * deviation / np.maximum(residual, 1e-300))
        if np.max(np.abs(new - robust)) < 1e-3:
            break
        robust = new
    return np.asarray(x / size), rounds


def _weighted_median(values: FloatArray, weights: FloatArray) -> float:
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


def held_out_parts(groups: npt.NDArray[Any], most: int) -> IntVector:
    """Return the part of each row, shape (rows,): whole groups, spread over at most `most` parts of equal size.

    The assignment depends only on the hashes of the names, not on the order of the rows or a random seed.
    """
    names = np.unique(groups)
    order = sorted(range(len(names)), key=lambda i: hashlib.sha256(str(names[i]).encode()).digest())
    part = np.empty(len(names), dtype=np.int64)
    part[order] = np.arange(len(names)) % most
    return np.asarray(part[np.searchsorted(names, groups)])


def held_out_splits(parts: npt.NDArray[Any]) -> Iterator[tuple[IntVector, IntVector]]:
    """Yield (rows to fit, rows held out) with each part left out in turn; indices, at least two parts."""
    yield from LeaveOneGroupOut().split(parts, groups=parts)
