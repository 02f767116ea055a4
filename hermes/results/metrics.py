"""Request metrics: TTFT, TPOT, E2E and other columns from a `RunRecord`, and the pooled inter-token latencies.

**Answer.** A request may run several LLM stages (a rewritten query, a judge); its user reads the tokens of the last.
The answer is that stage and the stages parallel to it: all token-giving stages that had not ended when the last stage
other than a `decode` was assigned to its client. So it is one `generate` stage, or a `prefill` and the `decode` that
follows it on another client, or several parallel branches. Stages that the request does not wait for (in the
background, or still under way when it completes) are never part of it.

**First token.** Of a prefill and a decode, the scenario's `first_token` says which gives the user's first token. With
`decode` the prefill's token is thrown away: its stage has no output tokens, and only `first_token_ns` keeps its time.

    TTFT = first token of the answer that its user gets - arrival
    prefill TTFT = first token of the answer's prefill, whether the user gets it or not - arrival
    TPOT = (last token - first token) / (tokens - 1), of the stage that ends last; NaN for a single token. Of a
           generation with branches: the mean over its branches (and the worst, `tpot_worst_s`)
    ITL  = gaps between consecutive tokens of each branch, including the KV transfer from prefill to decode
    E2E  = completion - arrival
    queue = sum over stages (the branches of a generation are one) of (start - assigned), less the concurrent transfers
            to that client (a decode stage is assigned before its KV moves)
    communication = sum of the transfers

A user has a token at the end of its step, plus the delay of its client's front end (`after`). The delay is equal for
all tokens, so it is in TTFT and E2E, and in neither TPOT nor ITL.

Latencies are of completed requests; others have NaN. A rejected request of which no stage ever started has no queueing
and no compute time either.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hermes.arrays import BoolArray, FloatArray, IntArray
from hermes.core.columns import compact, constant
from hermes.core.record import ATTEMPT_OUTCOMES, STATUS_COMPLETED, STATUS_REJECTED, RunRecord
from hermes.results.branches import branch_metrics, branches_by_request, once_per_generation
from hermes.results.distribution import Distribution, WeightedSample
from hermes.units import NS_PER_S

__all__ = ["Answer", "RequestMetrics", "answer", "attempts_moved", "itl", "lost_within", "over_ns", "parts_of",
           "request_metrics", "rows_before", "sent_tokens", "stage_token_steps", "token_times_ns", "tokens_within",
           "transfers_of_stages"]


_FAR = np.iinfo(np.int64).max
_MIGRATED = ATTEMPT_OUTCOMES.index("migrated")
Steps = npt.NDArray[np.integer]
Parts = dict[int, tuple[Steps, Steps]]
"""Stage row of an attempt that migrated -> its client's steps of the tokens that the user has, and of those lost."""


@dataclass(frozen=True)
class Answer:
    """Stages that gave the tokens the user reads. Arrays are per stage row.

    Attributes:
        member: Whether the stage is part of a completed request's answer.
        prefill: Whether it computes the prompt of an answer that another client decodes.
        last_token_ns: Time of the stage's last token; -1 for stages without tokens.
        handover, handover_ns: Rows of the `decode` members that continue a prefill's token, and times of that token.
    """

    member: BoolArray
    prefill: BoolArray
    last_token_ns: IntArray
    handover: IntArray
    handover_ns: IntArray


@dataclass(frozen=True)
class RequestMetrics:
    """Per-request columns, each of shape (requests,); times in nanoseconds, -1 where undefined, TPOT in seconds."""

    first_token_ns: IntArray
    last_token_ns: IntArray
    ttft_ns: IntArray
    prefill_ttft_ns: IntArray    # of the answer's prefill on another client; -1 without
    e2e_ns: IntArray
    tpot_s: FloatArray           # NaN where undefined
    queue_ns: IntArray
    compute_ns: IntArray
    communication_ns: IntArray
    emitted_tokens: IntArray     # by all LLM stages of the request
    answer_tokens: IntArray      # those of its answer; 0 without one
    computed_prompt_tokens: IntArray  # prompt tokens of all LLM stages, with cached ones, transferred ones once
    preemptions: IntArray
    cached_tokens: IntArray
    stages: IntArray             # rows: each branch counts
    branches: IntArray           # of its answer; 1 without
    tpot_worst_s: FloatArray     # of its branches; TPOT without
    branch_spread_ns: IntArray   # last branch done - first; -1 without


