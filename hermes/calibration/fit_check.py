"""What a fitted profile must stand before it is handed out: monotone, by proof and by search; and its edges."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hermes.calibration.fit_rows import FitRows
from hermes.calibration.steps import STATS
from hermes.errors import InputError, Verbatim
from hermes.hardware.base import StepStats
from hermes.hardware.monotone import cheaper_steps, unproved
from hermes.hardware.polynomial import PolynomialModel
from hermes.hardware.profile import PhaseProfile, Profile
from hermes.hardware.terms import parse_term

__all__ = ["BEYOND", "boundary", "flat_beyond", "refuse_falling", "search_limits"]

BEYOND = 10.0
"""Monotony is searched for exceptions up to this many times the measured range."""
_GROWING = ("prefill_tokens", "tokens", "prefill_attn", "prefill_past", "decode_seqs", "decode_ctx", "decode_ctx_max")


def search_limits(profile: Profile) -> dict[str, float]:
    """Bounds for `cheaper_steps`: `BEYOND` times what the profile was measured on."""
    prefill, decode = profile.phases.prefill.range, profile.phases.decode.range

    def most(ranges: Mapping[str, list[float]], name: str, least: float) -> float:
        return BEYOND * max(ranges.get(name, [0.0, 0.0])[1], least)

    return {
        "tokens": most(prefill, "prefill_tokens", 128), "past": most(prefill, "prefill_past", 128),
        "seqs": min(most(decode, "decode_seqs", 8), 4096.0), "context": most(decode, "decode_ctx_max", 128),
    }


def refuse_falling(profile: Profile) -> None:
    """Raises `InputError` for a profile that is not proved monotone, or that prices more work cheaper somewhere."""
    falling = unproved(profile)
    if falling:
        listed = "; ".join(f"{phase}: {', '.join(terms)}" for phase, terms in falling.items())
        raise InputError("polynomials that never fall", Verbatim(listed), file=profile.name)
    found = cheaper_steps(PolynomialModel(profile), search_limits(profile), count=200)
    if found:
        batch, more, before_ns, after_ns = found[0]
        raise InputError(
            "steps that do not get cheaper by more work",
            Verbatim(f"{before_ns} ns for {batch.stats()}, {after_ns} ns for {more.stats()}"), file=profile.name,
        )


def flat_beyond(profile: Profile) -> list[str]:
    """A line for each feature that has a price within the data but none beyond: there the fit saw no more growth."""
    out = []
    phases: Mapping[str, PhaseProfile | None] = {
        "prefill": profile.phases.prefill, "decode": profile.phases.decode, "mixed": profile.phases.mixed,
    }
    for phase, part in phases.items():
        for name in _GROWING:
            factors = [f for entry in (part.terms if part else []) for f in parse_term(entry.term) if f.feature == name]
            if factors and all(factor.cap is not None for factor in factors):
                end = max((factor.knot or 0.0) + (factor.cap or 0.0) for factor in factors)
                out.append(f"{phase}: beyond {end:g}, {name} has no price of its own any more")
    return out


def boundary(profile: Profile, rows: FitRows) -> tuple[float, float]:
    """How often a measured mixed step is priced by one of its parts, because its own polynomial lies below, and by how
    much that raises it at most; fractions. (0, 0) where no mixed step was measured."""
    mixed = rows.where(rows.phase == "mixed")
    model = PolynomialModel(profile)
    if not len(mixed) or not model.bounds:
        return 0.0, 0.0
    table = np.column_stack([mixed.columns[name] for name in STATS]).astype(np.int64).tolist()
    stats = [StepStats(**dict(zip(STATS, row, strict=True))) for row in table]
    rises = np.array([model.step_ns(entry) / model.mixed.step(entry) - 1 for entry in stats])
    return float(np.mean(rises > 0)), float(rises.max())
