"""The summary of a simulation: nested dicts of plain numbers.

Keys carry their unit (`_s`, `_j`, `_tokens`, `_per_s`). Undefined figures (the TTFT of no request) are None, never NaN.
Key order is fixed, so that equal simulations give equal text.
"""

from __future__ import annotations

import math
import re
from importlib import import_module
from typing import Any

import numpy as np

from hermes.arrays import BoolArray, FloatArray, IntArray
from hermes.core.columns import kept_table, release_memory
from hermes.core.reasons import GAVE_UP
from hermes.core.record import BELIEVED, GROUPINGS, STATUS_COMPLETED, STATUS_REJECTED, STATUS_UNFINISHED, RunRecord
from hermes.results.branches import branch_metrics, branch_summary
from hermes.results.distribution import Distribution
from hermes.results.figures.binding_resource import binding_summary
from hermes.results.figures.breakdown import breakdown, critical_path
from hermes.results.figures.energy import Attribution, attribute, cost_summary, stage_energy
from hermes.results.figures.groups import summary_by_label
from hermes.results.figures.headline import headline_summary
from hermes.results.figures.kv_capacity import memory_summary
from hermes.results.figures.limit_parts import missed, nearest_limit
from hermes.results.figures.membership import fleet_summary
from hermes.results.figures.settling import settling_summary
from hermes.results.figures.steady import find_window
from hermes.results.figures.tiers import stores_summary
from hermes.results.figures.usage import (
    ClientUsage,
    client_names,
    client_usage,
    paid_ns,
    ratio,
    window_ns,
)
from hermes.results.figures.utilisation import utilisation_summary
from hermes.results.measure import MeasureConfig
from hermes.results.metrics import Answer, RequestMetrics, itl
from hermes.results.slo import SloConfig, SloGroup, slo_given, slo_groups, slo_summary, within_slo, without_limit
from hermes.sums import float_sum
from hermes.units import NS_PER_S

__all__ = ["grouped_reasons", "summarise"]

_NUMBER = re.compile(r"\d+(?:[,_.]\d+)*")


def grouped_reasons(reasons: dict[int, str]) -> dict[str, int]:
    """Return the numbers of rejected requests by reason, most frequent first.

    Reasons that differ in numbers only ("needs 812 blocks, has 640") are one group, shown by its most frequent text as
    an example ("e.g. needs 812 blocks, has 640").
    """
    groups: dict[str, dict[str, int]] = {}
    for text in reasons.values():
        exact = groups.setdefault(_NUMBER.sub("N", text), {})
        exact[text] = exact.get(text, 0) + 1
    counts = {_example(exact): sum(exact.values()) for exact in groups.values()}
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _example(texts: dict[str, int]) -> str:
    """Return the most frequent of some texts, marked as an example if there are others."""
    text = max(texts, key=lambda one: texts[one])
    if len(texts) == 1:
        return text
    begin = GAVE_UP if text.startswith(GAVE_UP) else ""
    return f"{begin}e.g. {text.removeprefix(begin)}"