def _kind_mask(record: RunRecord, kind: str) -> BoolArray:
    codes = [i for i, name in enumerate(record.stage_kinds) if name == kind]
    return np.isin(record.stages["kind"], codes)


def _by_client(record: RunRecord, rows: IntArray) -> list[tuple[int, IntArray]]:
    """Group `rows` of the stage table by client, without one pass per client."""
    client = record.stages["client"][rows]
    order = np.argsort(client, kind="stable")
    bounds = np.searchsorted(client[order], np.arange(len(record.clients) + 1))
    return [(c, rows[order[a:b]]) for c, (a, b) in enumerate(pairwise(bounds)) if b > a]


def _last_token_ns(record: RunRecord) -> IntArray:
    stages = record.stages
    gives = stages["first_token_ns"] >= 0
    last = np.where(gives, stages["end_ns"], -1)  # for clients without steps: a stage's last token is its end
    for client, rows in _by_client(record, np.flatnonzero(gives & (stages["last_step"] >= 0))):
        last[rows] = record.step_ends[client][stages["last_step"][rows]]
    for row, (sent, _) in parts_of(record).items():
        if len(sent):
            last[row] = record.step_ends[int(stages["client"][row])][sent[-1]]
    return last


def answer(record: RunRecord) -> Answer:
    """Find every completed request's answer (see the module's docstring)."""
    stages, n = record.stages, len(record.arrival_ns)
    request = stages["request"]
    decode = _kind_mask(record, "decode")
    over, begun = over_ns(record), begun_ns(record)
    computed = (stages["first_token_ns"] >= 0) & (record.status == STATUS_COMPLETED)[request]
    computed &= over <= record.finish_ns[request]
    computed[record.background] = False
    computed &= record.kept
    handed = np.full(n, -1, dtype=np.int64)
    heads = computed & ~decode
    np.maximum.at(handed, request[heads], begun[heads])
    computed &= (over > handed[request]) | (begun == handed[request])
    member, last = computed & (sent_tokens(record) > 0), _last_token_ns(record)
    prefill = computed & _kind_mask(record, "prefill")
    return Answer(member, prefill, last, *_handovers(record, member, decode, last))


def _handovers(
    record: RunRecord, member: BoolArray, decode: BoolArray, last: IntArray
) -> tuple[IntArray, IntArray]:
    """Return the decode members, and the time of the prefill token that each continues.

    With several prefills in one answer the k-th assigned decode continues the k-th prefill that ended (the last one if
    there are fewer prefills). That many prefills have ended by then, so no gap is negative. Where attempts migrated,
    each decode continues the prefill of its own.
    """
    request, n = record.stages["request"], len(record.arrival_ns)
    first = np.flatnonzero(member & _kind_mask(record, "prefill"))
    first = first[np.lexsort((last[first], request[first]))]
    count = np.bincount(request[first], minlength=n)
    rows = np.flatnonzero(member & decode)
    rows = rows[count[request[rows]] > 0]
    rows = rows[np.lexsort((record.stages["assigned_ns"][rows], request[rows]))]
    owner = request[rows]
    rank = np.arange(len(rows)) - np.searchsorted(owner, owner)
    start = np.cumsum(count) - count
    prefills = first[start[owner] + np.minimum(rank, count[owner] - 1)]
    if len(origins(record)):
        of_attempt = dict(zip(record.stage_attempts[first].tolist(), first.tolist(), strict=True))
        prefills = np.array([of_attempt.get(attempt, row) for attempt, row in zip(
            record.stage_attempts[rows].tolist(), prefills.tolist(), strict=True)], dtype=np.int64)
    return rows, last[prefills]


def _summed(request: IntArray, values: IntArray, n: int) -> IntArray:
    # float64 holds these sums exactly: they stay below 2**53 ns (104 days) and 2**53 tokens
    if not len(request):
        return constant(0, n)
    return compact(np.bincount(request, weights=values, minlength=n).astype(np.int64))


def transfers_of_stages(record: RunRecord) -> tuple[IntArray, IntArray]:
    """Return (rows of the transfer table, row of the stage whose data each brought). Others are left out.

    That stage is the request's last one assigned to that client before the transfer started.
    """
    sent, stages, n = record.transfers, record.stages, len(record.clients) + 1  # + 1: -1 stands for no client
    if len(sent["request"]) == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    where, towards = (table["request"] * n + table[end] + 1 for table, end in ((stages, "client"), (sent, "dst")))
    key = np.concatenate((where, towards))
    time = np.concatenate((stages["assigned_ns"], sent["start_ns"]))
    is_transfer = np.arange(len(key)) >= len(where)
    order = np.lexsort((is_transfer, time, key))  # at equal times a stage comes before its transfer
    latest = np.maximum.accumulate(np.where(is_transfer[order], -1, np.arange(len(order))))
    at = np.flatnonzero(is_transfer[order])
    transfer, found = order[at] - len(where), latest[at]
    stage = order[found]
    same = (found >= 0) & (key[stage] == towards[transfer])
    return transfer[same], stage[same]


