"""Figures that the study extracts from each point. An edit here simulates the points again."""

from __future__ import annotations

from typing import Any

import numpy as np

from hermes.core.record import RunRecord
from hermes.results import Results
from hermes.results.figures.usage import client_usages
from hermes.units import NS_PER_S

__all__ = ["idle_while_queued", "router_figures"]

LONG_NS = NS_PER_S   # a request queues where it has waited for a second: each waits for the step under way


def router_figures(results: Results) -> dict[str, Any]:
    """Return what a router did.

    - hits, believed: Share of the prompt tokens that was cached, and that the router believed to be (None: it believes
      nothing); false_share: share of the requests whose belief was more than 64 tokens off.
    - ttft_mean, ttft_p50, ttft_p99: s.
    - top_share: Share of the requests at the replica with most of them; requests_most, busy_most: requests, and seconds
      in steps that compute prompts, of the replica with most of them over the mean. (Some answer is under way at any
      time, so that seconds in all steps are equal.)
    - idle_queued: See `idle_while_queued`.
    """
    summary, record = results.summary, results.record
    ttft, believed = summary["latency"]["ttft_s"], summary.get("believed")
    requests = np.bincount(record.stages["client"], minlength=len(record.clients))
    busy = np.array([usage.prefill_ns for usage in client_usages(record)], dtype=float)
    return {
        "completed": summary["requests"]["completed"], "hits": summary["cache"]["hit_rate"],
        "believed": None if believed is None else believed["believed_tokens"] / believed["prompt_tokens"],
        "false_share": None if believed is None else believed["false_share"],
        "ttft_mean": ttft["mean"], "ttft_p50": ttft["p50"], "ttft_p99": ttft["p99"],
        "top_share": requests.max() / requests.sum(), "requests_most": requests.max() / requests.mean(),
        "busy_most": busy.max() / busy.mean(), "idle_queued": idle_while_queued(record),
    }


def idle_while_queued(record: RunRecord) -> float:
    """Return the share of the replicas' time, up to the last arrival, in which one has no request at all while another
    has one that has waited for a second."""
    stages, replicas = record.stages, len(record.clients)
    client, begin, start, end = (stages[name] for name in ("client", "assigned_ns", "start_ns", "end_ns"))
    long = start - begin > LONG_NS
    queued, away = np.flatnonzero(long), replicas   # column of the requests that queue
    times = np.concatenate((begin, end, begin[queued] + LONG_NS, start[queued]))
    columns = np.concatenate((client, client, np.full(2 * len(queued), away)))
    changes = np.concatenate((np.ones(len(begin)), -np.ones(len(end)), np.ones(len(queued)), -np.ones(len(queued))))
    order = np.argsort(times, kind="stable")
    first, last = int(begin.min()), int(record.arrival_ns.max())
    idle = np.full(replicas, True)
    counts, total, before = np.zeros(replicas + 1, dtype=np.int64), 0, first
    for time, column, change in zip(times[order].tolist(), columns[order].tolist(), changes[order].tolist(),
                                    strict=True):
        if time > last:
            break
        if counts[away]:
            total += (time - before) * int(idle.sum())
        before = time
        counts[column] += int(change)
        if column != away:
            idle[column] = counts[column] == 0
    if counts[away]:
        total += (last - before) * int(idle.sum())
    return total / (replicas * (last - first))
