"""Tenants, classes and bands of a gateway: who was refused, revoked or late, who waited, and how fair it was.

Tokens served count while requests arrive: afterwards every tenant gets what it still waits for, whatever the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hermes.arrays import BoolArray, FloatArray, IntArray
from hermes.core.record import FATES, GROUPINGS, HELD_OUTCOMES, STATUS_COMPLETED, RunRecord
from hermes.results.distribution import Distribution
from hermes.results.figures.gateway_times import shares_of_ttft
from hermes.results.layout import Section, format_number, format_s, percent
from hermes.results.metrics import RequestMetrics
from hermes.sums import float_sum
from hermes.units import NS_PER_S

__all__ = ["GROUPINGS", "gateway_line", "gateway_sections", "jain", "shown_groupings", "tenants_summary", "waited_ns"]

_SHOWN = 0.05   # share of the TTFT from which on it is said
_WORDS = {"gateway": "its hop", "held": "held", "lost": "lost attempts"}
_TURNED_AWAY = ("shed", "expired", "revoked")


def waited_ns(record: RunRecord) -> IntArray:
    """Return how long each request's calls waited unplaced in the gateway, in sum, until the end of the run; shape
    (requests,)."""
    if not record.held:
        return np.zeros(len(record.arrival_ns), dtype=np.int64)
    left, asked = record.held["left_ns"], record.held["asked_ns"]
    return np.bincount(record.held["request"], weights=np.where(left < 0, record.end_ns, left) - asked,
                       minlength=len(record.arrival_ns)).astype(np.int64)


def jain(values: FloatArray) -> float | None:
    """Return Jain's index of fairness, (sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one has everything. None for
    fewer than two values."""
    if len(values) < 2:
        return None
    squares = float((values**2).sum())
    return float(values.sum()) ** 2 / (len(values) * squares) if squares else 1.0


def tenants_summary(record: RunRecord, metrics: RequestMetrics) -> dict[str, Any]:
    """Return `gateway` of the summary; empty where requests have neither tenant nor class and no gateway holds them.

        held        calls that waited unplaced in the gateway, by what became of them
        waited_s    wait of each request that was held
        band, class, tenant   for each of those that requests have: requests, completed, shed, expired, revoked,
                    waited_s, ttft_s, e2e_s, and tokens_served, prompts and outputs of requests completed while others
                    still arrived; of tenants also weight
        jain        of tenants: index of tokens served over weight, and of the mean time in queues (at the gateway and
                    at engines) of completed requests
    """
    labels = {name: record.labels[name] for name in GROUPINGS if name in record.labels}
    if not labels and not record.held:
        return {}
    out: dict[str, Any] = {}
    wait = waited_ns(record)
    if record.held:
        outcomes = record.held["outcome"]
        out["held"] = {name.replace(" ", "_"): int((outcomes == code).sum()) for code, name in enumerate(HELD_OUTCOMES)}
        held = np.unique(record.held["request"])
        out["waited_s"] = Distribution(wait[held], divisor=NS_PER_S).stats()
    tokens, queued = _served(record, metrics), wait + np.maximum(metrics.queue_ns, 0)
    for name, (codes, names) in labels.items():
        out[name] = {}
        for code in np.unique(codes[record.arrival_ns >= 0]).tolist():
            mine = (record.arrival_ns >= 0) & (codes == code)
            out[name][names[code]] = _one(record, metrics, mine, wait, tokens)
            if name == "tenant":
                out[name][names[code]]["weight"] = record.weights.get(names[code], 1.0)
    tenants = out.get("tenant", {})
    if len(tenants) > 1:
        codes, names = labels["tenant"]
        done = record.status == STATUS_COMPLETED
        waits = [float(queued[done & (codes == names.index(name))].mean()) for name in tenants
                 if (done & (codes == names.index(name))).any()]
        out["jain"] = {
            "tokens_served": jain(np.array([one["tokens_served"] / one["weight"] for one in tenants.values()])),
            "waiting": jain(np.array(waits)),
        }
    return {"gateway": out}


def _served(record: RunRecord, metrics: RequestMetrics) -> IntArray:
    """Return the tokens of each request that was completed while others still arrived; shape (requests,)."""
    in_time = (record.status == STATUS_COMPLETED) & (record.finish_ns <= record.arrival_ns.max(initial=-1))
    return np.where(in_time, metrics.computed_prompt_tokens + metrics.emitted_tokens, 0)


def _one(record: RunRecord, metrics: RequestMetrics, mine: BoolArray, wait: IntArray, tokens: IntArray,
         ) -> dict[str, Any]:
    done = mine & (record.status == STATUS_COMPLETED)
    of_mine = record.fates[mine[record.fates[:, 0]], 1]
    held = np.zeros(len(mine), dtype=bool)
    if record.held:
        held[record.held["request"]] = True
    return {
        "requests": int(mine.sum()), "completed": int(done.sum()),
        **{name: int((of_mine == FATES.index(name)).sum()) for name in _TURNED_AWAY},
        "waited_s": Distribution(wait[mine & held], divisor=NS_PER_S).stats(),
        "ttft_s": Distribution(metrics.ttft_ns[done & (metrics.ttft_ns >= 0)], divisor=NS_PER_S).stats(),
        "e2e_s": Distribution(metrics.e2e_ns[done], divisor=NS_PER_S).stats(),
        "tokens_served": int(tokens[mine].sum()),
    }


def gateway_line(summary: dict[str, Any]) -> str | None:
    """Return the line of the report about the time at the gateway, its queue and the tenants; None without these."""
    found, parts, shares = summary.get("gateway", {}), list[str](), shares_of_ttft(summary)
    if (share := float_sum(shares.values())) >= _SHOWN:
        causes = ", ".join(_WORDS[name] for name, one in shares.items() if one >= _SHOWN * share)
        parts.append(f"{share:.0%} of the mean TTFT ({causes})")
    if "held" in found:
        wait, calls = found["waited_s"], float_sum(found["held"].values())
        parts.append(f"{calls:,} calls waited p50 {format_s(wait['p50'])}, p99 {format_s(wait['p99'])}")
    fates = summary.get("attempts", {}).get("requests", {})
    away = [f"{fates[name]:,} {name}" for name in _TURNED_AWAY if fates.get(name)]
    parts += [", ".join(away)] if away else []
    fair = found.get("jain")
    if fair is not None:
        parts.append(f"Jain's index of {len(found['tenant'])} tenants {format_number(fair['tokens_served'])} (tokens), "
                     f"{format_number(fair['waiting'])} (waiting)")
    return "; ".join(parts) or None


def shown_groupings(found: Mapping[str, Any]) -> list[str]:
    """Return the groupings of a summary's `gateway` with several groups; without bands if each has one class."""
    several = [name for name in GROUPINGS if len(found.get(name, {})) > 1]
    if "band" in several and len(found["band"]) == len(found.get("class", {})):
        several.remove("band")
    return several


def gateway_sections(summary: dict[str, Any]) -> list[Section]:
    """Return a table of bands, classes and tenants; none without several of them."""
    found = summary.get("gateway", {})
    head = ("", "requests", "done", *_TURNED_AWAY, "waited p50", "p99", "TTFT p50", "p99", "E2E p50", "p99", "tokens")
    rows = []
    for name in shown_groupings(found):
        groups = found[name]
        total = sum(one["tokens_served"] for one in groups.values())
        rows += [(f"{name} {which or '(none)'}", f"{one['requests']:,}", f"{one['completed']:,}",
                  *(f"{one[fate]:,}" for fate in _TURNED_AWAY),
                  *(format_s(one[metric][stat]) for metric in ("waited_s", "ttft_s", "e2e_s")
                    for stat in ("p50", "p99")), percent(one["tokens_served"] / total if total else None))
                 for which, one in groups.items()]
    note = "waited: unplaced at the gateway; tokens: share of those served while requests arrived"
    return [Section("at the gateway", head, rows, note=note)] if rows else []
