"""Energy of stages and requests, and cost of a run.

**Attribution.** A step's energy is split between its prompt tokens and its decodes in proportion to the tokens they
compute. The prompts' part is shared by the sequences between their first step and their first token, in proportion to
their prompt tokens that were not cached. The decodes' part is shared equally by the sequences between their first token
and their completion (a preempted sequence stays among them until it is back). A part without such sequences goes to the
other part; if both have none (work of requests that never completed) it stays unattributed. Service without steps is
shared in proportion to its length. Idle energy belongs to no request:

    sum over stages + unattributed + idle = total,   a request's joules = those of its stages

This holds up to rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hermes.arrays import FloatArray, IntArray
from hermes.core.record import RunRecord
from hermes.results.figures.membership import dollars_within, held_ns
from hermes.results.figures.usage import ClientUsage, covered_ns, paid_ns
from hermes.units import NS_PER_S

__all__ = ["Attribution", "attribute", "cost_summary", "energy_within", "per_million", "stage_energy"]

HOUR_S = 3600.0
STAGE_COLUMNS = ("request", "kind", "start_ns", "end_ns", "first_token_ns", "prompt_tokens", "cached_tokens",
                 "branch")
RUN_COLUMNS = ("start_ns", "end_ns", "prefill_seqs", "prefill_tokens", "decode_seqs")


@dataclass(frozen=True)
class Attribution:
    """Joules per stage row, shape (stages,), and per request, shape (requests,), and unattributed joules.

    prefill_j: The part of the stages' joules for prompt tokens, shape (stages,); all of them without steps.
    """

    stage_j: FloatArray
    prefill_j: FloatArray
    request_j: FloatArray
    unattributed_j: float


@dataclass(frozen=True)
class _Members:
    """Intervals of runs (first, last, both included) in which sequences take part, with stage rows and weights."""

    row: IntArray
    first: IntArray
    last: IntArray
    weight: FloatArray

    def present(self, num_runs: int) -> FloatArray:
        """Return the sum of the weights of the members of each run."""
        change = np.zeros(num_runs + 1)
        np.add.at(change, self.first, self.weight)
        np.add.at(change, self.last + 1, -self.weight)
        count = np.zeros(num_runs + 1, dtype=np.int64)   # exact: whether a run has members
        np.add.at(count, self.first, 1)
        np.add.at(count, self.last + 1, -1)
        return np.where(np.cumsum(count)[:-1] > 0, np.cumsum(change)[:-1], 0.0)

    def share(self, energy: FloatArray, present: FloatArray, out: FloatArray) -> None:
        """Distribute each run's energy by weight."""
        per_weight = np.divide(energy, present, out=np.zeros_like(energy), where=present > 0)
        upto = np.concatenate(([0.0], np.cumsum(per_weight)))
        out[self.row] += self.weight * (upto[self.last + 1] - upto[self.first])   # each row occurs once


def attribute(record: RunRecord, usages: list[ClientUsage]) -> Attribution:
    """Share every client's busy energy among the requests it served."""
    prefill, decode = np.zeros(len(record.stages["client"])), np.zeros(len(record.stages["client"]))
    left = [0.0]
    stage_order = np.argsort(np.where(record.started, record.stages["client"], -1), kind="stable")
    stage_order = stage_order[np.count_nonzero(~record.started):]   # what never started draws no power
    run_order = np.argsort(record.runs["client"], kind="stable")
    clients = np.arange(len(record.clients) + 1)
    stage_at = np.searchsorted(record.stages["client"][stage_order], clients)
    run_at = np.searchsorted(record.runs["client"][run_order], clients)
    for c, info in enumerate(record.clients):
        if not (info.prefill_w or info.decode_w):
            continue
        mine, its_runs = stage_order[stage_at[c]:stage_at[c + 1]], run_order[run_at[c]:run_at[c + 1]]
        stages = {name: record.stages[name][mine] for name in STAGE_COLUMNS} | {"row": mine}
        runs = {name: record.runs[name][its_runs] for name in RUN_COLUMNS}
        if len(its_runs):
            left.append(_share_runs(record, info, stages, runs, prefill, decode))
        else:
            left.append(_share_service(usages[c].prefill_j, stages, prefill))
    each = prefill + decode
    requests = np.bincount(record.stages["request"], weights=each, minlength=len(record.arrival_ns)).astype(np.float64)
    return Attribution(each, prefill, requests, math.fsum(left))


def stage_energy(record: RunRecord, attributed: Attribution) -> dict[str, Any]:
    """Return joules by kind of stage, in order of the kinds: the total of its stages, the mean of one, and for kinds
    that give tokens the part for prompts."""
    kinds, tokens = record.stages["kind"], record.stages["first_token_ns"] >= 0
    out: dict[str, Any] = {}
    for code, name in enumerate(record.stage_kinds):
        mine = (kinds == code) & record.started
        if mine.any():
            total = math.fsum(attributed.stage_j[mine])
            out[name] = {"total_j": total, "mean_j": total / int(mine.sum())}
            if tokens[mine].any():
                out[name]["prompt_j"] = math.fsum(attributed.prefill_j[mine])
    return out


