"""Metrics of branches: several answers to one prompt.

A generation with branches has a row per branch in the table of stages (after a KV transfer, one for its prefill and one
for its decode), with a common `fork` and its own `branch`. These rows have the same prompt, waiting and computing: the
client computes the prompt once for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hermes.arrays import BoolArray, FloatArray, IntArray
from hermes.core.columns import constant
from hermes.core.record import RunRecord
from hermes.results.distribution import Distribution
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    from hermes.results.metrics import Answer, RequestMetrics

__all__ = ["BranchMetrics", "BranchesByRequest", "branch_metrics", "branch_summary", "branches_by_request",
           "generations", "once_per_generation"]

FAR = np.iinfo(np.int64).max


@dataclass(frozen=True)
class BranchMetrics:
    """One row per branch that has given all its tokens, by generation and branch; arrays of shape (branches,).

    Attributes:
        request, fork, branch: Its request, generation, and number in the generation.
        client: Client on which it ended.
        tokens: Output tokens.
        tpot_s: NaN for a single token.
        answer: Whether it is part of a completed request's answer.
    """

    request: IntArray
    fork: IntArray
    branch: IntArray
    client: IntArray
    tokens: IntArray
    first_token_ns: IntArray
    last_token_ns: IntArray
    tpot_s: FloatArray
    preemptions: IntArray
    answer: BoolArray


def branch_metrics(record: RunRecord, parts: Answer) -> BranchMetrics:
    """Return the branches of a run."""
    stages = record.stages
    rows = np.flatnonzero((stages["fork"] >= 0) & record.kept)
    rows = rows[np.lexsort((stages["end_ns"][rows], stages["branch"][rows], stages["fork"][rows]))]
    begins = np.ones(len(rows), dtype=bool)
    begins[1:] = (np.diff(stages["fork"][rows]) != 0) | (np.diff(stages["branch"][rows]) != 0)
    first = np.flatnonzero(begins)   # the first of each branch's one or two rows
    last = rows[np.append(first[1:], len(rows)) - 1] if len(rows) else rows
    whole = np.array([kind != "prefill" for kind in record.stage_kinds], dtype=bool)[stages["kind"][last]]

    def summed(name: str) -> IntArray:
        return np.add.reduceat(stages[name][rows], first)[whole] if len(rows) else rows

    begin, last = rows[first][whole], last[whole]
    begin = np.where(stages["output_tokens"][begin] > 0, begin, last)   # the prefill's token was thrown away
    tokens = summed("output_tokens")
    given, done = stages["first_token_ns"][begin], parts.last_token_ns[last]
    tpot = np.full(len(last), np.nan)
    several = tokens > 1
    tpot[several] = (done - given)[several] / (tokens[several] - 1) / NS_PER_S
    return BranchMetrics(
        request=stages["request"][last], fork=stages["fork"][last], branch=stages["branch"][last],
        client=stages["client"][last], tokens=tokens, first_token_ns=given, last_token_ns=done, tpot_s=tpot,
        preemptions=summed("preemptions"), answer=parts.member[last],
    )


@dataclass(frozen=True)
class BranchesByRequest:
    """Branches of the requests' answers, each column of shape (requests,).

    Attributes:
        branches: Number of branches; 1 without.
        tpot_s, tpot_worst_s: Mean and worst TPOT; NaN without branches, or for single tokens.
        spread_ns: Time between the first and the last completed branch; -1 without.
    """

    branches: IntArray
    tpot_s: FloatArray
    tpot_worst_s: FloatArray
    spread_ns: IntArray


def branches_by_request(found: BranchMetrics, num_requests: int) -> BranchesByRequest:
    """Aggregate the branches of each request's answer."""
    if not len(found.request):
        undefined = np.broadcast_to(np.nan, num_requests)
        return BranchesByRequest(constant(1, num_requests), undefined, undefined, constant(-1, num_requests))
    owner, done = found.request[found.answer], found.last_token_ns[found.answer]
    count = np.bincount(owner, minlength=num_requests)
    first = np.full(num_requests, FAR, dtype=np.int64)
    last = np.full(num_requests, -1, dtype=np.int64)
    np.minimum.at(first, owner, done)
    np.maximum.at(last, owner, done)
    rated = found.answer & ~np.isnan(found.tpot_s)
    owner, tpot = found.request[rated], found.tpot_s[rated]
    number = np.bincount(owner, minlength=num_requests)
    mean = np.full(num_requests, np.nan)
    np.divide(np.bincount(owner, weights=tpot, minlength=num_requests), number, out=mean, where=number > 0)
    worst = np.full(num_requests, -np.inf)
    np.maximum.at(worst, owner, tpot)
    worst[number == 0] = np.nan
    return BranchesByRequest(np.maximum(count, 1), mean, worst, np.where(count > 0, last - first, -1))


def once_per_generation(record: RunRecord) -> tuple[IntArray, IntArray, IntArray]:
    """Return (request, time waited, time computed) of all stages that were served, in ns. The branches of a generation
    at one client are one stage, from the first start to the last end."""
    stages = record.stages
    request, assigned, start, end = (stages[name] for name in ("request", "assigned_ns", "start_ns", "end_ns"))
    rows, generation, first = generations(record)
    if len(rows):
        begin, until = np.full(len(first), FAR, dtype=np.int64), np.full(len(first), -1, dtype=np.int64)
        np.minimum.at(begin, generation, start[rows])
        np.maximum.at(until, generation, end[rows])
        single = stages["fork"] < 0
        request, assigned = (np.append(column[single], column[first]) for column in (request, assigned))
        start, end = np.append(start[single], begin), np.append(end[single], until)
    served = start >= 0
    return request[served], (start - assigned)[served], (end - start)[served]


def generations(record: RunRecord) -> tuple[IntArray, IntArray, IntArray]:
    """Return (rows of branches, number of each row's generation at its client, one row of each such number)."""
    stages = record.stages
    rows = np.flatnonzero(stages["fork"] >= 0)
    key = stages["fork"][rows] * len(record.clients) + stages["client"][rows]
    _, first, generation = np.unique(key, return_index=True, return_inverse=True)
    return rows, generation, rows[first]


def branch_summary(found: BranchMetrics, metrics: RequestMetrics) -> dict[str, Any]:
    """Return `branches` of the summary, if there are any: statistics of those of completed requests."""
    if not found.answer.any():
        return {}
    mine = found.answer
    several = metrics.branch_spread_ns >= 0
    return {"branches": {
        "requests": int(several.sum()), "branches": int(mine.sum()),
        "output_tokens": Distribution(found.tokens[mine]).stats(),
        "duration_s": Distribution((found.last_token_ns - found.first_token_ns)[mine], divisor=NS_PER_S).stats(),
        "tpot_s": Distribution(found.tpot_s[mine]).stats(),
        "tpot_worst_s": Distribution(metrics.tpot_worst_s[several]).stats(),
        "spread_s": Distribution(metrics.branch_spread_ns[several], divisor=NS_PER_S).stats(),
    }}
