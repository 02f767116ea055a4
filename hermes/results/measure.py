"""Measured window: throughput and latency by kind of stage between two times, after a warm-up.

Counts are those of stages that ended in the window and of steps that ended in it, from the step log. Latencies are
those of the same stages, from their assignment to a client. The weighted rate adds up the kinds, each with a weight:
with 1.7 for generations and 1 for embeddings it is the normalised throughput of the Orthrus paper.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, model_validator

from hermes.arrays import IntArray
from hermes.config import ConfigModel, Duration
from hermes.core.record import RunRecord
from hermes.errors import InputError
from hermes.results.distribution import Distribution
from hermes.results.metrics import lost_within, tokens_within
from hermes.units import NS_PER_S, s_to_ns

__all__ = ["MeasureConfig", "busy_ns", "measure", "steps_within", "streamed"]


class MeasureConfig(ConfigModel):
    """Window of the run to measure, and weights of the kinds of stage."""

    start: Duration = 0.0
    """End of the warm-up."""
    until: Duration | None = None
    """End of the window. Left out, the end of the run."""
    weights: dict[str, Annotated[float, Field(ge=0, le=1e9)]] = Field(default_factory=dict)
    """Weight of a stage of each kind in the weighted rate; kinds left out count zero."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.until is not None and self.until <= self.start:
            raise InputError(f"a time after the start, {self.start:g} s", self.until, field="until")
        return self


def measure(record: RunRecord, config: MeasureConfig) -> dict[str, Any]:
    """Return the figures of the window for the summary; None for undefined ones.

    served: By kind of stage, the number that ended, per second, and their latency (assignment to end).
    embeddings_per_s, tokens_per_s: From the step log.
    energy_j, per_token_j: Joules of all clients, busy or not; None without a power.
    weighted_per_s: See the module's docstring.
    hardware_stepping: Share of the window in which the accelerators of the stepping clients worked (steps, without the
    serving stack's time), in total and of each client.
    """
    from hermes.results.figures.energy import energy_within

    start = s_to_ns(config.start)
    end = max(start, record.end_ns if config.until is None else min(s_to_ns(config.until), record.end_ns))
    seconds = (end - start) / NS_PER_S
    stages, runs = record.stages, record.runs
    inside = (stages["end_ns"] > start) & (stages["end_ns"] <= end) & record.started & record.kept
    served: dict[str, Any] = {}
    weighted = 0.0
    for code, kind in enumerate(record.stage_kinds):
        rows = inside & (stages["kind"] == code)
        if not (stages["kind"] == code).any():
            continue
        latency = Distribution((stages["end_ns"] - stages["assigned_ns"])[rows], divisor=NS_PER_S)
        served[kind] = {
            "completed": int(rows.sum()), "per_s": _per(int(rows.sum()), seconds), "latency_s": latency.stats(),
        }
        weighted += config.weights.get(kind, 0.0) * int(rows.sum())
    steps = steps_within(record, start, end)
    busy = busy_ns(record, start, end)
    stepping = [c for c in range(len(record.clients)) if (runs["client"] == c).any()]
    wasted = tokens_within(record, np.flatnonzero(~record.kept & (stages["output_tokens"] > 0)), start, end)
    wasted += lost_within(record, start, end)
    tokens, joules = int((streamed(record) * steps).sum()) - wasted, energy_within(record, start, end)
    return {
        "start_s": start / NS_PER_S, "until_s": end / NS_PER_S,
        "served": served,
        "embeddings_per_s": _per(int((runs["embedded"] * steps).sum()), seconds),
        "tokens_per_s": _per(tokens, seconds),
        "weighted_per_s": _per(weighted, seconds) if config.weights else None,
        "energy_j": joules, "per_token_j": None if joules is None or not tokens else joules / tokens,
        "hardware_stepping": _per(busy[stepping].sum() / NS_PER_S, seconds * len(stepping)),
        "hardware_stepping_of": {
            record.clients[c].name: _per(int(busy[c]) / NS_PER_S, seconds) for c in stepping
        },
    }


def streamed(record: RunRecord) -> IntArray:
    """Return the tokens of each step of the runs that users get, shape (runs,): all that were sampled but those of
    prefills whose decode client computes the first token again."""
    stages, runs = record.stages, record.runs
    codes = [code for code, kind in enumerate(record.stage_kinds) if kind == "prefill"]
    thrown = np.isin(stages["kind"], codes) & (stages["output_tokens"] == 0) & (stages["first_token_ns"] >= 0)
    if not thrown.any():
        return runs["sampled"]
    tokens = runs["sampled"].astype(np.int64)
    for client in np.unique(stages["client"][thrown]):
        mine = np.flatnonzero(runs["client"] == client)
        ends = stages["first_token_ns"][thrown & (stages["client"] == client)]
        np.subtract.at(tokens, mine[np.searchsorted(runs["end_ns"][mine], ends)], 1)   # a step with prompts is a run
    return tokens


def steps_within(record: RunRecord, start_ns: int, end_ns: int) -> IntArray:
    """Return, for each run, the steps that ended after `start_ns` and not after `end_ns`, shape (runs,)."""
    runs = record.runs
    ended = np.array([np.searchsorted(ends, [start_ns, end_ns], side="right") for ends in record.step_ends],
                     dtype=np.int64).reshape(-1, 2)[runs["client"]]
    first, count = runs["first_step"], runs["num_steps"]
    return np.asarray(np.clip(ended[:, 1] - first, 0, count) - np.clip(ended[:, 0] - first, 0, count), dtype=np.int64)


def busy_ns(record: RunRecord, start_ns: int, end_ns: int) -> IntArray:
    """Return the nanoseconds in which each client's accelerators ran steps within a window, shape (clients,). The
    serving stack delays them at the start of a step."""
    runs = record.runs
    begin, end = runs["start_ns"] + runs["overhead_ns"], runs["end_ns"]
    span = np.maximum(np.minimum(end, end_ns) - np.maximum(begin, start_ns), 0)
    out = np.zeros(len(record.clients), dtype=np.int64)
    np.add.at(out, runs["client"], span)
    return out


def _per(value: float, seconds: float) -> float | None:
    return float(value) / seconds if seconds else None