def summarise(record: RunRecord, parts: Answer, metrics: RequestMetrics, usages: list[ClientUsage], slo: SloConfig,
              chosen: MeasureConfig | None = None) -> dict[str, Any]:
    """Return the summary of a run. Percentiles are over completed requests. chosen: The user's window for the headline.
    """
    completed = record.status == STATUS_COMPLETED
    start, end = window_ns(record)
    makespan = (end - start) / NS_PER_S
    rows = len(record.runs["client"])
    attributed = attribute(record, usages) if _has_watts(record) else None
    release_memory(rows)
    latency = _latency(record, parts, metrics, completed)   # one by one: each is as long as a column
    release_memory(rows)
    answers, output = (int(tokens[completed].sum()) for tokens in (metrics.answer_tokens, metrics.emitted_tokens))
    prompt = int(metrics.computed_prompt_tokens[completed].sum())
    groups = slo_groups(slo, record)
    good, apart = within_slo(groups, metrics, completed), without_limit(groups, metrics, completed)
    judged = int(((record.arrival_ns >= 0) & ~apart).sum()) if (~apart & completed).any() or not apart.any() else 0
    limited = slo_given(groups)   # without limits there is no goodput
    release_memory(rows)
    window = find_window(record, metrics, chosen)
    release_memory(rows)
    limits_of = {group.name: group.slo.thresholds() for group in groups if group.name}
    headline = headline_summary(record, parts, metrics, good if limited else None, apart, window)
    release_memory(rows)
    verdict = slo_summary(groups, metrics, completed, record.status == STATUS_REJECTED)
    release_memory(rows)
    binds = binding_summary(record, window)
    release_memory(rows)
    settling = settling_summary(record, metrics, groups, window)
    release_memory(rows)
    path = kept_table(critical_path(record))   # after those that take more memory
    nearest = nearest_limit(record, metrics, path, verdict["slo"])
    return {
        "requests": _requests(record, metrics),
        "headline": headline,
        "settling": settling,
        "makespan_s": makespan,
        "latency": latency,
        "tokens": {
            "answers": answers, "output": output, "prompt": prompt,
            "cached": int(metrics.cached_tokens[completed].sum()),
        },
        "throughput": {
            "requests_per_s": ratio(int(completed.sum()), makespan),
            "output_tokens_per_s": ratio(output, makespan),
            "total_tokens_per_s": ratio(output + prompt, makespan),
        },
        **verdict,
        "goodput": {
            "limits": slo.thresholds(), **({"limits_of": limits_of} if limits_of else {}),
            "requests": int(good.sum()) if limited else None,
            "share": ratio(int(good.sum()), judged) if limited else None,
            "requests_per_s": ratio(int(good.sum()), makespan) if limited else None,
            "output_tokens_per_s": ratio(int(metrics.emitted_tokens[good].sum()), makespan) if limited else None,
            **({"without_limit": int(apart.sum())} if apart.any() else {}),
        },
        "binds": binds if nearest is None else missed(record, nearest, binds),
        **({} if nearest is None else {"nearest_limit": nearest}),
        "stages": _stages(record),
        "breakdown": breakdown(record, path, metrics),
        "by": summary_by_label(record, metrics, path, good if limited else None, apart, window),
        "transfers": _transfers(record),
        **_notes(record, completed),
        **_of_some(BELIEVED in record.notes, "believed", record, metrics, completed),
        **branch_summary(branch_metrics(record, parts), metrics),
        **stores_summary(record),
        **_of_some(bool(record.sharing), "sharing", record),
        "utilisation": utilisation_summary(record),
        "steps": _steps(usages),
        "energy": _energy(usages, attributed, record, output, int(completed.sum())),
        **fleet_summary(record, *paid_ns(record)), **_fleet_slo(record, metrics, groups),
        **_of_some(bool(record.incidents), "incidents", record, metrics, groups),
        **_of_some(bool(record.attempts), "attempts", record, attributed),
        **_of_some(bool(record.held) or any(name in record.labels for name in GROUPINGS), "tenants", record, metrics),
        "cost": cost_summary(record, (answers, output, output + prompt), int(completed.sum())),
        "clients": _clients(record, usages),
        "counters": dict(sorted(record.counters.items())),
    }


def _latency(record: RunRecord, parts: Answer, metrics: RequestMetrics, completed: BoolArray) -> dict[str, object]:
    def stats(name: str, rows: BoolArray) -> object:
        return Distribution(getattr(metrics, f"{name}_ns")[rows], divisor=NS_PER_S).stats()

    found = {"ttft_s": stats("ttft", completed & (metrics.ttft_ns >= 0)),
             "tpot_s": Distribution(metrics.tpot_s[completed]).stats(), "itl_s": itl(record, parts).stats()}
    found |= {f"{name}_s": stats(name, completed) for name in ("e2e", "queue", "compute", "communication")}
    handed_over = completed & (metrics.prefill_ttft_ns >= 0)
    return found | ({"prefill_ttft_s": stats("prefill_ttft", handed_over)} if handed_over.any() else {})


def _of_some(there: bool, module: str, *known: Any) -> dict[str, Any]:   # Any: what its function takes
    """Return figures that only some records have; most runs do not load their module."""
    if not there:
        return {}
    found: dict[str, Any] = vars(import_module(f"hermes.results.figures.{module}"))[f"{module}_summary"](*known)
    return found


def _fleet_slo(record: RunRecord, metrics: RequestMetrics, groups: list[SloGroup]) -> dict[str, Any]:
    """Return `fleet_slo`, the minutes out of limit; empty where no client comes and goes, or without limits."""
    if not len(record.membership) or not slo_given(groups):
        return {}
    from hermes.results.figures.slo_minutes import slo_minutes  # most runs have no fleet

    found = slo_minutes(groups, metrics, record)
    return {"fleet_slo": {"minutes": len(found.minute), "slo_minutes_out": int(found.out.sum())}}