def _transfers_within_waits(record: RunRecord) -> IntArray:
    """Return how much of each transfer lies between assignment and start of its stage, shape (transfers,)."""
    sent, stages = record.transfers, record.stages
    transfer, stage = transfers_of_stages(record)
    upto = np.minimum(sent["end_ns"][transfer], stages["start_ns"][stage])
    out = np.zeros(len(sent["request"]), dtype=np.int64)
    out[transfer] = np.maximum(upto - sent["start_ns"][transfer], 0)
    return out


def request_metrics(record: RunRecord, parts: Answer) -> RequestMetrics:
    """Return the columns of `RequestMetrics`."""
    stages, n = record.stages, len(record.arrival_ns)
    request = stages["request"]
    first, last, tpot = _token_times(record, parts)
    branches = branches_by_request(branch_metrics(record, parts), n)
    worst = tpot
    if (branches.spread_ns >= 0).any():
        tpot, worst = (np.where(branches.spread_ns >= 0, theirs, tpot)
                       for theirs in (branches.tpot_s, branches.tpot_worst_s))

    llm = (stages["first_token_ns"] >= 0) & record.kept   # what else was emitted is wasted
    # a fetch's finds are in its generation's cached tokens, too: only generations count
    prompted = llm & ~_kind_mask(record, "decode") & (stages["branch"] <= 0)
    prompted[[*in_chain(record)]] = False   # its prompt was that of an attempt before
    ran = (record.status != STATUS_REJECTED) | (np.bincount(request[record.started], minlength=n) > 0)
    sent, given = record.transfers, sent_tokens(record)
    stage_owner, waited, computed = once_per_generation(record)
    queue = _summed(stage_owner, waited, n) - _summed(sent["request"], _transfers_within_waits(record), n)
    del waited
    compute = np.where(ran, _summed(stage_owner, computed, n), -1)
    del stage_owner, computed
    return RequestMetrics(
        first_token_ns=first,
        last_token_ns=last,
        ttft_ns=np.where(last >= 0, first - record.arrival_ns, -1),
        prefill_ttft_ns=_prefill_ttft_ns(record, np.flatnonzero(parts.prefill)),
        e2e_ns=np.where(record.status == STATUS_COMPLETED, record.finish_ns - record.arrival_ns, -1),
        tpot_s=tpot,
        queue_ns=np.where(ran, np.maximum(queue, 0, out=queue), -1),
        compute_ns=compute,
        communication_ns=_summed(sent["request"], sent["end_ns"] - sent["start_ns"], n),
        emitted_tokens=_summed(request[llm], given[llm], n),
        answer_tokens=_summed(request[parts.member], given[parts.member], n),
        computed_prompt_tokens=_summed(request[prompted], stages["prompt_tokens"][prompted], n),
        preemptions=_summed(request, stages["preemptions"], n),
        cached_tokens=_summed(request[prompted], stages["cached_tokens"][prompted], n),
        stages=compact(np.bincount(request, minlength=n)),
        branches=branches.branches,
        tpot_worst_s=worst,
        branch_spread_ns=branches.spread_ns,
    )


def _token_times(record: RunRecord, parts: Answer) -> tuple[IntArray, IntArray, FloatArray]:
    """Return the times of each request's first and last token, -1 without, and its TPOT as without branches."""
    stages, n, chain = record.stages, len(record.arrival_ns), in_chain(record)
    request = stages["request"]
    rows = np.flatnonzero(parts.member)
    owner, ends = request[rows], parts.last_token_ns[rows]
    first = np.full(n, _FAR, dtype=np.int64)
    np.minimum.at(first, owner, stages["first_token_ns"][rows])
    begun = _begun_before(record, rows)
    np.minimum.at(first, request[begun], stages["first_token_ns"][begun])
    last = np.full(n, -1, dtype=np.int64)
    np.maximum.at(last, owner, ends)
    answered = last >= 0
    first[~answered] = -1

    # the branch that ends last: its own tokens, and the token that its prefill gave before
    is_handover = np.zeros(len(request), dtype=np.bool_)
    is_handover[parts.handover] = True
    final = rows[ends == last[owner]]
    tokens, given = np.ones(n, dtype=np.int64), sent_tokens(record)
    np.maximum.at(tokens, request[final], given[final] + is_handover[final])
    for row in final.tolist() if chain else ():
        if row in chain:   # with the tokens of the attempts before, all of its call
            calls = record.asked_for
            tokens[request[row]] = given[parts.member & (calls == calls[row])].sum()
    tpot = np.full(n, np.nan)
    several = answered & (tokens > 1)
    tpot[several] = (last - first)[several] / (tokens[several] - 1) / NS_PER_S

    if any(record.after_ns) or record.late_ns:
        first, last = _delivered(record, rows, owner, ends, answered)
    if record.late_ns:
        tpot[several] = (last - first)[several] / (tokens[several] - 1) / NS_PER_S
    return first, last, tpot


