"""Headline figures: rates, and cost and energy per token, over the steady state (`hermes.results.figures.steady`).

Served rates count completions in the window, or those of the whole run. A whole run's rates are per second of the
workload's `duration`, if it has one and serves nine tenths of its requests in it: then offered, served and goodput are
of the same requests over the same time. The share within the SLO is of all requests that ended, as the verdict is, and
goodput is the served rate times the share of the completed ones: no window hides a request that was lost.

Tokens are those of the steps that end in the window. Energy and dollars are those of the window, busy or not; of a
whole run those of all the time held. The rate's interval comes from 20 batch means.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hermes.arrays import BoolArray, IntArray
from hermes.core.noise import T_OF_20
from hermes.core.record import STATUS_COMPLETED, STATUS_REJECTED, RunRecord
from hermes.results.figures.energy import energy_within, per_million
from hermes.results.figures.membership import dollars_within
from hermes.results.figures.steady import FLOW, MIN_REQUESTS, Window
from hermes.results.figures.usage import paid_ns
from hermes.results.measure import steps_within, streamed
from hermes.results.metrics import Answer, RequestMetrics, lost_within, tokens_within
from hermes.units import NS_PER_S

__all__ = ["headline_summary", "served_interval"]


RATE_BATCHES = 20


def headline_summary(record: RunRecord, parts: Answer, metrics: RequestMetrics, good: BoolArray | None,
                     apart: BoolArray, window: Window) -> dict[str, Any]:
    """Return `headline` of the summary.

    good: Requests within the SLO, shape (requests,); None without one.
    apart: Requests to which no limit applies.
    """
    start, end = window.start_ns, window.end_ns
    length = _length_ns(record, window) / NS_PER_S

    def per_s(count: float) -> float | None:
        return count / length if length > 0 else None

    # include the first arrival, which begins a whole run
    arrived = (record.arrival_ns >= 0) & _inside(record.arrival_ns, start, end)
    arrived |= record.arrival_ns == (start if window.kind == "whole" else -2)
    done = (record.finish_ns >= 0) & _inside(record.finish_ns, start, end)
    completed, lost = record.status == STATUS_COMPLETED, record.status == STATUS_REJECTED
    judged = int(((completed & ~apart) | lost).sum())
    output = _output_tokens(record, start, end)
    answers = output - _beside_answers(record, parts, start, end)
    total = output + int(metrics.computed_prompt_tokens[done].sum())
    low, high = served_interval(record, window) if window.kind != "whole" else (None, None)
    kept = None if good is None else int(good.sum())
    served = int(done.sum())
    held = paid_ns(record) if window.kind == "whole" else (start, end)
    joules, dollars = energy_within(record, *held), dollars_within(record, *held)
    return {
        "window": window.kind, "why": window.why, "start_s": start / NS_PER_S, "until_s": end / NS_PER_S,
        **({"over_s": length} if window.kind == "whole" and record.offered.until_ns >= 0 else {}),
        "stable": window.stable, **({"changes": True} if window.changes else {}),
        "offered_per_s": _offered(record) if window.kind == "whole" else per_s(int(arrived.sum())),
        "served_per_s": per_s(served), "served_low_per_s": low, "served_high_per_s": high,
        "answer_tokens_per_s": per_s(answers), "output_tokens_per_s": per_s(output), "total_tokens_per_s": per_s(total),
        "goodput_per_s": None if kept is None else per_s(kept * served / max(int(completed.sum()), 1)),
        "goodput_share": None if kept is None or not judged else kept / judged,
        "per_output_token_j": None if joules is None or not output else joules / output,
        "output_tokens_per_j": None if not joules else output / joules,
        **per_million(dollars, answers, output, total),
    }


def _length_ns(record: RunRecord, window: Window) -> int:
    """Return the time to which rates refer."""
    given = record.offered
    if window.kind != "whole" or given.until_ns < 0:
        return window.end_ns - window.start_ns
    until = _period_end_ns(record)
    late, came = int((record.finish_ns > until).sum()), int((record.arrival_ns >= 0).sum())
    if given.start_ns < 0 or (window.stable is False and not window.changes) or late > max(
            FLOW * came, 3.0 * math.sqrt(came)):
        return max(window.end_ns, until) - (window.start_ns if given.start_ns < 0 else given.start_ns)
    return until - given.start_ns


def _period_end_ns(record: RunRecord) -> int:
    """Return the end of the time in which requests come: later turns may come after the `duration`."""
    return max(int(record.arrival_ns.max()), record.offered.until_ns)


def _offered(record: RunRecord) -> float | None:
    """Return arrivals per second over the time of arrivals; None if they are simultaneous."""
    times = record.arrival_ns[record.arrival_ns >= 0]
    if record.offered.start_ns >= 0 and len(times):
        span = _period_end_ns(record) - record.offered.start_ns
        return len(times) * NS_PER_S / span if span else None
    span = int(times.max() - times.min()) if len(times) else 0
    return (len(times) - 1) * NS_PER_S / span if span else None


def _inside(times: IntArray, start: int, end: int) -> BoolArray:
    return np.asarray((times > start) & (times <= end))


def _output_tokens(record: RunRecord, start: int, end: int) -> int:
    """Return the tokens of steps that end in the window, and of stages without steps that end in it, without those of
    attempts that came to nothing."""
    stages = record.stages
    stepless = (stages["first_step"] < 0) & (stages["first_token_ns"] >= 0) & _inside(stages["end_ns"], start, end)
    wasted = tokens_within(record, np.flatnonzero(~record.kept & (stages["output_tokens"] > 0)), start, end)
    wasted += lost_within(record, start, end)
    return int((streamed(record) * steps_within(record, start, end)).sum()) + int(
        stages["output_tokens"][stepless & record.kept].sum()) - wasted


def _beside_answers(record: RunRecord, parts: Answer, start: int, end: int) -> int:
    """Return the tokens of the window that are no answer's: of other stages, and of requests that were given up. A
    stage that the end of the simulation cuts off leaves no row, and counts as an answer."""
    others = np.flatnonzero(~parts.member & record.kept & (record.stages["output_tokens"] > 0))
    return tokens_within(record, others, start, end)


def served_interval(record: RunRecord, window: Window) -> tuple[float | None, float | None]:
    """Return the served rate's 95% interval, by batch means."""
    edges = np.linspace(window.start_ns, window.end_ns, RATE_BATCHES + 1)
    width = float(edges[1] - edges[0]) / NS_PER_S
    counts = np.histogram(record.finish_ns[record.finish_ns >= 0], edges)[0]
    if width <= 0 or counts.sum() < MIN_REQUESTS:
        return None, None
    half = T_OF_20 * float(counts.std(ddof=1)) / math.sqrt(RATE_BATCHES)
    mean = float(counts.mean())
    return max(mean - half, 0.0) / width, (mean + half) / width