def _requests(record: RunRecord, metrics: RequestMetrics) -> dict[str, Any]:
    arrived = record.arrival_ns >= 0   # requests that never arrived, because the run was cut short, do not count
    counts = {
        name: int(((record.status == code) & arrived).sum())
        for name, code in (
            ("completed", STATUS_COMPLETED), ("rejected", STATUS_REJECTED), ("unfinished", STATUS_UNFINISHED)
        )
    }
    gone = [row for row, text in record.reject_reasons.items() if text.startswith(GAVE_UP)]
    return {
        "total": int(arrived.sum()), **counts,
        "preempted": int((metrics.preemptions > 0).sum()),
        "reject_reasons": grouped_reasons(record.reject_reasons),
        **({"gave_up_computed": len(np.intersect1d(gone, _begun_prompts(record)))} if gone else {}),
    }


def _begun_prompts(record: RunRecord) -> IntArray:
    """Return the requests of which a client has computed a prompt at least in part."""
    prompts = [code for code, name in enumerate(record.stage_kinds) if name in ("generate", "prefill")]
    stages = record.stages
    return np.unique(stages["request"][record.started & np.isin(stages["kind"], prompts)])


def _stages(record: RunRecord) -> dict[str, Any]:
    """Return waiting (assigned to start, with transfers) and service by kind, over all stages that were served."""
    stages = record.stages
    out: dict[str, Any] = {}
    for code, name in enumerate(record.stage_kinds):
        mine = (stages["kind"] == code) & record.started & record.kept
        if not mine.any():
            continue
        wait = Distribution((stages["start_ns"] - stages["assigned_ns"])[mine], divisor=NS_PER_S)
        service = Distribution((stages["end_ns"] - stages["start_ns"])[mine], divisor=NS_PER_S)
        out[name] = {"wait_s": wait.stats(), "service_s": service.stats()}
    return out


def _notes(record: RunRecord, completed: BoolArray) -> dict[str, Any]:
    """Return statistics of what was noted about completed requests (`request.note`); empty without notes."""
    notes = {name: _shares(values[completed], record.note_names[name]) if name in record.note_names
             else Distribution(values[completed]).stats() for name, values in record.notes.items()}
    return {"notes": notes} if notes else {}


def _shares(codes: FloatArray, names: list[str]) -> dict[str, Any]:
    """Return how many requests have a name noted, and the share of them that has each."""
    noted = codes[~np.isnan(codes)]
    shares = {name: float(np.mean(noted == code)) if len(noted) else None for code, name in enumerate(names)}
    return {"count": len(noted), "shares": shares}


def _transfers(record: RunRecord) -> dict[str, Any]:
    sent = record.transfers
    took = Distribution(sent["end_ns"] - sent["start_ns"], divisor=NS_PER_S)
    return {"bytes": int(sent["bytes"].sum()), "time_s": took.stats()}


def _steps(usages: list[ClientUsage]) -> dict[str, Any]:
    steps, outside = sum(u.steps for u in usages), sum(u.out_of_range_steps for u in usages)
    return {
        "runs": sum(u.runs for u in usages), "steps": steps,
        "mean_batch": ratio(float_sum(u.batch for u in usages), steps),
        "preemptions": sum(u.preemptions for u in usages),
        "out_of_range": outside, "out_of_range_share": ratio(outside, steps),
    }


def _has_watts(record: RunRecord) -> bool:
    return any(c.idle_w or c.prefill_w or c.decode_w for c in record.clients)


def _energy(
    usages: list[ClientUsage], attributed: Attribution | None, record: RunRecord, output: int, completed: int,
) -> dict[str, Any] | None:
    """Return joules by state; None if no client has a power."""
    if attributed is None:
        return None
    by_state = {name: math.fsum(getattr(u, name) for u in usages) for name in ("idle_j", "prefill_j", "decode_j")}
    total = math.fsum(by_state.values())
    return {
        "total_j": total, **by_state,
        "mean_w": ratio(total, paid_ns(record)[1] / NS_PER_S),
        "per_request_j": ratio(total, completed),
        "per_output_token_j": ratio(total, output),
        "output_tokens_per_j": ratio(output, total),
        "requests_j": math.fsum(attributed.request_j), "unattributed_j": attributed.unattributed_j,
        "stages": stage_energy(record, attributed),
        "clients_without_watts": sum(not (c.idle_w or c.prefill_w or c.decode_w) for c in record.clients),
    }


def _clients(record: RunRecord, usages: list[ClientUsage]) -> dict[str, Any]:
    watts, window = _has_watts(record), window_ns(record)
    out = {}
    for index, name in enumerate(client_names(record)):
        info = record.clients[index]
        out[name] = client_usage(record, index, usages[index], window, watts) | {
            "group": info.group or name, "device": info.device or None, "memory": memory_summary(info),
            "power_source": info.power_source or None, "price_source": info.price_source or None,
        } | ({"engine": info.engine} if info.engine else {})
    return out
