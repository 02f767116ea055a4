"""Time series of a client: bin means of its runs' columns."""

from __future__ import annotations

import numpy as np

from hermes.arrays import FloatArray
from hermes.core.record import RunRecord
from hermes.results.figures.usage import window_ns
from hermes.results.measure import streamed
from hermes.units import NS_PER_S

__all__ = ["client_timeseries"]


def client_timeseries(
    record: RunRecord, client: int, bins: int, start_s: float | None = None, end_s: float | None = None
) -> dict[str, FloatArray]:
    """Return columns of shape (bins,) over equal bins of [start_s, end_s] (default: the window, see `usage`).

    t_s: Middle of the bin.
    stepping: Share of the bin with a run under way.
    hardware_stepping: The same without the serving stack's time.
    running, waiting, batch, kv_blocks: Means over the bin, zero while no run is under way (between runs a client with
    work waits for hardware or transfers only).
    steps_per_s, prefill_tokens_per_s, output_tokens_per_s: Rates.

    A run counts as constant from its start to its end, and so does the mean of its KV blocks.
    """
    window = window_ns(record)
    begin = window[0] / NS_PER_S if start_s is None else start_s
    stop = window[1] / NS_PER_S if end_s is None else end_s
    edges = np.linspace(begin, max(stop, begin), bins + 1)
    rows = np.flatnonzero(record.runs["client"] == client)
    runs = {name: column[rows].astype(np.float64) for name, column in record.runs.items()}
    start, end = runs["start_ns"] / NS_PER_S, runs["end_ns"] / NS_PER_S
    span, steps = end - start, runs["num_steps"]
    knots = np.stack((start, end), axis=1).ravel()  # in order: runs of a client do not overlap

    def per_second(totals: FloatArray) -> FloatArray:
        """Return means over the bins of a quantity that grows by `totals` evenly over each run."""
        if len(totals) == 0 or stop <= begin:
            return np.zeros(bins)
        after = np.cumsum(totals)
        grown = np.interp(edges, knots, np.stack((after - totals, after), axis=1).ravel())
        return np.diff(grown) / np.diff(edges)

    return {
        "t_s": (edges[:-1] + edges[1:]) / 2,
        "stepping": per_second(span),
        "hardware_stepping": per_second(span - runs["overhead_ns"] / NS_PER_S),
        "running": per_second(runs["running"] * span),
        "waiting": per_second(runs["waiting"] * span),
        "batch": per_second((runs["prefill_seqs"] + runs["decode_seqs"]) * span),
        "kv_blocks": per_second(runs["kv_block_ns"] / NS_PER_S),
        "steps_per_s": per_second(steps),
        "prefill_tokens_per_s": per_second(runs["prefill_tokens"] * steps),
        "output_tokens_per_s": per_second(streamed(record)[rows] * steps),
    }
