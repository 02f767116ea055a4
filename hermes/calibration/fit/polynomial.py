"""The step polynomial: a dictionary of terms that never fall when a feature grows, and a search among them.

With non-negative coefficients every sum of the terms is monotone in every feature, inside the data and beyond (see
`hermes.hardware.fitted.terms`). They are the constant, features, squares and products of two, and pieces of lines
between knots: `max(x-a,0)` bends upwards, `min(x,a)` saturates, `clip(x-a,0,w)` is a step between two knots (kernels
change their tiles there). Any rising, piecewise linear function of one feature is a sum of these. Knots are powers of
two within the data, and every measured level of a feature that has few levels.

The search is greedy and judged by cross-validation over configurations. It adds the term that lowers the held-out error
most, then removes terms that are no longer needed, until no change helps by more than a tolerance. It begins once with
the constant, and, if hinges are allowed, once more with a line that bends at every knot; the better result is taken. It
solves thousands of small problems, so it works on Gram matrices (one per fold, subtracted from the whole) with plain
least squares; the chosen terms are then fitted robustly (`estimators`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from hermes.arrays import FloatArray, IntArray
from hermes.calibration.fit.data import FitRows
from hermes.calibration.fit.estimators import HUBER, held_out, held_out_parts, solve
from hermes.hardware.fitted.terms import Factor, Term, evaluate, term_text

__all__ = [
    "OUTER_FOLDS", "Choice", "StepPolynomial", "choose", "fit_terms", "fold_count", "told_apart", "unseen",
    "vocabulary",
]

# in the order of preference where two columns of a phase are the same
_FEATURES = {
    "prefill": ("prefill_tokens", "prefill_attn", "prefill_past", "prefill_seqs", "sampled"),
    "decode": ("decode_seqs", "decode_ctx", "decode_ctx_max", "sampled"),
    "mixed": (
        "tokens", "prefill_tokens", "decode_seqs", "prefill_attn", "decode_ctx", "prefill_past", "decode_ctx_max",
        "seqs", "sampled", "prefill_seqs",
    ),
}
_COUNTS = {"prefill_seqs", "sampled", "seqs"}  # lines only: their effects are small
_SUBTLE = {"sampled", "seqs"}
_LOAD = ("tokens", "prefill_tokens", "decode_seqs")
FAMILIES = ("linear", "linear with hinges", "degree 2", "degree 2 with hinges")
"""Kinds of polynomials, simple ones first."""
FEW = 25
"""Largest number of configurations that counts as few: then only the main features may bend, so that the search cannot
fit noise."""
FEW_STEPS = 40
"""Up to this many different steps are fitted with ready-made polynomials, without a search."""
FEW_LEVELS = 24
"""A feature with at most this many different values may bend at each of them."""
SEGMENT_RATIO = 4.0
"""Segments span at most this ratio; longer ones are sums."""

MOST_TERMS = 20
FEWEST_GAIN = 0.0003
"""A term must lower the held-out error by this much (0.03 points of MAPE) ..."""
RELATIVE_GAIN = 0.015
"""... and by this part of it."""
SIMPLER = 0.03
"""A simpler family is preferred if its error is within this part of the best one's."""
SHORTLIST = 30
INNER_FOLDS, OUTER_FOLDS = 8, 10
"""Parts that configurations are spread over: to choose terms, and to report the error of a fit."""


def few(rows: FitRows) -> bool:
    """Whether the configurations are too few for subtle effects."""
    return rows.configurations <= FEW


def sparse(rows: FitRows) -> bool:
    """Whether the different steps are too few for a search, which would fit their noise."""
    return rows.different_steps <= FEW_STEPS


