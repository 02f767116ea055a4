"""Fit of any scikit-learn regressor to measured steps, stored as a table (`hermes-table/1`), never as a pickle.

Per kind of step the regressor learns times from the features that a table has (`AXES`), and is sampled on a grid over
their measured range. Two targets are tried, and the one that predicts held-out configurations better is taken: seconds
with relative weights (if the regressor takes weights), and logarithms of seconds. A table rises with every feature; the
change by that and by the grid is printed beside the held-out error.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from itertools import product
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils import all_estimators
from sklearn.utils.validation import has_fit_parameter

from hermes.calibration.comparison import compare_times, group_weights
from hermes.calibration.fit.checks import excluded_lines
from hermes.calibration.fit.data import PHASES, FitRows
from hermes.calibration.fit.polynomial import OUTER_FOLDS, fold_count, held_out
from hermes.calibration.fit.profile import provenance_of, usable_rows
from hermes.calibration.steps import STATS, MeasuredSteps, tidy_rows
from hermes.errors import InputError, Verbatim
from hermes.hardware.base import FloatArray
from hermes.hardware.operator_curves import brackets, rising
from hermes.hardware.profile import FitError
from hermes.hardware.table import TableData, Tables

__all__ = ["RelativeRegressor", "TableFit", "fit_table", "regressor"]

AXES: dict[str, tuple[str, ...]] = {
    "prefill": ("prefill_tokens", "prefill_attn"),
    "decode": ("decode_seqs", "decode_ctx"),
    "mixed": ("prefill_tokens", "prefill_attn", "decode_seqs", "decode_ctx"),
}
"""Features of a table by kind of step."""
SIZES = {1: 64, 2: 40, 3: 12, 4: 8}
"""Most values of each feature, by the number of features."""


@cache
def _regressors() -> dict[str, type[Any]]:
    return dict(all_estimators(type_filter="regressor"))


def regressor(name: str, parameters: Mapping[str, Any]) -> Any:
    """Return a regressor of scikit-learn by name, not fitted. `random_state` defaults to 0.

    Raises `InputError` for an unknown name or parameter.
    """
    known = _regressors()
    if name not in known:
        near = get_close_matches(name, known, 1, 0.5)
        raise InputError("the name of a regressor of scikit-learn", name, field="--estimator",
                         suggestion=near[0] if near else None)
    try:
        made = known[name]()
    except TypeError as error:
        raise InputError("a regressor that needs no other", Verbatim(f"{name}: {error}"), field="--estimator") from None
    there = made.get_params()
    for key in parameters:
        if key not in there:
            raise InputError(f"a parameter of {name}: {', '.join(sorted(there))}", key, field="--estimator-set")
    return made.set_params(**({"random_state": 0} if "random_state" in there else {}), **parameters)


class RelativeRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no type stubs
    """A regressor fitted to relative errors, on chosen features.

    Parameters:
        regressor: Any of scikit-learn's.
        features: The features of `hermes.hardware.terms.FEATURES` that it sees.
        logarithm: Learn the logarithm of seconds instead of seconds with weights 1/seconds^2.

    X holds statistics in the order of `STATS`; features are standardised. Fitted attributes: `scaler_`, `regressor_`.
    """

    def __init__(self, regressor: Any, features: tuple[str, ...] = (), logarithm: bool = False) -> None:
        self.regressor, self.features, self.logarithm = regressor, features, logarithm

    def _columns(self, X: Any) -> FloatArray:  # noqa: N803  (scikit-learn's name)
        rows = FitRows.of_arrays(X)
        return np.column_stack([rows.columns[name] for name in self.features])

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:  # noqa: N803
        """Fit with equal weight for every group, if the regressor takes weights."""
        self.scaler_ = StandardScaler().fit(self._columns(X))
        features, seconds = self.scaler_.transform(self._columns(X)), np.asarray(y, dtype=np.float64)
        self.unit_ = float(seconds.mean())
        weights = group_weights(np.arange(len(seconds)) if groups is None else np.asarray(groups))
        if not self.logarithm:
            weights = weights * (self.unit_ / seconds) ** 2
        weighted = {"sample_weight": weights} if has_fit_parameter(self.regressor, "sample_weight") else {}
        target = np.log(seconds / self.unit_) if self.logarithm else seconds / self.unit_
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)   # the held-out error measures it
            self.regressor_ = clone(self.regressor).fit(features, target, **weighted)
        return self

    def predict(self, X: Any) -> FloatArray:  # noqa: N803
        """Seconds, shape (steps,)."""
        found = np.asarray(self.regressor_.predict(self.scaler_.transform(self._columns(X)))).reshape(len(X))
        return np.asarray(self.unit_ * (np.exp(found) if self.logarithm else found), dtype=np.float64)


@dataclass(frozen=True)
class TableFit:
    """Tables, and their sources."""

    tables: Tables
    held_out: dict[str, FitError]
    """Errors of the regressor on held-out configurations, by kind of step."""
    sampling: dict[str, tuple[float, float]]
    """Difference of table and regressor at the measured steps: mean and largest, relative, by kind of step."""
    excluded: list[str]


def fit_table(steps: MeasuredSteps, name: str, estimator: Any, label: str) -> TableFit:
    """Fit a regressor per kind of step and sample it. Same steps, same tables.

    Args:
        name: Name of the tables; empty: that of the steps.
        label: Name of the estimator in the provenance.

    Raises `InputError` for steps without prefill or without decode, or of fewer than 3 configurations, and if the
    regressor refuses.
    """
    what = steps.header.name
    steps = MeasuredSteps(steps.header, tidy_rows(steps.rows, what))
    rows, rejected = usable_rows(steps)
    everything = FitRows.of(rows, 0.0)
    parts = {phase: everything.where(everything.phase == phase) for phase in PHASES}
    for phase in ("prefill", "decode", "mixed"):
        if 0 < parts[phase].configurations < 3 or (phase != "mixed" and not len(parts[phase])):
            raise InputError(f"at least 3 configurations with {phase} steps, to hold some out",
                             parts[phase].configurations, file=what, field="configuration")
    found = {phase: _phase(part, phase, estimator, label) for phase, part in parts.items() if len(part)}
    excluded = [*excluded_lines(steps), *rejected]
    provenance = provenance_of(steps, excluded).model_copy(update={
        "fitted_by": f"hermes fit --estimator {label}, steps {what} (clock: {steps.header.clock})",
        "notes": [*steps.header.notes, "a regressor sampled over its measured range: nothing is known outside it"],
    })
    tables = Tables(format="hermes-table/1", name=name or what, provenance=provenance,
                    **{phase: table for phase, (table, _) in found.items()})
    errors = {phase: table.error for phase, (table, _) in found.items() if table.error is not None}
    sampling = {phase: (table.sampling_mape or 0.0, worst) for phase, (table, worst) in found.items()}
    return TableFit(tables, errors, sampling, excluded)


def _phase(rows: FitRows, phase: str, estimator: Any, label: str) -> tuple[TableData, float]:
    """Return the table of one kind of step, and its largest difference to the regressor."""
    features = tuple(name for name in AXES[phase] if len(np.unique(rows.columns[name])) > 1)
    if not features:
        raise InputError(f"{phase} steps that differ", Verbatim("all alike"), field="steps")
    candidates = [RelativeRegressor(estimator, features, True)]
    if has_fit_parameter(estimator, "sample_weight"):
        candidates.insert(0, RelativeRegressor(estimator, features))
    try:
        unseen = [held_out(candidate, rows) for candidate in candidates]
        scores = [rows.mape(values) for values in unseen]
        best = int(np.argmin(scores))
        chosen = candidates[best].fit(rows.matrix, rows.seconds, groups=rows.configuration)
    except (ValueError, TypeError, np.linalg.LinAlgError) as problem:
        refused = " ".join(str(problem).split())[:300]
        raise InputError(f"a regressor that fits {phase} steps", Verbatim(f"{label}: {refused}"),
                         field="--estimator") from None
    errors = compare_times(unseen[best], rows.seconds, rows.weights)
    error = FitError(
        method=f"{rows.configurations} configurations held out in {fold_count(rows, OUTER_FOLDS)} parts",
        mape=errors.mape, worst=abs(errors.worst), mse_s2=float(np.mean((unseen[best] - rows.seconds) ** 2)),
        in_sample_mape=rows.mape(chosen.predict(rows.matrix)), configurations=rows.configurations,
        candidates={("logarithms of seconds" if c.logarithm else "seconds, relative weights"): score
                    for c, score in zip(candidates, scores, strict=True)},
    )
    axes = [_axis(rows.columns[name], SIZES[len(features)]) for name in features]
    return _sampled(chosen, rows, features, axes, error)


def _axis(values: FloatArray, most: int) -> FloatArray:
    """Return values of a feature over its measured range, ascending: the measured ones, or as many of their
    quantiles."""
    levels = np.unique(values)
    if len(levels) > most:
        levels = np.unique(levels[np.linspace(0, len(levels) - 1, most).round().astype(int)])
    return np.asarray(levels, dtype=np.float64)


def _sampled(
    chosen: RelativeRegressor, rows: FitRows, features: tuple[str, ...], axes: list[FloatArray], error: FitError
) -> tuple[TableData, float]:
    """Sample the regressor on a grid and make it monotone; also return the largest relative difference to the regressor
    at the measured steps."""
    grid = np.array(list(product(*axes)))
    batches = np.zeros((len(grid), len(STATS)))
    for i, name in enumerate(features):
        batches[:, STATS.index(name)] = grid[:, i]
    shape = tuple(len(axis) for axis in axes)
    shortest = float(rows.seconds.min()) / 2
    seconds = rising(np.maximum(chosen.predict(batches), shortest).reshape(shape))
    points = np.column_stack([grid, seconds.reshape(-1)])
    looked_up = _interpolated(seconds, axes, [rows.columns[name] for name in features])
    difference = compare_times(looked_up, np.maximum(chosen.predict(rows.matrix), shortest), rows.weights)
    x: Any = features[0] if len(features) == 1 else list(features)
    return TableData(x=x, points=points.tolist(), error=error, sampling_mape=difference.mape), abs(difference.worst)


def _interpolated(seconds: FloatArray, axes: list[FloatArray], columns: list[FloatArray]) -> FloatArray:
    """Look up multilinearly inside the grid, shape (rows,)."""
    out = np.zeros(len(columns[0]))
    found = [brackets(axis, column) for axis, column in zip(axes, columns, strict=True)]
    for corner in product((0, 1), repeat=len(axes)):
        share = np.ones(len(out))
        for (_, weight), upper in zip(found, corner, strict=True):
            share = share * (weight if upper else 1 - weight)
        out += share * seconds[tuple(i + upper for (i, _), upper in zip(found, corner, strict=True))]
    return out