def _prefill_ttft_ns(record: RunRecord, prefills: IntArray) -> IntArray:
    if not len(prefills):
        return constant(-1, len(record.arrival_ns))
    first = np.full(len(record.arrival_ns), _FAR, dtype=np.int64)
    given = record.stages["first_token_ns"][prefills] + record.sent_after(prefills)
    np.minimum.at(first, record.stages["request"][prefills], given)
    return np.where(first < _FAR, first - record.arrival_ns, -1)


def _begun_before(record: RunRecord, rows: IntArray) -> IntArray:
    """Return the rows of attempts that came to nothing after their user had the first token, at what these rows then
    answered, in this offer of the request or in one before."""
    lost = np.flatnonzero(~record.kept & (record.stages["output_tokens"] > 0))
    if not len(lost):
        return lost
    over, asked = record.attempts["end_ns"][record.stage_attempts[lost]], record.asked_for
    lost = lost[record.stages["first_token_ns"][lost] + record.sent_after(lost) <= over]
    return lost[np.isin(asked[lost], asked[rows])]


def _delivered(
    record: RunRecord, rows: IntArray, owner: IntArray, ends: IntArray, answered: BoolArray
) -> tuple[IntArray, IntArray]:
    """Return when the users of answers (rows, of requests `owner`) have the first and the last token."""
    first = np.full(len(answered), _FAR, dtype=np.int64)
    np.minimum.at(first, owner, record.stages["first_token_ns"][rows] + record.sent_after(rows))
    begun = _begun_before(record, rows)
    after = record.sent_after(begun)
    np.minimum.at(first, record.stages["request"][begun], record.stages["first_token_ns"][begun] + after)
    last = np.full(len(answered), -1, dtype=np.int64)
    np.maximum.at(last, owner, ends + record.sent_after(rows, "last_step"))
    first[~answered] = -1
    return first, last


def itl(record: RunRecord, parts: Answer, select: BoolArray | None = None) -> Distribution:
    """Return pooled inter-token latencies in seconds, of all answers or of the requests in `select`, shape (requests,).

    The interval between two of a client's steps is a gap of every stage that got a token from both. A running sum over
    the stages' first and last steps counts these stages. Stages with skipped steps are counted by client, KV transfers
    one by one.
    """
    stages = record.stages
    chosen = parts.member if select is None else parts.member & select[stages["request"]]
    regular = chosen & (stages["output_tokens"] > 1) & (stages["first_step"] >= 0)
    irregular = np.fromiter(record.gaps, dtype=np.int64, count=len(record.gaps))
    moved = parts_of(record)
    irregular = np.union1d(irregular, np.array([*moved], dtype=np.int64))
    regular[irregular] = False
    sample = WeightedSample(divisor=NS_PER_S)
    for client, rows in _by_client(record, np.flatnonzero(regular)):
        ends = record.user_ends(client)
        begin, stop = stages["first_step"][rows], stages["last_step"][rows]
        ticks = _decode_steps(record, client)
        if ticks is not None:  # numbered by these steps, tokens after the first are consecutive
            ends = ends[ticks]
            stop = np.searchsorted(ticks, stop, side="right") - 1
            begin = stop - stages["output_tokens"][rows] + 2
            sample.add(ends[begin] - stages["first_token_ns"][rows])
        # interval j lies between steps j and j + 1: a stage counts from its first step to the one before its last
        tokens = np.cumsum(np.bincount(begin, minlength=len(ends)) - np.bincount(stop, minlength=len(ends)))
        used = np.flatnonzero(tokens)
        sample.add(ends[used + 1] - ends[used], tokens[used])
    for client, rows in _by_client(record, irregular[chosen[irregular]]):
        # pooled by client: sequences of a batch share most of their gaps
        steps = [moved[row][0] if row in moved else record.gaps[row] for row in rows.tolist()]
        between = np.diff(record.user_ends(client)[np.concatenate(steps)])
        last = np.cumsum([len(part) for part in steps])[:-1] - 1
        sample.add(np.delete(between, last))
    continued = chosen[parts.handover]
    sample.add(stages["first_token_ns"][parts.handover[continued]] - parts.handover_ns[continued])
    sample.add(_across_migrations(record, parts, chosen))
    return sample.distribution()


