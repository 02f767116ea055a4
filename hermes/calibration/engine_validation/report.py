"""Report of a validation: Markdown for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.calibration.comparison import LatencyError
from hermes.calibration.engine_validation.attempts import Attempt
from hermes.calibration.engine_validation.contention import RULES
from hermes.calibration.engine_validation.result import METRICS, Times
from hermes.calibration.engine_validation.session import ClockOutcome, Outcome, options_dict
from hermes.config.writing import write_text
from hermes.hardware.profile import load_profile

__all__ = ["markdown", "to_dict", "write_report"]

CLOCKS = {"wall": "wall clock", "cpu": "CPU clock (arrivals advance by the engine's CPU time)"}


def write_report(outcome: Outcome, folder: Path) -> None:
    """Write `report.md` and `report.json`."""
    write_text(folder / "report.md", markdown(outcome))
    text = json.dumps(to_dict(outcome), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_text(folder / "report.json", text)


def _means(times: Times | None) -> dict[str, float]:
    if times is None:
        return {}
    return {f"{m}_s": float(times.metric(m).mean()) for m in METRICS if len(times.metric(m))}


def _attempt_dict(attempt: Attempt) -> dict[str, Any]:
    out: dict[str, Any] = {"number": attempt.number, "accepted": attempt.accepted, **vars(attempt.verdict)}
    out["mean"] = _means(attempt.times)
    if attempt.result is not None:
        out |= {"engine_version": attempt.result.engine_version, "environment": attempt.result.environment,
                "adding_s": _adding(attempt), "steps": len(attempt.result.steps.end_s)}
    return out


def _adding(attempt: Attempt) -> float:
    """Return the mean seconds to hand one request over, on the attempt's clock."""
    assert attempt.result is not None
    adding = attempt.result.adding
    seconds = adding.cpu_s if attempt.clock == "cpu" else adding.wall_s
    return sum(seconds) / len(seconds)


def to_dict(outcome: Outcome) -> dict[str, Any]:
    """Return the whole report as plain values."""
    return {
        "format": "hermes-engine-validation/1",
        "options": options_dict(outcome.options),
        "requests": len(outcome.options.requests),
        "rules": list(RULES),
        "expected_reference_s": outcome.expected_reference_s,
        "profiles": {clock: _profile_dict(path) for clock, path in outcome.profiles.items()},
        "clocks": [
            {
                "clock": clock.clock, "accepted": len(clock.accepted), "notes": clock.notes,
                "simulated_steps": clock.prediction.steps, "out_of_range_steps": clock.prediction.out_of_range_steps,
                "ours_mean": _means(clock.prediction.times),
                "rows": [row.as_dict() for row in clock.rows],
                "attempts": [_attempt_dict(attempt) for attempt in clock.attempts],
            }
            for clock in outcome.clocks
        ],
    }


def _profile_dict(path: Path) -> dict[str, Any]:
    profile = load_profile(path)
    errors = {}
    for phase in ("prefill", "decode", "mixed"):
        part = getattr(profile.phases, phase)
        if part is not None and part.error is not None:
            errors[phase] = {"held_out_mape": part.error.mape, "points": part.points}
    return {"file": path.name, "name": profile.name, "phases": errors}


def _table(head: list[str], rows: list[list[str]], left: int = 1) -> Iterator[str]:
    """Yield the lines of a Markdown table with the first `left` columns left-aligned."""
    yield "| " + " | ".join(head) + " |"
    yield "| " + " | ".join("---" if i < left else "---:" for i in range(len(head))) + " |"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def _row_cells(row: LatencyError) -> list[str]:
    noise = row.noise
    interval = f"{noise.ci95 / noise.mean:.1%}" if noise.samples > 1 else "-"
    return [f"{row.metric.upper()} {row.stat}", f"{row.ours_s * 1e3:.1f}", f"{row.engine_s * 1e3:.1f}",
            f"{row.error:+.1%}", f"{noise.cv:.1%}" if noise.samples > 1 else "-", interval, noise.verdict]


