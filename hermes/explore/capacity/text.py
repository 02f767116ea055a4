"""The answer of `hermes capacity` as lines of text, and as plain data."""

from __future__ import annotations

import math
from typing import Any

from hermes.explore.capacity import Answer, Capacity, Trial
from hermes.explore.objective import Row, binds_text, is_ended, settled
from hermes.results.figures.catalogue import FIGURES
from hermes.results.figures.limit_parts import limit_of_row
from hermes.results.layout import format_s
from hermes.units import counted

__all__ = ["lines", "plain", "trial_heads", "trial_rows"]

SHOWN = ("headline.offered_per_s", "headline.served_per_s", "latency.ttft_s.p99", "latency.tpot_s.p99")


def lines(found: Capacity, limits: str) -> list[tuple[str, str]]:
    """Return (label, text) pairs. limits: The SLO in words."""
    first = found.answers[0]
    at, beyond = first.at(first.load), first.at(first.next_load)
    if found.seeds:   # judged together: of the longest simulations
        mine = _longest_first(found)
        at = next((trial for trial in mine if trial.load == found.load and trial.seed == first.seed), None)
        beyond = next((trial for trial in mine if trial.load == found.beyond and trial.misses is not None), None)
    out = [("capacity", _headline(found, at)), ("keeps", limits)]
    several = len(found.answers) > 1 or len(found.seeds) > 1
    if at is not None:
        out.append((f"at {_load(found, at)}", _seed(at, several) + _figures(at)))
        out.append(("binds", _binds(at, beyond)))
        whole = beyond is not None and beyond.misses is not None and not is_ended(beyond.row)
        stops = limit_of_row((beyond if beyond is not None and whole else at).row)
        if stops is not None:
            out.append(("stops", stops))
    if beyond is not None and beyond.misses is not None:
        out.append((f"at {_load(found, beyond)}", f"{_seed(beyond, several)}misses: {beyond.misses}"))
    if not found.complete:
        out.append(("warning", f"the search ended after {counted(len(found.trials or first.trials), 'run')}; "
                               "more narrow it down: --runs"))
    if found.value is not None and several and not found.narrow:
        out.append(("warning", _wide(found)))
    return out


def _headline(found: Capacity, at: Trial | None) -> str:
    runs = counted(found.runs, "run")
    if found.value is None:
        tried = found.trials or [one for answer in found.answers if answer.load is None for one in answer.trials]
        loads = [one.load for one in tried] if found.beyond is None else [found.beyond]
        if found.over == "clients":
            return f"none: even {max(loads):g} {found.unit} miss the SLO ({runs})"
        if not any(settled(one.row) for one in tried):
            return f"none: no simulation settled ({runs}); make the workload longer"
        return f"none: already {found.base * min(loads):.4g} {found.unit} miss the SLO ({runs})"
    if found.over == "clients":
        each = ", ".join(f"{value:g}" for value in found.values)
        return f"{found.value:g} {found.unit} are the fewest ({runs}; by seed: {each})"
    if None in ([found.beyond] if found.seeds else [answer.next_load for answer in found.answers]):
        return f"at least {found.value:.4g} {found.unit}: no load that was tried misses the SLO ({runs})"
    text = f"{found.value:.4g} {found.unit}"
    if not found.seeds or at is None:
        return f"{text}, {runs}"
    low, high = ("?" if load is None else f"{found.base * load:.4g}" for load in (found.low, found.high))
    seeds = counted(len(found.seeds), "seed")
    requests = next(trial for trial in _longest_first(found) if trial.seed == at.seed).row["requests.total"]
    return f"{text} (95% interval {low} to {high}, {seeds} of {requests:,} requests), {runs}"


def _longest_first(found: Capacity) -> list[Trial]:
    """Return the simulations judged together, those of about one length in the order of their distance to the answer.
    """
    def key(trial: Trial) -> tuple[float, float]:   # a higher load has more requests in the same time
        return -round(math.log(trial.row["requests.total"] / trial.load), 1), abs(trial.load - (found.load or 0.0))

    return sorted(found.trials, key=key)


def _wide(found: Capacity) -> str:
    if found.over == "clients":
        return "the seeds differ; the most of them is given: a longer workload settles it"
    wide = "has no end" if found.half_width is None else f"is +-{found.half_width / (found.value or 1.0):.1%}"
    return (f"the 95% interval {wide} with {counted(len(found.seeds), 'seed')}; a longer workload, or more --seeds, "
            "narrow it down")


def _seed(trial: Trial, several: bool) -> str:
    return f"seed {trial.seed}: " if several else ""


def _load(found: Capacity, trial: Trial) -> str:
    return f"{found.base * trial.load:.4g}"


def _figures(trial: Trial) -> str:
    row = trial.row
    parts = [f"{FIGURES[f'{place}.p50'].name} {format_s(row[f'{place}.p50'])}, p99 {format_s(row[f'{place}.p99'])}"
             for place in ("latency.ttft_s", "latency.tpot_s") if row.get(f"{place}.p50") is not None]
    for key in ("answer", "output"):
        path = f"headline.per_million_{key}_tokens_dollars"
        parts += [FIGURES[path].dollars(f"{row[path]:.3g}")] if row.get(path) is not None else []
    return "; ".join(parts)


def _binds(at: Trial, beyond: Trial | None) -> str:
    """What binds at the answer, and beyond it where the answer itself leaves room."""
    first = binds_text(at.row)
    if beyond is None or binds_text(beyond.row) == first:
        return first
    return f"{first}; just beyond: {binds_text(beyond.row)}"


def trial_heads(found: Capacity) -> list[str]:
    """Return the heads of `trial_rows`."""
    return ["seed", found.unit, "requests", *(FIGURES[path].head or FIGURES[path].name for path in SHOWN), ""]


def trial_rows(found: Capacity) -> list[list[str]]:
    """Return a row per simulation: seed, load, rates, latencies, what it misses."""
    out = []
    for trials in (*(answer.trials for answer in found.answers), found.trials):
        for trial in sorted(trials, key=lambda trial: (trial.seed, trial.load, trial.row["requests.total"])):
            row: Row = trial.row
            requests = f"{row['requests.total']:,}"
            if is_ended(row):   # figures of a part
                row = {}
            out.append([
                str(trial.seed), _load(found, trial), requests,
                *("-" if row.get(key) is None else f"{row[key]:.4g}" for key in SHOWN[:2]),
                *(format_s(row.get(key)) for key in SHOWN[2:]),
                trial.misses or "meets",
            ])
    return out


def plain(found: Capacity) -> dict[str, Any]:
    """Return the answer as data for JSON."""
    return {
        "scenario": found.name, "over": found.over, "unit": found.unit, "value": found.value,
        "low": None if found.low is None else found.base * found.low,
        "high": None if found.high is None else found.base * found.high,
        "half_width": found.half_width, "narrow": found.narrow, "complete": found.complete, "runs": found.runs,
        "together": list(found.seeds), "seeds": [_plain_answer(found, answer) for answer in found.answers],
    }


def _plain_answer(found: Capacity, answer: Answer) -> dict[str, Any]:
    return {
        "seed": answer.seed, "value": None if answer.load is None else found.base * answer.load,
        "next": None if answer.next_load is None else found.base * answer.next_load, "complete": answer.complete,
        "trials": [{"value": found.base * trial.load, "misses": trial.misses} for trial in answer.trials],
    }