def _across_migrations(record: RunRecord, parts: Answer, chosen: BoolArray) -> IntArray:
    """Return the gaps between the last token of an attempt and the first one of that which goes on with its tokens."""
    attempts, before = record.stage_attempts, origins(record)
    gaps = []
    rows = np.flatnonzero(chosen & (np.append(before, -1)[attempts] >= 0)) if len(before) else ()
    for attempt in np.unique(attempts[rows]).tolist() if len(rows) else ():
        mine = rows[attempts[rows] == attempt]
        given = record.stages["first_token_ns"][mine] + record.sent_after(mine)
        others = np.flatnonzero(parts.member & (attempts == before[attempt]))
        if len(others):
            had = parts.last_token_ns[others] + record.sent_after(others, "last_step")
            gaps.append(int(given.min() - had.max()))
    return np.array(gaps, dtype=np.int64)


def _decode_steps(record: RunRecord, client: int) -> IntArray | None:
    return record.decode_steps[client] if record.decode_steps else None


def stage_token_steps(record: RunRecord, row: int) -> IntArray:
    """Return the client's step indices that gave a stage's tokens, shape (tokens,); empty for a client without steps.
    """
    if row in record.gaps:
        return record.gaps[row].astype(np.int64)
    stages = record.stages
    first, last, tokens = (int(stages[name][row]) for name in ("first_step", "last_step", "output_tokens"))
    if first < 0 or not tokens:
        return np.empty(0, dtype=np.int64)
    ticks = _decode_steps(record, int(stages["client"][row]))
    if ticks is None:
        return np.arange(first, last + 1)
    stop = int(np.searchsorted(ticks, last, side="right"))
    return np.concatenate(([first], ticks[stop - (tokens - 1):stop]))


def tokens_within(record: RunRecord, rows: IntArray, start_ns: int, end_ns: int) -> int:
    """Return the tokens of some stages that were given after `start_ns` and not after `end_ns`."""
    count, stages = 0, record.stages
    for client, mine in _by_client(record, rows):
        low, high = np.searchsorted(record.step_ends[client], (start_ns, end_ns), side="right")
        ticks = _decode_steps(record, client)
        first, last, tokens = (stages[name][mine] for name in ("first_step", "last_step", "output_tokens"))
        ended = (stages["end_ns"][mine] > start_ns) & (stages["end_ns"][mine] <= end_ns)
        irregular = np.fromiter((row in record.gaps for row in mine.tolist()), dtype=bool, count=len(mine))
        for row in mine[irregular].tolist():
            steps = record.gaps[row]
            count += int(((steps >= low) & (steps < high)).sum())
        count += int(tokens[(first < 0) & ended & ~irregular].sum())   # of clients without steps
        steady = (first >= 0) & ~irregular
        first, last, tokens = first[steady], last[steady], tokens[steady]
        if ticks is None:
            inside = np.clip(np.minimum(last + 1, high) - np.maximum(first, low), 0, None)
        else:   # after the first token, those of the last ticks
            stop, (below, above) = np.searchsorted(ticks, last, side="right"), np.searchsorted(ticks, (low, high))
            inside = np.clip(np.minimum(stop, above) - np.maximum(stop - (tokens - 1), below), 0, None)
            inside = inside + ((first >= low) & (first < high))
        count += int(inside.sum())
    return count


def token_times_ns(record: RunRecord, rows: npt.NDArray[Any]) -> IntArray:
    """Return the token times of some stages, sorted, shape (tokens,)."""
    times = [record.step_ends[int(record.stages["client"][row])][stage_token_steps(record, int(row))] for row in rows]
    return np.sort(np.concatenate(times)) if times else np.empty(0, dtype=np.int64)


# -- answers that several clients gave one after the other, since a gateway migrated them ----------------------------
#
# An attempt that migrated counts as one that was completed (`RunRecord.kept`), with the tokens that its user had when
# it was over. What its engine gave later, or its front end did not send any more, is lost.


