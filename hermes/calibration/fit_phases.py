"""One polynomial for each kind of step, or one for several: what predicts steps of held-out configurations better.

Where a step is the sum of its parts (an engine on a CPU), one polynomial of all features, fitted to all steps, is
better than three that see a part of the data each. On a GPU, where prefills are bound by arithmetic and decodes by
memory, separate ones are. So both are tried, and one polynomial for the steps with prefill beside one for decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hermes.calibration.fit_rows import FitRows, mape
from hermes.calibration.fit_search import Choice, choose, cross_validate
from hermes.calibration.fit_solve import Fit, fit_terms
from hermes.errors import InputError, Verbatim
from hermes.hardware.base import FloatArray
from hermes.hardware.terms import Term

__all__ = ["PHASES", "BlockFit", "fit_blocks", "terms_in"]

PHASES = ("prefill", "decode", "mixed")
SCHEMES: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("prefill", "decode", "mixed"),),
    (("prefill", "mixed"), ("decode",)),
    (("prefill",), ("decode",), ("mixed",)),
)
"""Which phases share a polynomial, those with fewer polynomials first."""
FEWER = 0.02
"""Fewer polynomials are preferred if their error is within this part of the best."""
_ABSENT = {
    "prefill": ("decode_seqs", "decode_ctx", "decode_ctx_max"),
    "decode": ("prefill_tokens", "prefill_seqs", "prefill_past", "prefill_attn"),
    "mixed": (),
}


class BlockFit(NamedTuple):
    """A polynomial shared by some phases, and how it does on configurations it has not seen.

    `held_out` are predictions by fits (terms chosen anew) without the configuration, `fixed` by fits of the final
    terms; seconds, shape (rows of the block,).
    """

    phases: tuple[str, ...]
    rows: FitRows
    choice: Choice
    fit: Fit
    held_out: FloatArray
    fixed: FloatArray


def terms_in(fit: Fit, phase: str) -> list[tuple[Term, float]]:
    """The terms that can be other than zero in steps of a phase, with their seconds."""
    return [
        (term, float(seconds)) for term, seconds in zip(fit.terms, fit.seconds, strict=True)
        if not any(factor.feature in _ABSENT[phase] for factor in term)
    ]


def _possible(rows: FitRows, what: str) -> list[tuple[tuple[str, ...], ...]]:
    """Schemes for which every polynomial has data. Raises `InputError` where no scheme has."""
    out: list[tuple[tuple[str, ...], ...]] = []
    present = {phase for phase in PHASES if np.any(rows.phase == phase)}
    for scheme in SCHEMES:
        if "mixed" not in present:  # mixed steps are composed from the other two (hermes.hardware.polynomial)
            if len(scheme) == 3 and present == {"prefill", "decode"}:
                out.append(scheme[:2])
        elif all(present & set(block) for block in scheme):
            out.append(scheme)
    if not out:
        raise InputError(
            "measured steps with prefill and steps with decode",
            Verbatim(f"only {' and '.join(sorted(present))} steps"), file=what,
        )
    return out


def fit_blocks(rows: FitRows, what: str) -> tuple[list[BlockFit], dict[str, float]]:
    """The polynomials that predict best, and the held-out MAPE of each scheme that was tried.

    `what` is how an error calls the steps. Raises `InputError` for steps without a phase that nothing can stand in for.
    """
    schemes = _possible(rows, what)
    blocks = list(dict.fromkeys(block for scheme in schemes for block in scheme))
    parts = {block: rows.where(np.isin(rows.phase, block)) for block in blocks}
    choices = {block: choose(part, block) for block, part in parts.items()}
    fixed = {block: cross_validate(part, block, choices[block].terms) for block, part in parts.items()}
    errors = [_error(rows, scheme, fixed) for scheme in schemes]
    chosen = next(s for s, error in zip(schemes, errors, strict=True) if error <= min(errors) * (1 + FEWER))
    fits = [
        BlockFit(
            block, parts[block], choices[block], fit_terms(choices[block].terms, parts[block]),
            cross_validate(parts[block], block), fixed[block],
        )
        for block in chosen
    ]
    tried = {"; ".join(" + ".join(block) for block in s): error for s, error in zip(schemes, errors, strict=True)}
    return fits, tried


def _error(rows: FitRows, scheme: Sequence[tuple[str, ...]], predicted: dict[tuple[str, ...], FloatArray]) -> float:
    merged = np.empty(len(rows))
    for block in scheme:
        merged[np.isin(rows.phase, block)] = predicted[block]
    return mape(merged, rows)