def _attempt_cells(attempt: Attempt, ours: dict[str, float]) -> list[str]:
    verdict = attempt.verdict
    means = _means(attempt.times)
    errors = [
        f"{means[f'{m}_s'] * 1e3:.1f} ({ours[f'{m}_s'] / means[f'{m}_s'] - 1:+.1%})" if f"{m}_s" in means else "-"
        for m in METRICS
    ]
    reference = " / ".join(f"{s * 1e3:.2f}" for s in verdict.reference_s) if attempt.result else "-"
    others = "-" if verdict.others_share is None else f"{verdict.others_share:.2f}"
    judged = "accepted" if attempt.accepted else "rejected: " + "; ".join(verdict.reasons)
    return [str(attempt.number), judged, *errors, reference, f"{verdict.contended_windows}/{verdict.windows}",
            f"{verdict.lost_share:.1%}", others]


def _clock_section(clock: ClockOutcome) -> Iterator[str]:
    yield f"## On the {CLOCKS[clock.clock]}"
    yield ""
    if clock.rows:
        counted = clock.rows[0].noise.samples
        yield f"Milliseconds. Engine: mean over {counted} repetition(s); CV and 95%: coefficient of variation and half "
        yield "width of the 95% interval of the mean among them."
        yield ""
        head = ["", "ours", "engine", "error", "CV", "95%", "class"]
        yield from _table(head, [_row_cells(row) for row in clock.rows])
    yield f"Simulated: {clock.prediction.steps} steps, {clock.prediction.out_of_range_steps} of them outside the "
    yield "measured range."
    adding = [_adding(attempt) for attempt in clock.attempts if attempt.result is not None]
    if adding:
        yield f"Handing a request over to the engine took it {sum(adding) / len(adding) * 1e3:.2f} ms (not simulated)."
    yield ""
    for note in clock.notes:
        yield f"- {note}"
    if clock.notes:
        yield ""
    yield "Every attempt, with our error on its means:"
    yield ""
    ours = _means(clock.prediction.times)
    head = ["", "", "TTFT ms", "TPOT ms", "E2E ms", "reference ms before / after", "contended windows", "CPU lost",
            "others' CPUs"]
    yield from _table(head, [_attempt_cells(attempt, ours) for attempt in clock.attempts], left=2)


def markdown(outcome: Outcome) -> str:
    """Return the report as Markdown."""
    options, settings = outcome.options, outcome.options.settings
    model = settings.model
    lines = [f"# {options.engine} on {settings.device}: simulated and served", ""]
    results = [a.result for clock in outcome.clocks for a in clock.attempts if a.result is not None]
    if results:
        version, device = results[0].engine_version, results[0].environment.get("device", "")
        lines += [f"{options.engine} {version}, {device}.", ""]
    lines += [
        f"Model: {model.get('model_type')}, {model.get('num_hidden_layers')} layers of width "
        f"{model.get('hidden_size')}, {settings.dtype}, {settings.threads} thread(s), tensor parallel "
        f"{settings.tensor_parallel}; max_num_batched_tokens {settings.max_num_batched_tokens}, max_num_seqs "
        f"{settings.max_num_seqs}, {settings.num_blocks} blocks of {settings.block_size}.", "",
        f"Workload: {len(options.requests)} requests in {options.requests[-1].arrival_s:.0f} s, the same in every "
        f"repetition; {options.warmup_s:g} s of warm-up.", "",
        "Rules, fixed beforehand:", "", *(f"- {rule}" for rule in RULES), "",
    ]
    if outcome.expected_reference_s is not None:
        lines += [f"Reference step while calibrating: {outcome.expected_reference_s * 1e3:.2f} ms.", ""]
    for name, path in outcome.profiles.items():
        phases = _profile_dict(path)["phases"]
        errors = ", ".join(f"{phase} {e['held_out_mape']:.1%} ({e['points']} steps)" for phase, e in phases.items())
        lines.append(f"Profile for the {name} clock, held-out error of a step: {errors}.")
    lines.append("")
    for clock in outcome.clocks:
        lines += _clock_section(clock)
    return "\n".join(lines).rstrip() + "\n"