def told_apart(rows: FitRows, phases: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return features that vary in the data, and the reasons against the others: `{"sampled": "always equals
    decode_seqs"}`."""
    used: list[str] = []
    reasons: dict[str, str] = {}
    for name in _FEATURES[phases[0] if len(phases) == 1 else "mixed"]:
        values = rows.columns[name]
        twin = next((other for other in used if np.array_equal(rows.columns[other], values)), None)
        if few(rows) and name in _SUBTLE:
            reasons[name] = "is left out where there are few configurations"
        elif np.all(values == values[0]):
            reasons[name] = f"is {values[0]:g} in every step"
        elif twin is not None:
            reasons[name] = f"always equals {twin}"
        else:
            used.append(name)
    return used, reasons


def _knots(rows: FitRows, name: str) -> list[float]:
    """Return the knots of a feature: a line needs a level below its knot, and two above for its slope."""
    levels = np.unique(rows.columns[name][rows.columns[name] > 0])
    if len(levels) < 4 or (few(rows) and name not in _LOAD):
        return []
    low, high = float(levels[0]), float(levels[-2])
    knots = {2.0**i for i in range(48) if low <= 2.0**i < high}
    if len(levels) <= FEW_LEVELS and not few(rows):
        knots |= {float(level) for level in levels[1:-2]}
    return sorted(knots)


def _pieces(name: str, knots: Sequence[float]) -> Iterator[Term]:
    for knot in knots:
        yield (Factor(name, cap=knot),)
        yield (Factor(name, knot),)
    for low, high in combinations(knots, 2):
        if high <= SEGMENT_RATIO * low:
            yield (Factor(name, low, cap=high - low),)


def ladder(rows: FitRows, phases: Sequence[str], spacing: int = 0, offset: int = 0) -> list[Term]:
    """Return the constant, the main feature with a bend at every knot, and straight lines in the other features.

    With `spacing` only the knots 2^(offset + i * spacing) are used. Empty if the main feature cannot bend.
    """
    used, _ = told_apart(rows, phases)
    main = next((name for name in _LOAD if name in used), None)
    knots = _knots(rows, main) if main else []
    if spacing:
        knots = [knot for knot in knots if knot in {2.0 ** (offset + i * spacing) for i in range(48)}]
    if main is None or not knots:
        return []
    steep = 0.0 if spacing else SEGMENT_RATIO
    inner = [
        (Factor(main, low, cap=high - low),) for low, high in pairwise(knots) if not steep or high <= steep * low
    ]
    others = [(Factor(name),) for name in used if name != main]
    return [(), (Factor(main, cap=knots[0]),), *inner, (Factor(main, knots[-1]),), *others]


def ladders(rows: FitRows, phases: Sequence[str]) -> list[tuple[str, list[Term]]]:
    """Return ready-made polynomials for data with too few different steps to search: (family, terms), simple ones
    first."""
    out = [("linear", vocabulary(rows, phases, "linear")), ("degree 2", vocabulary(rows, phases, "degree 2"))]
    for spacing in (3, 2):
        for offset in range(spacing):
            terms = ladder(rows, phases, spacing, offset)
            # without the first piece it is flat below the first knot: a step of few tokens reads all weights, too
            out += [("linear with hinges", shape) for shape in ([(), *terms[2:]], terms) if terms]
    return out


def vocabulary(rows: FitRows, phases: Sequence[str], family: str) -> list[Term]:
    """Return the terms of one of `FAMILIES`, the constant first, for rows of these phases."""
    used, _ = told_apart(rows, phases)
    terms: list[Term] = [(), *((Factor(name),) for name in used)]
    knots = {name: _knots(rows, name) for name in used if name not in _COUNTS}
    if "hinges" in family:
        for name, at in knots.items():
            terms += _pieces(name, at)
    if "degree 2" in family:
        pairs = [(name, name) for name in _LOAD if name in used]
        pairs += [(a, b) for a in _LOAD if a in used for b in knots if a != b and (b, a) not in pairs]
        for a, b in pairs:
            terms.append((Factor(a, power=2),) if a == b else (Factor(a), Factor(b)))
            if "hinges" in family and a != b and not few(rows):
                coarse = knots[a][:: max(1, len(knots[a]) // 4)]
                terms += [(Factor(a, knot), Factor(b)) for knot in coarse]
                terms += [(Factor(a, cap=knot), Factor(b)) for knot in coarse]
    return terms


class Choice(NamedTuple):
    """Result of the search: the terms, their held-out error, and the error of the best of each family."""

    terms: tuple[Term, ...]
    family: str
    mape: float
    candidates: dict[str, float]


class StepPolynomial(NamedTuple):
    """Terms and their coefficients (seconds, none negative) for steps of some phases; it never falls."""

    terms: tuple[Term, ...]
    coef: FloatArray
    overhead_s: float

    def predict(self, rows: FitRows) -> FloatArray:
        """Return seconds of whole steps, overhead included, shape (rows,)."""
        return np.asarray(design(self.terms, rows) @ self.coef + self.overhead_s)


def fit_terms(rows: FitRows, terms: Sequence[Term]) -> StepPolynomial:
    """Fit the coefficients of some terms. Those with coefficient 0 are dropped; the constant stays."""
    x = solve(design(terms, rows), rows.seconds, rows.weights, huber=HUBER, offset=rows.overhead_s)
    kept = [i for i in range(len(terms)) if x[i] > 0 or not terms[i]]
    return StepPolynomial(tuple(terms[i] for i in kept), x[kept], rows.overhead_s)


def design(terms: Sequence[Term], rows: FitRows) -> FloatArray:
    """Return values of the terms, shape (rows, terms)."""
    return np.column_stack([evaluate(term, rows.columns, len(rows)) for term in terms])


class _Search:
    """One dictionary on one set of rows."""

    def __init__(self, terms: Sequence[Term], rows: FitRows) -> None:
        relative = design(terms, rows) / rows.seconds[:, None]
        root = np.sqrt(rows.weights)
        matrix = relative * root[:, None]
        size = np.linalg.norm(matrix, axis=0)
        size[size == 0.0] = np.inf
        self.matrix = matrix / size
        self.overhead = rows.overhead_s / rows.seconds
        self.target = (1.0 - self.overhead) * root
        self.root = root
        self.fold = held_out_parts(rows.configuration, fold_count(rows, INNER_FOLDS))
        self.gram = self.matrix.T @ self.matrix
        self.right = self.matrix.T @ self.target
        held = [(self.matrix[self.fold == k], self.target[self.fold == k]) for k in range(int(self.fold.max()) + 1)]
        self.grams = self.gram - np.stack([part.T @ part for part, _ in held])
        self.rights = self.right - np.stack([part.T @ target for part, target in held])

    def error(self, chosen: list[int]) -> float:
        """Return the held-out MAPE of a polynomial of these terms."""
        index = np.asarray(chosen)
        x = _nnls(self.grams[:, index[:, None], index], self.rights[:, index])
        residual = np.abs(np.einsum("ij,ij->i", self.matrix[:, index], x[self.fold]) - self.target)
        return float(residual @ self.root) / float(self.root @ self.root)

    def shortlist(self, chosen: list[int]) -> list[int]:
        """Return the terms that would lower the squared error of the fit most, best first."""
        gram = self.gram[np.ix_(chosen, chosen)]
        x = _nnls(gram[None], self.right[None, chosen])[0]
        gradient = self.right - self.gram[:, chosen] @ x
        # residual of each column after projecting out the chosen ones
        solved = np.linalg.lstsq(gram, self.gram[chosen], rcond=1e-12)[0]
        left = np.sqrt(np.maximum(np.diag(self.gram) - np.sum(self.gram[chosen] * solved, axis=0), 0.0))
        gain = np.where(left > 1e-5, gradient / np.maximum(left, 1e-5), -np.inf)
        gain[chosen] = -np.inf
        order = np.argsort(-gain, kind="stable")[:SHORTLIST]
        return [int(i) for i in order if gain[i] > 1e-9]

    def run(self, start: Sequence[int] = (0,)) -> tuple[float, list[int]]:
        """Return held-out error and terms of a search that begins with `start` (the constant first)."""
        chosen = list(start)
        best = self._thin_out(chosen, self.error(chosen))
        while len(chosen) < MOST_TERMS:
            tried = [(round(self.error([*chosen, i]), 9), i) for i in self.shortlist(chosen)]
            if not tried or min(tried)[0] > best - max(FEWEST_GAIN, RELATIVE_GAIN * best):
                break
            best, added = min(tried)
            chosen.append(added)
            best = self._thin_out(chosen, best)
        return best, chosen

    def _thin_out(self, chosen: list[int], best: float) -> float:
        """Remove terms while that costs next to nothing; return the error then."""
        while len(chosen) > 2:
            fewer = [(round(self.error([i for i in chosen if i != gone]), 9), gone) for gone in chosen[1:]]
            error, gone = min(fewer)
            if error > best + FEWEST_GAIN / 4:
                break
            chosen.remove(gone)
            best = error
        return best


def _nnls(grams: FloatArray, rights: FloatArray) -> FloatArray:
    """Non-negative least squares from the normal equations of several problems: (n, p, p) and (n, p) -> (n, p)."""
    jitter = np.eye(grams.shape[-1])
    try:
        lower = np.linalg.cholesky(grams + 1e-11 * jitter)
    except np.linalg.LinAlgError:
        lower = np.linalg.cholesky(grams + 1e-7 * jitter)
    upper = np.swapaxes(lower, -1, -2)
    whitened = np.linalg.solve(lower, rights[..., None])
    x = np.linalg.solve(upper, whitened)[..., 0]
    for i in np.flatnonzero((x < 0).any(axis=-1)):  # most problems have no active bound: then this is the solution
        x[i], _ = nnls(upper[i], whitened[i, :, 0])
    return np.asarray(x, dtype=np.float64)


def fold_count(rows: FitRows, many: int) -> int:
    """Split: every configuration on its own if there is little data, at most `many` folds otherwise."""
    count = rows.configurations
    return count if sparse(rows) else min(count, many)


def choose(rows: FitRows, phases: Sequence[str]) -> Choice:
    """Return the simplest family within a tolerance of the best one, and its terms."""
    found = [Choice(tuple(terms), family, _Search(terms, rows).error(list(range(len(terms)))), {})
             for family, terms in ladders(rows, phases)] if sparse(rows) else [
        _searched(rows, phases, family) for family in FAMILIES]
    best = min(choice.mape for choice in found)
    chosen = next(choice for choice in found if choice.mape <= best * (1 + SIMPLER) + FEWEST_GAIN)
    candidates = {f"{c.family}: {' + '.join(term_text(term) for term in c.terms)}": c.mape for c in found}
    return chosen._replace(candidates=candidates)


def _searched(rows: FitRows, phases: Sequence[str], family: str) -> Choice:
    terms = vocabulary(rows, phases, family)
    search = _Search(terms, rows)
    starts = [[0]]
    if "hinges" in family and (first := ladder(rows, phases)):
        starts.append([terms.index(term) for term in first])
    error, chosen = min((search.run(start) for start in starts), key=lambda end: (end[0], len(end[1])))
    return Choice(tuple(terms[i] for i in chosen), family, error, {})


def unseen(rows: FitRows, phases: Sequence[str], terms: Sequence[Term] | None = None) -> FloatArray:
    """Predict every row by a fit without its configuration, seconds, shape (rows,).

    terms: None to choose them anew in every part, so that the error of the predictions includes the choice.
    """
    def predict(fitted: IntArray, held: IntArray) -> FloatArray:
        part = rows.where(fitted)
        return fit_terms(part, choose(part, phases).terms if terms is None else terms).predict(rows.where(held))

    return held_out(predict, held_out_parts(rows.configuration, fold_count(rows, OUTER_FOLDS)))
