"""Fitting polynomials to measured steps: relative weights, sign constraints, and cross-validation by configuration.

Every point's residual is divided by its measured time, so that the fit minimises squared *relative* errors; without
that, the longest steps decide everything (an unweighted fit with a fine R^2 is several times worse by MAPE). Every
configuration counts the same, in the fit and in the errors, however often it was repeated.
Coefficients are non-negative (non-negative least squares), and a feature with knots is fitted as segments, each with
its own non-negative slope: the fitted time never falls when a feature grows, inside the data or beyond it. Needs
scikit-learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hermes.hardware.base import FloatArray
from hermes.hardware.profile import FitError, GroupError, Noise, PhaseProfile, ProfileTerm
from hermes.hardware.terms import evaluate, parse_term

__all__ = ["FeatureSet", "Fit", "choose", "cross_validate", "fit", "noise_of", "phase_profile"]

Labels = npt.NDArray[np.str_]


class FeatureSet(NamedTuple):
    """What a candidate polynomial is made of: plain terms, and features that are piecewise linear between knots."""

    terms: tuple[str, ...]
    pieces: tuple[tuple[str, tuple[float, ...]], ...] = ()

    def label(self) -> str:
        """How reports call it: `1 + decode_ctx + decode_seqs[8, 32]`, knots in brackets."""
        pieces = (f"{name}[{', '.join(f'{knot:g}' for knot in knots)}]" for name, knots in self.pieces)
        return " + ".join((*self.terms, *pieces))

    def design(self, columns: Mapping[str, FloatArray], rows: int) -> FloatArray:
        """Design matrix, shape (rows, len(terms) + segments); columns of `StepStats` features."""
        matrix = [evaluate(parse_term(term), columns, rows) for term in self.terms]
        for name, knots in self.pieces:
            edges = (0.0, *knots, np.inf)
            matrix += [np.clip(columns[name] - a, 0.0, b - a) for a, b in pairwise(edges)]
        return np.column_stack(matrix)

    def as_terms(self, weights: FloatArray) -> dict[str, float]:
        """Term text -> coefficient; segments become hinges, whose coefficients are the changes of slope."""
        out = dict(zip(self.terms, weights.tolist(), strict=False))
        at = len(self.terms)
        for name, knots in self.pieces:
            slopes = weights[at : at + len(knots) + 1]
            at += len(slopes)
            changes = [slopes[0], *np.diff(slopes)]
            texts = [name, *(f"max({name}-{knot:g},0)" for knot in knots)]
            out |= {text: float(change) for text, change in zip(texts, changes, strict=True)}
        return {text: value for text, value in out.items() if value != 0.0}


class Fit(NamedTuple):
    """A fitted feature set; `weights` belong to the columns of its design matrix."""

    features: FeatureSet
    weights: FloatArray

    def predict(self, columns: Mapping[str, FloatArray], rows: int) -> FloatArray:
        """Seconds, shape (rows,)."""
        return np.asarray(self.features.design(columns, rows) @ self.weights)


def fit(
    features: FeatureSet, columns: Mapping[str, FloatArray], seconds: FloatArray, groups: Labels,
    *, positive: bool = True,
) -> Fit:
    """Least squares on relative errors, every group counting the same.

    `seconds` is the measured time, positive, shape (rows,); `groups` labels configurations, shape (rows,).
    """
    from sklearn.linear_model import LinearRegression

    design = features.design(columns, len(seconds)) / seconds[:, None]
    size = np.linalg.norm(design, axis=0)
    size[size == 0.0] = 1.0  # an absent feature gets coefficient 0
    _, index, count = np.unique(groups, return_inverse=True, return_counts=True)
    model = LinearRegression(fit_intercept=False, positive=positive)
    # unit columns: tokens^2 and 1 differ by ten orders of magnitude
    model.fit(design / size, np.ones(len(seconds)), sample_weight=1 / count[index])
    return Fit(features, np.asarray(model.coef_, dtype=np.float64) / size)


def _rows(columns: Mapping[str, FloatArray], mask: npt.NDArray[np.bool_]) -> dict[str, FloatArray]:
    return {name: values[mask] for name, values in columns.items()}


def cross_validate(
    features: FeatureSet, columns: Mapping[str, FloatArray], seconds: FloatArray, groups: Labels, positive: bool = True
) -> FloatArray:
    """Predictions for every row from a fit without its group, seconds, shape (rows,)."""
    out = np.empty(len(seconds))
    for group in np.unique(groups):
        held = groups == group
        part = fit(features, _rows(columns, ~held), seconds[~held], groups[~held], positive=positive)
        out[held] = part.predict(_rows(columns, held), int(held.sum()))
    return out


def _mape(predicted: FloatArray, seconds: FloatArray, groups: Labels) -> float:
    errors = np.abs(predicted / seconds - 1)
    return float(np.mean([errors[groups == group].mean() for group in np.unique(groups)]))


def choose(
    candidates: Sequence[FeatureSet], columns: Mapping[str, FloatArray], seconds: FloatArray, groups: Labels,
    tolerance: float = 0.001,
) -> tuple[FeatureSet, dict[str, float]]:
    """The first candidate (list the simple ones first) within `tolerance` of the best held-out MAPE, and all MAPEs."""
    scores = {c.label(): _mape(cross_validate(c, columns, seconds, groups), seconds, groups) for c in candidates}
    best = min(scores.values())
    return next(c for c in candidates if scores[c.label()] <= best + tolerance), scores


def noise_of(seconds: FloatArray, groups: Labels) -> Noise | None:
    """Spread within groups of repeated measurements; None if nothing was repeated."""
    from scipy.stats import t

    cvs: dict[str, float] = {}
    intervals = []
    for group in np.unique(groups):
        values = seconds[groups == group]
        if len(values) > 1:
            cvs[str(group)] = float(values.std(ddof=1) / values.mean())
            intervals.append(float(t.ppf(0.975, len(values) - 1)) * cvs[str(group)] / len(values) ** 0.5)
    if not cvs:
        return None
    return Noise(
        median_cv=float(np.median(list(cvs.values()))), max_cv=max(cvs.values()),
        median_ci95=float(np.median(intervals)),
        flaky=[f"{group}: CV {cv:.1%}" for group, cv in cvs.items() if cv > 0.05],
    )


def phase_profile(
    candidates: Sequence[FeatureSet], columns: Mapping[str, FloatArray], seconds: FloatArray, groups: Labels,
    repeats: Labels, ranges: Mapping[str, Sequence[float]],
) -> PhaseProfile:
    """Choose among `candidates` by cross-validation, fit on everything, and report.

    `groups` (configurations) are held out one at a time; `repeats` labels measurements of the very same thing, for
    the noise; `ranges` is the measured range per feature.
    """
    features, scores = choose(candidates, columns, seconds, groups)
    held_out = cross_validate(features, columns, seconds, groups)
    final = fit(features, columns, seconds, groups)
    by_configuration = [
        GroupError(
            configuration=str(group), points=int((groups == group).sum()),
            mape=float(np.abs(held_out / seconds - 1)[groups == group].mean()),
        )
        for group in np.unique(groups)
    ]
    terms = final.features.as_terms(final.weights)
    return PhaseProfile(
        terms=[ProfileTerm(term=term, seconds=value) for term, value in terms.items()],
        range={name: [float(low), float(high)] for name, (low, high) in ranges.items()},
        floor_s=float(seconds.min()) / 2,
        points=len(seconds),
        weights="1/seconds^2 (relative errors), divided by the repeats of the configuration",
        error=FitError(
            method=f"leave one of {len(by_configuration)} configurations out",
            mape=_mape(held_out, seconds, groups),
            mse_s2=float(np.mean((held_out - seconds) ** 2)),
            worst=float(np.max(np.abs(held_out / seconds - 1))),
            in_sample_mape=_mape(final.predict(columns, len(seconds)), seconds, groups),
            by_configuration=by_configuration,
            candidates=scores,
        ),
        noise=noise_of(seconds, repeats),
    )
