"""Headline figures: rates, and cost and energy per token, over the steady state (`hermes.results.steady`).

Served rates count completions in the window; tokens are those of the steps that end in it. Energy and dollars are those
of the window, busy or not. The rate's interval comes from 20 batch means.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hermes.arrays import BoolArray, IntArray
from hermes.core.noise import T_OF_20
from hermes.core.record import RunRecord
from hermes.results.energy import energy_within, per_million
from hermes.results.measure import steps_within, streamed
from hermes.results.membership import dollars_within
from hermes.results.metrics import Answer, RequestMetrics, tokens_within
from hermes.results.steady import MIN_REQUESTS, Window
from hermes.units import NS_PER_S

__all__ = ["headline_summary"]


RATE_BATCHES = 20


def headline_summary(record: RunRecord, parts: Answer, metrics: RequestMetrics, good: BoolArray | None,
                     apart: BoolArray, window: Window) -> dict[str, Any]:
    """Return `headline` of the summary.

    good: Requests within the SLO, shape (requests,); None without one.
    apart: Requests to which no limit applies.
    """
    start, end = window.start_ns, window.end_ns
    length = (end - start) / NS_PER_S

    def per_s(count: float) -> float | None:
        return count / length if length > 0 else None

    # include the first arrival, which begins a whole run
    arrived = (record.arrival_ns >= 0) & _inside(record.arrival_ns, start, end)
    arrived |= record.arrival_ns == (start if window.kind == "whole" else -2)
    done = (record.finish_ns >= 0) & _inside(record.finish_ns, start, end)
    refused = int((arrived & np.isin(np.arange(len(arrived)), list(record.reject_reasons))).sum())
    gone = int((done & ~apart).sum()) + refused
    output = _output_tokens(record, start, end)
    answers = output - _beside_answers(record, parts, start, end)
    total = output + int(metrics.computed_prompt_tokens[done].sum())
    low, high = _interval(record, window) if window.kind != "whole" else (None, None)
    kept = None if good is None else int((good & done).sum())
    joules, dollars = energy_within(record, start, end), dollars_within(record, start, end)
    return {
        "window": window.kind, "why": window.why, "start_s": start / NS_PER_S, "until_s": end / NS_PER_S,
        "stable": window.stable,
        "offered_per_s": _offered(record) if window.kind == "whole" else per_s(int(arrived.sum())),
        "served_per_s": per_s(int(done.sum())), "served_low_per_s": low, "served_high_per_s": high,
        "answer_tokens_per_s": per_s(answers), "output_tokens_per_s": per_s(output), "total_tokens_per_s": per_s(total),
        "goodput_per_s": None if kept is None else per_s(kept),
        "goodput_share": None if kept is None or not gone else kept / gone,
        "per_output_token_j": None if joules is None or not output else joules / output,
        "output_tokens_per_j": None if not joules else output / joules,
        **per_million(dollars, answers, output, total),
    }


def _offered(record: RunRecord) -> float | None:
    """Return arrivals per second over the time of arrivals; None if they are simultaneous."""
    times = record.arrival_ns[record.arrival_ns >= 0]
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
    return int((streamed(record) * steps_within(record, start, end)).sum()) + int(
        stages["output_tokens"][stepless & record.kept].sum()) - wasted


def _beside_answers(record: RunRecord, parts: Answer, start: int, end: int) -> int:
    """Return the tokens of the window that are no answer's: of other stages, and of requests that were given up. A
    stage that the end of the simulation cuts off leaves no row, and counts as an answer."""
    others = np.flatnonzero(~parts.member & record.kept & (record.stages["output_tokens"] > 0))
    return tokens_within(record, others, start, end)


def _interval(record: RunRecord, window: Window) -> tuple[float | None, float | None]:
    """Return the served rate's 95% interval, by batch means."""
    edges = np.linspace(window.start_ns, window.end_ns, RATE_BATCHES + 1)
    width = float(edges[1] - edges[0]) / NS_PER_S
    counts = np.histogram(record.finish_ns[record.finish_ns >= 0], edges)[0]
    if width <= 0 or counts.sum() < MIN_REQUESTS:
        return None, None
    half = T_OF_20 * float(counts.std(ddof=1)) / math.sqrt(RATE_BATCHES)
    mean = float(counts.mean())
    return max(mean - half, 0.0) / width, (mean + half) / width
