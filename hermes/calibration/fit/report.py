"""Report of a fit, as Markdown: errors on held-out configurations, ranges, noise, excluded rows and unknown
quantities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hermes.calibration.fit.data import PHASES
from hermes.calibration.fit.profile import FitResult
from hermes.hardware.profile import Noise, PhaseProfile
from hermes.results.layout import markdown_table

__all__ = ["phase_table", "report"]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}%"


def _phases(result: FitResult) -> list[tuple[str, PhaseProfile]]:
    found = [(phase, getattr(result.profile.phases, phase)) for phase in PHASES]
    return [(phase, profile) for phase, profile in found if profile is not None]


def phase_table(result: FitResult) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the summary table: one row per measured phase, and one for all steps."""
    head = ["phase", "steps", "configurations", "MAPE", "terms fixed", "in sample", "worst", "MSE s^2", "noise"]
    rows = []
    for phase, profile in _phases(result):
        error, noise = profile.error, profile.noise
        if error is not None:
            rows.append([
                phase, str(profile.points), str(error.configurations), _percent(error.mape),
                _percent(error.fixed_features_mape), _percent(error.in_sample_mape), _percent(error.worst),
                f"{error.mse_s2:.3g}", _noise(noise, result.neighbours.get(phase)),
            ])
    measured, predicted, fixed = (result.held_out[name].to_numpy() for name in ("seconds", "predicted", "fixed"))
    everything = result.rows
    rows.append([
        "all", str(len(measured)), str(len(np.unique(everything.configuration))), _percent(everything.mape(predicted)),
        _percent(everything.mape(fixed)), "", _percent(float(np.max(np.abs(predicted / measured - 1)))),
        f"{np.mean((predicted - measured) ** 2):.3g}", "",
    ])
    return head, rows


def _noise(noise: Noise | None, neighbours: float | None) -> str:
    """Return the median CV of repeated steps if enough were repeated, otherwise the noise between neighbours in
    time."""
    if noise is not None and noise.classes.get("single", 0) <= sum(noise.classes.values()) / 2:
        return f"CV {_percent(noise.median_cv)}"
    return "not repeated" if neighbours is None else f"{_percent(neighbours)} from neighbours"


def report(result: FitResult) -> str:
    """Return the report. Errors are mean absolute relative errors; every configuration counts once."""
    profile, header = result.profile, result.steps.header
    lines = [f"# {profile.name}", ""]
    lines += [markdown_table(["", ""], [
        ("hardware", header.hardware), ("engine", f"{header.engine} {header.engine_version}".strip()),
        ("model", header.model), ("parallelism", f"TP{header.tensor_parallel}, PP{header.pipeline_parallel}"),
        ("dtype", f"{header.dtype}" + (f", KV {header.kv_dtype}" if header.kv_dtype else "")),
        ("date", header.date), ("clock", header.clock), ("source", header.source),
        ("SHA-256 of the source", header.source_sha256 or "not stated"), ("SHA-256 of the steps", header.sha256),
        ("collected by", header.collected_by or "not stated"),
    ]), ""]
    lines += ["## Errors on held-out configurations", ""]
    lines += [markdown_table(*phase_table(result)), ""]
    lines += [
        "MAPE: predicted by fits that never saw the configuration, their terms chosen without it as well. Terms fixed: "
        "the terms of the final fit, coefficients fitted without the configuration. Relative, every configuration "
        "counts once. Noise: coefficient of variation of repeated steps (median); where nothing was repeated, the "
        "error of predicting a step by the mean of the two beside it in time, if they are alike.", "",
    ]
    lines += ["Which phases share a polynomial was decided by held-out error:", ""]
    lines += [markdown_table(["polynomials", "MAPE, all steps"],
                             [(name, _percent(e)) for name, e in result.schemes.items()]), ""]
    lines += [f"Engine overhead per step: {1e3 * profile.overhead_s:.4g} ms" +
              (" (fitted on the measured overheads)." if profile.overhead_s else " (not told apart)."), ""]
    lines += _monotony(result)
    for phase, part in _phases(result):
        lines += _phase(phase, part)
    lines += ["## Left out", "", *_bullets(result.excluded, "Nothing."), "## What the data cannot tell", ""]
    lines += _bullets([*header.notes, *result.limits], "Nothing known.")
    return "\n".join(lines).rstrip() + "\n"


def _monotony(result: FitResult) -> list[str]:
    lines = [
        "No coefficient is negative, so no step gets cheaper by more tokens, longer contexts or more sequences; a "
        "random search up to ten times the measured range found no exception."
    ]
    share, rise = result.boundary
    if share:
        lines.append(
            f"{_percent(share)} of the measured mixed steps are priced by their prefill or their decodes alone, "
            f"because the mixed polynomial lies below (by at most {_percent(rise)})."
        )
    return [*lines, ""]


def _bullets(lines: Sequence[str], none: str) -> list[str]:
    return [*([f"- {line}" for line in lines] or [none]), ""]


def _phase(phase: str, profile: PhaseProfile) -> list[str]:
    lines = [f"## {phase.capitalize()} steps", ""]
    lines += [markdown_table(["term", "seconds"], [(f"`{t.term}`", f"{t.seconds:.6g}") for t in profile.terms]), ""]
    lines += [f"Weights: {profile.weights}. Never below {1e3 * profile.floor_s:.4g} ms.", ""]
    if profile.range:
        lines += [markdown_table(["measured", "from", "to"],
                                 [(n, f"{a:g}", f"{b:g}") for n, (a, b) in profile.range.items()]), ""]
    if profile.error is not None:
        worst = [(g.configuration, g.points, _percent(g.mape)) for g in profile.error.by_configuration]
        lines += [f"{profile.error.method.capitalize()}. The worst configurations:", ""]
        lines += [markdown_table(["configuration", "steps", "MAPE"], worst), ""]
        lines += ["Tried (with the held-out MAPE the choice was made by):", ""]
        lines += [markdown_table(["MAPE", "terms"], [
            (_percent(e), f"`{name}`") for name, e in profile.error.candidates.items()]), ""]
    noise = profile.noise
    if noise is None:
        return [*lines, "Noise: no step was repeated.", ""]
    classes = ", ".join(f"{count} {name}" for name, count in noise.classes.items())
    lines += [
        f"Noise of repeated steps (SVAB): {classes}; CV median {_percent(noise.median_cv)}, largest "
        f"{_percent(noise.max_cv)}; 95% interval of a mean {_percent(noise.median_ci95)} (median).", "",
    ]
    return lines + _bullets(noise.flaky, "No step is flaky.")
