"""The answer of `hermes capacity` as lines of text, and as plain data."""

from __future__ import annotations

from typing import Any

from hermes.explore.capacity import Answer, Capacity, Trial
from hermes.explore.objective import settled
from hermes.results.layout import format_s
from hermes.results.limit_parts import limit_of_row
from hermes.units import counted

__all__ = ["lines", "plain", "trial_rows"]


def lines(found: Capacity, limits: str) -> list[tuple[str, str]]:
    """Return (label, text) pairs. limits: The SLO in words."""
    first = found.answers[0]
    out = [("capacity", _headline(found)), ("keeps", limits)]
    at, beyond = first.at(first.load), first.at(first.next_load)
    seed = f"seed {first.trials[0].seed}: " if len(found.answers) > 1 else ""
    if at is not None:
        out.append((f"at {_load(found, at)}", seed + _figures(at)))
        out.append(("binds", _binds(at, beyond)))
        stops = limit_of_row((beyond if beyond is not None and beyond.misses is not None else at).row)
        if stops is not None:
            out.append(("stops", stops))
    if beyond is not None and beyond.misses is not None:
        out.append((f"at {_load(found, beyond)}", f"{seed}misses: {beyond.misses}"))
    if not first.complete:
        out.append(("warning", f"the search ended after {counted(len(first.trials), 'run')}; "
                               "more narrow it down: --runs"))
    if found.value is not None and len(found.answers) > 1 and not found.narrow:
        out.append(("warning", _wide(found)))
    return out


def _headline(found: Capacity) -> str:
    runs = counted(found.runs, "run")
    if found.value is None:
        loads = [trial.load for answer in found.answers for trial in answer.trials if answer.load is None]
        if found.over == "clients":
            return f"none: even {max(loads):g} {found.unit} miss the SLO ({runs})"
        if not any(settled(trial.row) for answer in found.answers for trial in answer.trials):
            return f"none: no simulation settled ({runs}); give the workload more requests, or a longer trace"
        return f"none: already {found.base * min(loads):.4g} {found.unit} miss the SLO ({runs})"
    if found.over == "clients":
        each = ", ".join(f"{value:g}" for value in found.values)
        return f"{found.value:g} {found.unit} are the fewest ({runs}; by seed: {each})"
    if any(answer.next_load is None for answer in found.answers):
        return f"at least {found.value:.4g} {found.unit}: no load that was tried misses the SLO ({runs})"
    text = f"{found.value:.4g} {found.unit}"
    if found.half_width is not None:
        low, high = found.value - found.half_width, found.value + found.half_width
        text += f" (95% interval {low:.4g} to {high:.4g}, {counted(len(found.answers), 'seed')})"
    elif len(found.answers) == 1:
        text += " (one seed, hence no interval)"
    return f"{text}, {runs}"


def _wide(found: Capacity) -> str:
    if found.over == "clients":
        return "the seeds differ; the most of them is given: a longer workload settles it"
    assert found.half_width is not None
    share = found.half_width / (found.value or 1.0)
    spread = (max(found.values) - min(found.values)) / (found.value or 1.0)
    return (f"the 95% interval is +-{share:.1%} of the answer with {len(found.answers)} seeds, which differ by "
            f"{spread:.1%}; a longer workload, or more --seeds, narrow it down")


def _load(found: Capacity, trial: Trial) -> str:
    return f"{found.base * trial.load:.4g}"


def _figures(trial: Trial) -> str:
    row = trial.row
    parts = [f"{name} p50 {format_s(row[f'latency.{key}.p50'])}, p99 {format_s(row[f'latency.{key}.p99'])}"
             for name, key in (("TTFT", "latency.ttft_s"), ("TPOT", "latency.tpot_s"))
             for key in (key.removeprefix("latency."),) if row.get(f"latency.{key}.p50") is not None]
    for key, what in (("answer", "tokens of answers"), ("output", "generated")):
        dollars = row.get(f"headline.per_million_{key}_tokens_dollars")
        parts += [f"${dollars:.3g} per million {what}"] if dollars is not None else []
    return "; ".join(parts)


def _binds(at: Trial, beyond: Trial | None) -> str:
    """What binds at the answer, and beyond it where the answer itself leaves room."""
    def of(trial: Trial) -> str:
        what, where = trial.row.get("binds.what"), trial.row.get("binds.where")
        return f"{what} of {where}" if where else str(what)

    first = of(at)
    if beyond is None or of(beyond) == first:
        return first
    return f"{first}; just beyond: {of(beyond)}"


def trial_rows(found: Capacity) -> list[list[str]]:
    """Return a row per simulation: seed, load, rates, latencies, what it misses."""
    out = []
    for answer in found.answers:
        for trial in sorted(answer.trials, key=lambda trial: trial.load):
            row = trial.row
            out.append([
                str(trial.seed), _load(found, trial),
                *("-" if row.get(key) is None else f"{row[key]:.4g}"
                  for key in ("headline.offered_per_s", "headline.served_per_s")),
                *(format_s(row.get(key)) for key in ("latency.ttft_s.p99", "latency.tpot_s.p99")),
                trial.misses or "meets",
            ])
    return out


def plain(found: Capacity) -> dict[str, Any]:
    """Return the answer as data for JSON."""
    return {
        "scenario": found.name, "over": found.over, "unit": found.unit, "value": found.value,
        "half_width": found.half_width, "narrow": found.narrow, "runs": found.runs,
        "seeds": [_plain_answer(found, answer) for answer in found.answers],
    }


def _plain_answer(found: Capacity, answer: Answer) -> dict[str, Any]:
    return {
        "seed": answer.seed, "value": None if answer.load is None else found.base * answer.load,
        "next": None if answer.next_load is None else found.base * answer.next_load, "complete": answer.complete,
        "trials": [{"value": found.base * trial.load, "misses": trial.misses} for trial in answer.trials],
    }
