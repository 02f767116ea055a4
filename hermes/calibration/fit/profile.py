"""Fit of a profile to measured steps.

1. Select rows: not excluded by their source, and not among repetitions that SVAB rejects. 2. Determine the engine's
constant overhead per step, if the steps have it (`overhead_s`); the phases predict the rest. 3. Fit polynomials per
kind of step, or shared, with terms chosen by cross-validation over configurations (`polynomial`).
   If a step is the sum of its parts (an engine on a CPU), one polynomial for all steps is better than three that see a
   part of the data each. On a GPU, where prefills are bound by arithmetic and decodes by memory, separate ones are. So
   both are tried, and one polynomial for the steps with prefill and one for decodes.
4. Build a `Profile` with ranges, held-out errors, noise and provenance; refuse it if it is not monotone (`checks`).

`hermes fit` prints the table of errors (`phase_table`), and writes the profile and a figure (`plot`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from hermes.arrays import FloatArray
from hermes.calibration.comparison import compare_times
from hermes.calibration.fit.checks import excluded_lines, flat_beyond, limits_of, refuse_falling
from hermes.calibration.fit.data import PHASES, FitRows, Mask, label, neighbour_error, noise_of, repeats
from hermes.calibration.fit.estimators import weighted_median
from hermes.calibration.fit.polynomial import OUTER_FOLDS, Choice, StepPolynomial, choose, fit_terms, fold_count, unseen
from hermes.calibration.steps import STEP, MeasuredSteps, phase_of, tidy_rows
from hermes.errors import InputError, Verbatim
from hermes.hardware.fitted.profile import (
    FitError,
    GroupError,
    PhaseProfile,
    Phases,
    Profile,
    ProfilePower,
    ProfileTerm,
    Provenance,
    dump_yaml,
)
from hermes.hardware.fitted.terms import term_text

__all__ = ["BlockFit", "FitResult", "fit_steps", "phase_table", "provenance_of", "usable_rows", "write_profile"]

WORST_LISTED = 8
LONGEST_S = 1000.0
"""Longest plausible step; longer times are milliseconds taken for seconds."""
LOAD = {
    "prefill": ("prefill_tokens", "prefill_past", "prefill_attn"),
    "decode": ("decode_seqs", "decode_ctx", "decode_ctx_max"),
    "mixed": ("tokens", "prefill_past", "prefill_attn", "decode_seqs", "decode_ctx", "decode_ctx_max"),
}
"""Features whose measured range is always stated."""
WEIGHTS = "1/seconds^2 (relative errors), divided by the rows of the configuration; Huber's rule beyond 1.345 sigma"
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
    """A polynomial shared by some phases, and its errors on held-out configurations.

    `held_out` are predictions by fits (terms chosen anew) without the configuration, `fixed` by fits of the final
    terms; seconds, shape (rows of the block,).
    """

    phases: tuple[str, ...]
    rows: FitRows
    choice: Choice
    fit: StepPolynomial
    held_out: FloatArray
    fixed: FloatArray


@dataclass(frozen=True)
class FitResult:
    """A profile, and its sources."""

    profile: Profile
    steps: MeasuredSteps
    held_out: pd.DataFrame
    """One row per step that was used: phase, configuration, seconds, predicted, fixed (seconds, both held out)."""
    rows: FitRows
    """Features of the same rows."""
    blocks: list[BlockFit]
    schemes: dict[str, float]
    """Held-out MAPE by sharing of polynomials among phases."""
    limits: list[str]
    """Quantities that the data cannot determine, one line each."""
    excluded: list[str]
    """Unused rows, by reason."""
    neighbours: dict[str, float]
    """Error of predicting a step by its neighbours in time, by phase; for steps that followed each other."""


def fit_steps(steps: MeasuredSteps, name: str = "") -> FitResult:
    """Fit a profile called `name` (the steps' name if empty). Same steps, same profile.

    Raises `InputError` for insufficient steps: none with prefill, none with decode, or too few configurations to hold
    any out.
    """
    what = steps.header.name
    steps = MeasuredSteps(steps.header, tidy_rows(steps.rows, what))
    rows, rejected = usable_rows(steps)
    if len(rows) == 0:
        raise InputError("steps that are not excluded", Verbatim("none"), file=what)
    if rows["time_s"].max() > LONGEST_S:
        raise InputError(f"step times in seconds, up to {LONGEST_S:g}", rows["time_s"].max(), file=what, field="time_s")
    overhead_s = _overhead(rows)
    data = FitRows.of(rows, overhead_s)
    for phase in PHASES:
        count = len(np.unique(data.configuration[data.phase == phase]))
        if 0 < count < 3:
            raise InputError(
                f"at least 3 configurations with {phase} steps, to hold some out", count, file=what,
                field="configuration",
            )
    blocks, schemes = fit_blocks(data, what)
    phases = {phase: _phase(phase, block, rows, overhead_s) for block in blocks for phase in block.phases}
    excluded = [*excluded_lines(steps), *rejected]
    profile = Profile(
        format="hermes-profile/1", name=name or what, phases=Phases(**phases), overhead_s=overhead_s,
        provenance=provenance_of(steps, excluded), memory=steps.header.memory, power=_power(steps, rows),
    )
    limits = [*limits_of(blocks, data, overhead_s), *flat_beyond(profile)]
    profile.provenance.notes.extend(limits)
    refuse_falling(profile)
    neighbours = {phase: error for phase in PHASES
                  if (error := neighbour_error(rows[phase_of(rows) == phase])) is not None}
    return FitResult(profile, steps, _held_out(blocks, data), data, blocks, schemes, limits, excluded, neighbours)


def write_profile(result: FitResult, path: Path) -> None:
    """Write the profile as YAML."""
    source = result.profile.provenance
    title = f"{source.model} on {source.hardware}, TP{source.tensor_parallel}, {source.dtype}; times in seconds."
    dump_yaml(result.profile, path, title)


def usable_rows(steps: MeasuredSteps) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows to fit, and a line for each repeated step that varies too much to be used."""
    rows = steps.usable()
    if not rows.duplicated(STEP).any():
        return rows, []
    bad = {name for name, entry in repeats(rows) if entry.verdict == "rejected"}
    if not bad:
        return rows, []
    names = pd.Series([label(key) for key in rows[STEP].itertuples(index=False, name=None)])
    return (
        rows[~names.isin(bad)].reset_index(drop=True),
        [f"{name}: repetitions vary by 50% or more (SVAB: rejected)" for name in sorted(bad)],
    )


def _overhead(rows: pd.DataFrame) -> float:
    """Return the engine's own time per step: the median of its measurements, weighted like the fit; 0 if unknown."""
    known = rows[np.isfinite(rows["overhead_s"])]
    if len(known) < 0.9 * len(rows):
        return 0.0
    median = weighted_median(np.maximum(known["overhead_s"].to_numpy(), 0.0), 1 / known["time_s"].to_numpy())
    return min(median, 0.5 * float(rows["time_s"].min()))


def _phase(phase: str, block: BlockFit, rows: pd.DataFrame, overhead_s: float) -> PhaseProfile:
    """Return the profile of a phase from its polynomial, shared or not."""
    mask = block.rows.phase == phase
    part = block.rows.where(mask)
    terms = [(term, float(seconds)) for term, seconds in zip(block.fit.terms, block.fit.coef, strict=True)
             if not any(factor.feature in _ABSENT[phase] for factor in term)]
    measured = len(part) > 0
    prefills, decodes = block.rows.columns["prefill_tokens"] > 0, block.rows.columns["decode_seqs"] > 0
    seen = block.rows.where({"prefill": prefills, "decode": decodes, "mixed": prefills & decodes}[phase])
    shared = "" if len(block.phases) == 1 else f"one polynomial for {', '.join(block.phases)}; "
    used = {factor.feature for term, _ in terms for factor in term}
    ranges = dict.fromkeys((*LOAD[phase], *sorted(used)))
    return PhaseProfile(
        terms=[ProfileTerm(term=term_text(term), seconds=seconds) for term, seconds in terms],
        range={name: [float(seen.columns[name].min()), float(seen.columns[name].max())] for name in ranges}
        if len(seen) else {},
        floor_s=max(0.0, float(block.rows.seconds.min()) / 2 - overhead_s),
        points=len(part),
        weights=shared + WEIGHTS,
        error=_error(block, mask) if measured else None,
        noise=noise_of(rows[phase_of(rows) == phase]) if measured else None,
    )


def _error(block: BlockFit, mask: Mask) -> FitError:
    part, unseen, fixed = block.rows.where(mask), block.held_out[mask], block.fixed[mask]
    found = compare_times(unseen, part.seconds, part.weights)
    relative = np.abs(unseen / part.seconds - 1)
    count = fold_count(block.rows, OUTER_FOLDS)
    names, index, points = np.unique(part.configuration, return_inverse=True, return_counts=True)
    errors = np.bincount(index, weights=relative) / points
    return FitError(
        method=(
            f"{len(np.unique(block.rows.configuration))} configurations held out in {count} parts, "
            "the terms chosen anew without them"
        ),
        mape=found.mape, fixed_features_mape=part.mape(fixed), mse_s2=float(np.mean((unseen - part.seconds) ** 2)),
        worst=abs(found.worst), in_sample_mape=part.mape(block.fit.predict(part)), configurations=len(names),
        by_configuration=[
            GroupError(configuration=str(names[i]), points=int(points[i]), mape=float(errors[i]))
            for i in np.argsort(-errors, kind="stable")[:WORST_LISTED]
        ],
        candidates=block.choice.candidates,
    )


def _held_out(blocks: list[BlockFit], rows: FitRows) -> pd.DataFrame:
    out = pd.DataFrame({"phase": rows.phase, "configuration": rows.configuration, "seconds": rows.seconds})
    for name, values in (("predicted", "held_out"), ("fixed", "fixed")):
        column = np.empty(len(rows))
        for block in blocks:
            column[np.isin(rows.phase, block.phases)] = getattr(block, values)
        out[name] = column
    return out


def _power(steps: MeasuredSteps, rows: pd.DataFrame) -> ProfilePower | None:
    """Return mean watts while prefilling and while only decoding, if they and the idle watts were measured."""
    known = rows[np.isfinite(rows["power_w"])]
    decodes = phase_of(known) == "decode"
    idle_w = steps.header.idle_w
    if idle_w is None or not decodes.any() or decodes.all():
        return None
    watts = [float(np.average(part["power_w"], weights=part["time_s"])) for part in (known[~decodes], known[decodes])]
    return ProfilePower(
        idle_w=idle_w, prefill_w=watts[0], decode_w=watts[1],
        source=f"measured with the steps ({len(known)} of them), mean over time",
    )


def provenance_of(steps: MeasuredSteps, excluded: list[str]) -> Provenance:
    header = steps.header
    return Provenance(
        source=header.source, sha256=header.source_sha256 or header.sha256 or None, hardware=header.hardware,
        engine=f"{header.engine} {header.engine_version}".strip(), model=header.model,
        tensor_parallel=header.tensor_parallel, dtype=header.dtype, date=header.date,
        fitted_by=f"hermes fit, steps {header.name} (clock: {header.clock})", excluded=excluded,
        notes=list(header.notes),
    )


def _possible(rows: FitRows, what: str) -> list[tuple[tuple[str, ...], ...]]:
    """Return schemes for which every polynomial has data. Raises `InputError` if no scheme has."""
    out: list[tuple[tuple[str, ...], ...]] = []
    present = {phase for phase in PHASES if np.any(rows.phase == phase)}
    for scheme in SCHEMES:
        if "mixed" not in present:  # mixed steps are composed from the other two (hermes.hardware.fitted.polynomial)
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
    """Return the polynomials that predict best, and the held-out MAPE of each scheme that was tried.

    `what` names the steps in errors. Raises `InputError` for steps without a phase that no other can replace.
    """
    schemes = _possible(rows, what)
    blocks = list(dict.fromkeys(block for scheme in schemes for block in scheme))
    parts = {block: rows.where(np.isin(rows.phase, block)) for block in blocks}
    choices = {block: choose(part, block) for block, part in parts.items()}
    fixed = {block: unseen(parts[block], block, choice.terms) for block, choice in choices.items()}
    errors = []
    for scheme in schemes:
        merged = np.empty(len(rows))
        for block in scheme:
            merged[np.isin(rows.phase, block)] = fixed[block]
        errors.append(rows.mape(merged))
    chosen = next(s for s, error in zip(schemes, errors, strict=True) if error <= min(errors) * (1 + FEWER))
    fits = [BlockFit(block, parts[block], choices[block], fit_terms(parts[block], choices[block].terms),
                     unseen(parts[block], block), fixed[block]) for block in chosen]
    tried = {"; ".join(" + ".join(block) for block in s): error for s, error in zip(schemes, errors, strict=True)}
    return fits, tried


# -- presentation ------------------------------------------------------------------------------------------------------


def phase_table(result: FitResult) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the summary table: one row per measured phase, and one for all steps."""
    head = ["phase", "steps", "configurations", "MAPE", "terms fixed", "in sample", "worst", "MSE s^2", "noise"]
    phases = result.profile.phases
    found = (("prefill", phases.prefill), ("decode", phases.decode), ("mixed", phases.mixed))
    rows = []
    for phase, profile in found:
        error = None if profile is None else profile.error
        if profile is not None and error is not None:
            # of repeated steps if enough were repeated, otherwise between neighbours in time
            noise, neighbours = profile.noise, result.neighbours.get(phase)
            said = "not repeated" if neighbours is None else f"{_percent(neighbours)} from neighbours"
            if noise is not None and noise.classes.get("single", 0) <= sum(noise.classes.values()) / 2:
                said = f"CV {_percent(noise.median_cv)}"
            rows.append([
                phase, str(profile.points), str(error.configurations), _percent(error.mape),
                _percent(error.fixed_features_mape), _percent(error.in_sample_mape), _percent(error.worst),
                f"{error.mse_s2:.3g}", said,
            ])
    measured, predicted, fixed = (result.held_out[name].to_numpy() for name in ("seconds", "predicted", "fixed"))
    everything = result.rows
    rows.append([
        "all", str(len(measured)), str(len(np.unique(everything.configuration))), _percent(everything.mape(predicted)),
        _percent(everything.mape(fixed)), "", _percent(float(np.max(np.abs(predicted / measured - 1)))),
        f"{np.mean((predicted - measured) ** 2):.3g}", "",
    ])
    return head, rows


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}%"
