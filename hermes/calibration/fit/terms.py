"""Dictionary of terms: functions that never fall when a feature grows, from which a fit builds a polynomial.

With non-negative coefficients every sum of them is monotone in every feature, inside the data and beyond (see
`hermes.hardware.terms`). The terms are the constant, features, squares and products of two, and pieces of lines between
knots: `max(x-a,0)` bends upwards, `min(x,a)` saturates, `clip(x-a,0,w)` is a step between two knots (kernels change
their tiles there). Any rising, piecewise linear function of one feature is a sum of these.

Knots are powers of two within the data, and every measured level of a feature that has few levels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import numpy as np

from hermes.calibration.fit.data import FitRows
from hermes.hardware.terms import Factor, Term

__all__ = ["FAMILIES", "FEW", "features_of", "ladder", "ladders", "sparse", "told_apart", "vocabulary"]

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


def features_of(phases: Sequence[str]) -> tuple[str, ...]:
    """Features that steps of these phases have."""
    return _FEATURES[phases[0]] if len(phases) == 1 else _FEATURES["mixed"]


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
    for name in features_of(phases):
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


def _products(used: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [(name, name) for name in _LOAD if name in used]
    others = [name for name in used if name not in _COUNTS]
    return pairs + [(a, b) for a in _LOAD if a in used for b in others if a != b and (b, a) not in pairs]


def vocabulary(rows: FitRows, phases: Sequence[str], family: str) -> list[Term]:
    """Return the terms of one of `FAMILIES`, the constant first, for rows of these phases."""
    used, _ = told_apart(rows, phases)
    terms: list[Term] = [(), *((Factor(name),) for name in used)]
    knots = {name: _knots(rows, name) for name in used if name not in _COUNTS}
    if "hinges" in family:
        for name, at in knots.items():
            terms += _pieces(name, at)
    if "degree 2" in family:
        for a, b in _products(used):
            terms.append((Factor(a, power=2),) if a == b else (Factor(a), Factor(b)))
            if "hinges" in family and a != b and not few(rows):
                coarse = knots[a][:: max(1, len(knots[a]) // 4)]
                terms += [(Factor(a, knot), Factor(b)) for knot in coarse]
                terms += [(Factor(a, cap=knot), Factor(b)) for knot in coarse]
    return terms
