"""Checks of a fitted profile: monotonicity by proof and by search, undetermined quantities, excluded data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hermes.calibration.fit.data import FitRows
from hermes.calibration.fit.polynomial import told_apart
from hermes.calibration.steps import STATS, MeasuredSteps
from hermes.errors import InputError, Verbatim
from hermes.hardware.fitted.monotone import cheaper_steps, unproved
from hermes.hardware.fitted.polynomial import PolynomialModel
from hermes.hardware.fitted.profile import PhaseProfile, Profile
from hermes.hardware.fitted.terms import parse_term

if TYPE_CHECKING:
    from hermes.calibration.fit.profile import BlockFit

__all__ = ["BEYOND", "excluded_lines", "flat_beyond", "limits_of", "refuse_falling", "search_limits"]

BEYOND = 10.0
"""Factor beyond the measured range up to which exceptions to monotonicity are searched."""
COLLINEAR = 0.98
"""R^2 from which features explained by the others cannot be told apart outside the data."""
_GROWING = ("prefill_tokens", "tokens", "prefill_attn", "prefill_past", "decode_seqs", "decode_ctx", "decode_ctx_max")


def search_limits(profile: Profile) -> dict[str, float]:
    """Return bounds for `cheaper_steps`: `BEYOND` times the profile's measured range."""
    prefill, decode = profile.phases.prefill.range, profile.phases.decode.range

    def most(ranges: Mapping[str, list[float]], name: str, least: float) -> float:
        return BEYOND * max(ranges.get(name, [0.0, 0.0])[1], least)

    return {
        "tokens": most(prefill, "prefill_tokens", 128), "past": most(prefill, "prefill_past", 128),
        "seqs": min(most(decode, "decode_seqs", 8), 4096.0), "context": most(decode, "decode_ctx_max", 128),
    }


def refuse_falling(profile: Profile) -> None:
    """Raise `InputError` for a profile that is not proved monotone, or that prices more work cheaper somewhere."""
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
    """Return a line for each feature with a price within the data but none beyond: there the fit saw no more growth."""
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


def excluded_lines(steps: MeasuredSteps) -> list[str]:
    """Return the data that the source left out, and the rows it marked, counted by reason."""
    counts = steps.rows.loc[steps.rows["excluded"] != "", "excluded"].value_counts().sort_index()
    return [*steps.header.excluded, *(f"{reason}: {count} rows" for reason, count in counts.items())]


def collinear(rows: FitRows, phases: Sequence[str]) -> list[tuple[str, float, str]]:
    """Return features that follow from the others in these rows: (feature, R^2, the one it follows most closely)."""
    used = [name for name in told_apart(rows, phases)[0] if name in STATS]  # sums follow from their parts
    table = np.column_stack([rows.columns[name] / rows.columns[name].std() for name in used]) if used else None
    if table is None or len(used) < 2 or len(rows) <= len(used) + 1:
        return []
    correlation = np.corrcoef(table, rowvar=False) - 2 * np.eye(len(used))
    out = []
    for i, name in enumerate(used):
        matrix = np.column_stack([np.ones(len(rows)), np.delete(table, i, axis=1)])
        residual = table[:, i] - matrix @ np.linalg.lstsq(matrix, table[:, i], rcond=None)[0]
        explained = float(1 - residual.var() / table[:, i].var())
        if explained > COLLINEAR:
            out.append((name, explained, used[int(np.argmax(correlation[i]))]))
    return out


def limits_of(blocks: Sequence[BlockFit], rows: FitRows, overhead_s: float) -> list[str]:
    """Return one line for each quantity that the data cannot determine."""
    out = []
    for block in blocks:
        what = ", ".join(block.phases)
        _, reasons = told_apart(block.rows, block.phases)
        if reasons:
            listed = "; ".join(f"{name} {reason}" for name, reason in reasons.items())
            out.append(f"{what}: without effect of their own: {listed}")
        for name, explained, other in collinear(block.rows, block.phases):
            out.append(
                f"{what}: {name} follows from the other features (R^2 {explained:.3f}, most of all {other}); "
                "prices along one of them alone, outside the data, are a guess"
            )
        missing = [phase for phase in block.phases if not np.any(block.rows.phase == phase)]
        if missing:
            out.append(f"{', '.join(missing)}: not measured; priced by the polynomial of the other phases")
    if not np.any(rows.phase == "mixed") and not any("mixed" in block.phases for block in blocks):
        out.append("mixed: no step with prefill and decode was measured; such steps are composed (see hardware models)")
    if overhead_s == 0:
        out.append("overhead: the engine's own time per step is not told apart; it is in the constants of the phases")
    return out