def _share_runs(record: RunRecord, info: Any, stages: dict[str, IntArray], runs: dict[str, IntArray],
                prefill_j: FloatArray, decode_j: FloatArray) -> float:
    """Share the energy of one client's runs; return the unattributed rest."""
    watts = np.where(runs["prefill_seqs"] > 0, info.prefill_w, info.decode_w)
    energy = watts * (runs["end_ns"] - runs["start_ns"]) / NS_PER_S
    tokens = runs["prefill_tokens"] + runs["decode_seqs"]
    prompts = energy * np.divide(runs["prefill_tokens"], tokens, out=np.zeros(len(tokens)), where=tokens > 0)
    decodes = energy - prompts
    prefill, decode = _members(record, stages, runs)
    at_prefill, at_decode = prefill.present(len(tokens)), decode.present(len(tokens))
    moved = np.where((at_prefill == 0) & (at_decode > 0), prompts, 0.0)
    back = np.where((at_decode == 0) & (at_prefill > 0), decodes, 0.0)
    prompts, decodes = prompts - moved + back, decodes - back + moved
    prefill.share(prompts, at_prefill, prefill_j)
    decode.share(decodes, at_decode, decode_j)
    return float(prompts[at_prefill == 0].sum() + decodes[at_decode == 0].sum())


def _members(
    record: RunRecord, stages: dict[str, IntArray], runs: dict[str, IntArray]
) -> tuple[_Members, _Members]:
    """Return the members of the client's runs with prompt tokens, and those with decodes. Starts and ends of stages,
    and first tokens of prompts, are starts and ends of runs."""
    last = len(runs["end_ns"]) - 1
    start = np.minimum(np.searchsorted(runs["start_ns"], stages["start_ns"]), last)
    end = np.minimum(np.searchsorted(runs["end_ns"], stages["end_ns"]), last)
    first = np.minimum(np.searchsorted(runs["end_ns"], stages["first_token_ns"]), last)
    continued = np.array([name == "decode" for name in record.stage_kinds], dtype=bool)[stages["kind"]]
    gives = stages["first_token_ns"] >= 0
    begins = np.where(continued | ~gives, start, first + 1)   # another client computed a transferred prompt
    computed = np.maximum(stages["prompt_tokens"] - stages["cached_tokens"], 1).astype(np.float64)
    # A generation that was given up before its first token computed a part of its prompt, and nothing else.
    prompts = np.array([name in ("generate", "prefill") for name in record.stage_kinds], dtype=bool)[stages["kind"]]
    given_up = ~gives & prompts
    upto = np.where(given_up, end, first)
    # The prompt of branches is computed once, and counts for the first of them.
    prompt = ~continued & (gives | given_up) & (upto >= start) & (stages["branch"] <= 0)
    answer = (begins <= end) & ~given_up
    return (
        _Members(stages["row"][prompt], start[prompt], upto[prompt], computed[prompt]),
        _Members(stages["row"][answer], begins[answer], end[answer], np.ones(int(answer.sum()))),
    )


def _share_service(energy_j: float, stages: dict[str, IntArray], out: FloatArray) -> float:
    """Share the energy of a client without steps; return the unattributed rest."""
    length = (stages["end_ns"] - stages["start_ns"]).astype(np.float64)
    total = float(length.sum())
    if not total:
        return energy_j
    out[stages["row"]] += energy_j * length / total
    return 0.0


def cost_summary(record: RunRecord, tokens: tuple[int, int, int], completed: int) -> dict[str, Any] | None:
    """Return the dollars of the run: price per hour times hours held, busy or not; None if no client has a price.

    tokens: Of answers, generated by all stages, and generated or read.
    """
    if not any(info.price_per_hour for info in record.clients):
        return None
    per_hour = math.fsum(info.price_per_hour for info in record.clients)
    paid = paid_ns(record)
    dollars = dollars_within(record, *paid) or 0.0
    if len(record.membership) and paid[1]:
        per_hour = dollars / (paid[1] / NS_PER_S) * HOUR_S
    return {
        "dollars_per_hour": per_hour, "total_dollars": dollars,
        "per_request_dollars": dollars / completed if completed else None,
        **per_million(dollars, *tokens),
        "clients_without_price": sum(not info.price_per_hour for info in record.clients),
    }


def per_million(dollars: float | None, answers: int, output: int, total: int) -> dict[str, float | None]:
    """Return the dollars per million tokens of answers, of all that were generated, and of these and the prompts."""
    names = ("answer_tokens", "output_tokens", "tokens")
    return {f"per_million_{name}_dollars": dollars / count * 1e6 if dollars is not None and count else None
            for name, count in zip(names, (answers, output, total), strict=True)}


def energy_within(record: RunRecord, start_ns: int, end_ns: int) -> float | None:
    """Return the joules of all clients in a window, busy or not; None if no client has a power."""
    if not any(c.idle_w or c.prefill_w or c.decode_w for c in record.clients):
        return None
    runs, stages, n = record.runs, record.stages, len(record.clients)
    span = np.maximum(np.minimum(runs["end_ns"], end_ns) - np.maximum(runs["start_ns"], start_ns), 0)
    prompts = runs["prefill_seqs"] > 0
    prefill, decode = (np.bincount(runs["client"][rows], weights=span[rows], minlength=n) for rows in
                       (prompts, ~prompts))
    stepping = np.bincount(runs["client"], minlength=n) > 0
    joules, held = [], held_ns(record, start_ns, end_ns).tolist()
    for index, info in enumerate(record.clients):
        if not stepping[index]:
            mine = (stages["client"] == index) & record.started
            prefill[index] = covered_ns(np.clip(stages["start_ns"][mine], start_ns, end_ns),
                                        np.clip(stages["end_ns"][mine], start_ns, end_ns))
        idle = max(held[index] - prefill[index] - decode[index], 0)
        joules.append((info.prefill_w * prefill[index] + info.decode_w * decode[index] + info.idle_w * idle) / NS_PER_S)
    return math.fsum(joules)