def origins(record: RunRecord) -> IntArray:
    """Return for each attempt the one with whose tokens it goes on, -1 for none; empty where nothing migrated."""
    table = record.migrations
    if not table or not len(table["to"]):
        return np.empty(0, dtype=np.int64)
    found = np.full(len(record.attempts["call"]), -1, dtype=np.int64)
    for attempt, to in zip(table["attempt"].tolist(), table["to"].tolist(), strict=True):
        if to >= 0:
            found[to] = attempt if record.attempts["outcome"][attempt] == _MIGRATED else found[attempt]
    return found


def attempts_moved(record: RunRecord) -> dict[int, tuple[int, str]]:
    """Return the attempts that took part in migrations, each with its number and outcome."""
    mine = {int(attempt) for name in ("attempt", "to") for attempt in record.migrations.get(name, ())} - {-1}
    return {attempt: (int(record.attempts["number"][attempt]), ATTEMPT_OUTCOMES[record.attempts["outcome"][attempt]])
            for attempt in sorted(mine)}


def in_chain(record: RunRecord) -> dict[int, int]:
    """Return for each stage row of an attempt that goes on with the tokens of others the first of these attempts."""
    before = origins(record)
    if not len(before):
        return {}
    first = np.arange(len(before))
    for attempt, other in enumerate(before.tolist()):   # of a lower number
        if other >= 0:
            first[attempt] = first[other]
    mine = record.stage_attempts
    return {row: int(first[mine[row]]) for row in np.flatnonzero(np.append(before, -1)[mine] >= 0).tolist()}


def parts_of(record: RunRecord) -> Parts:
    """Return what users have, and what is lost, of the attempts that migrated."""
    found: Parts = {}
    table = record.migrations
    if not table:
        return found
    left = {attempt: sent for attempt, sent in zip(table["attempt"].tolist(), table["sent"].tolist(), strict=True)
            if record.attempts["outcome"][attempt] == _MIGRATED}
    for row in np.flatnonzero(np.isin(record.stage_attempts, [*left])).tolist():   # a prefill is before its decode
        steps, attempt = stage_token_steps(record, row), int(record.stage_attempts[row])
        found[row] = steps[:left[attempt]], steps[left[attempt]:]
        left[attempt] -= len(found[row][0])
    return found


def sent_tokens(record: RunRecord) -> IntArray:
    """Return the output tokens of each stage without those that are lost, shape (stages,)."""
    tokens, parts = record.stages["output_tokens"], parts_of(record)
    if parts:
        tokens = tokens.copy()
        tokens[[*parts]] = [len(sent) for sent, _ in parts.values()]
    return tokens


def lost_within(record: RunRecord, start_ns: int, end_ns: int) -> int:
    """Return the tokens that are lost and were given after `start_ns` and not after `end_ns`."""
    count = 0
    for row, (_, lost) in parts_of(record).items():
        times = record.step_ends[int(record.stages["client"][row])][lost]
        count += int(((times > start_ns) & (times <= end_ns)).sum())
    return count


def over_ns(record: RunRecord) -> IntArray:
    """Return when each stage was over for its user: an attempt that migrated may go on at its client. Shape (stages,).
    """
    over, mine = record.stages["end_ns"], record.stage_attempts
    if len(origins(record)):
        moved = np.flatnonzero(np.append(record.attempts["outcome"] == _MIGRATED, False)[mine])
        over = over.copy()
        over[moved] = np.minimum(over[moved], record.attempts["end_ns"][mine[moved]])
    return over


def begun_ns(record: RunRecord) -> IntArray:
    """Return when each stage was assigned to its client, or the first one with whose tokens it goes on. Shape (stages,)
    """
    begun, chain = record.stages["assigned_ns"], in_chain(record)
    if chain:
        begun = begun.copy()
        start = record.attempts["start_ns"]
        for row, first in chain.items():
            begun[row] = start[first]
    return begun


def rows_before(record: RunRecord) -> dict[int, int]:
    """Return for the first stage of each attempt that goes on with the tokens of another the last stage of that one; it
    is not there yet if the run was cut."""
    before, mine = origins(record), record.stage_attempts
    chain = in_chain(record)
    last = {int(mine[row]): row for row in [*parts_of(record)]}
    first = {int(mine[row]): row for row in reversed(chain)}
    return {row: last[int(before[attempt])] for attempt, row in first.items() if int(before[attempt]) in last}
