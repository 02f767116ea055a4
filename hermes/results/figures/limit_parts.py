"""The latency nearest its limit, and what it is made of: queues, transfers, prompts, decode steps.

The parts are those of the requests with the largest values of that latency: as many as the limit's percentile leaves
out, at least `FEWEST`. Stages on the critical path count (`hermes.results.figures.breakdown`), TTFT's to its token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hermes.arrays import BoolArray, IntArray
from hermes.core.reasons import CAPACITY, EARLY, FLOW_CONTROL, NAMES, Reason
from hermes.core.record import STATUS_COMPLETED, RunRecord
from hermes.results.figures.breakdown import CriticalPath, first_token_path
from hermes.results.figures.catalogue import limit_name
from hermes.results.figures.gateway_binds import LATER
from hermes.results.figures.gateway_times import AtGateway, offered_ns
from hermes.results.figures.waiting import client_groups, merged, overlaps
from hermes.results.metrics import RequestMetrics
from hermes.results.slo import METRICS
from hermes.sums import float_sum
from hermes.units import NS_PER_S

__all__ = ["limit_of_row", "limit_text", "missed", "nearest_limit"]

GATEWAY_PARTS = {"wait for the": CAPACITY, "hop of the": "gateway delay"}   # of the gateway itself: what binds there
HELD, LOST = "held for", "lost attempts at"
FEWEST = 20
LEAST = 0.01   # share of a part that is listed
GENERATIONS = ("generate", "prefill", "decode")


def nearest_limit(record: RunRecord, metrics: RequestMetrics, path: CriticalPath, slo: dict[str, Any]
                  ) -> dict[str, Any] | None:
    """Return `nearest_limit` of the summary; None without a limit that requests of the run can miss."""
    rows = {name: slo.get(name) or {} for name in METRICS}
    found = {name: row for name, row in rows.items() if row.get("limit_s") and row.get("value_s")}
    if not found:
        return None
    name = max(found, key=lambda one: found[one]["value_s"] / found[one]["limit_s"])
    row = found[name]
    values = {"ttft": metrics.ttft_ns / NS_PER_S, "tpot": metrics.tpot_s, "e2e": metrics.e2e_ns / NS_PER_S}[name]
    valid = np.flatnonzero((record.status == STATUS_COMPLETED) & np.isfinite(values) & (values >= 0))
    count = min(max(FEWEST, round(len(valid) * (1 - row["percentile"] / 100))), len(valid))
    chosen = np.zeros(len(record.arrival_ns), dtype=bool)
    chosen[valid[np.argsort(values[valid], kind="stable")[len(valid) - count:]]] = True
    parts = _steps(record, path, chosen) if name == "tpot" else _parts(record, metrics, path, chosen, name == "ttft")
    total = float_sum(parts.values())
    shares = {part: ns / total for part, ns in sorted(parts.items(), key=lambda item: -item[1]) if ns >= LEAST * total}
    return {"metric": name, "percentile": row["percentile"], "value_s": row["value_s"], "limit_s": row["limit_s"],
            "share": row["value_s"] / row["limit_s"],
            "parts": {f"{what} {where}": share for (what, where), share in shares.items()}}


def _parts(record: RunRecord, metrics: RequestMetrics, path: CriticalPath, chosen: BoolArray, first: bool
           ) -> dict[tuple[str, str], float]:
    """Return nanoseconds by part and group of clients, of some requests; up to the first token if `first`."""
    stages = record.stages
    until = metrics.first_token_ns if first else record.finish_ns
    out: dict[tuple[str, str], float] = {}
    on_path = first_token_path(record, path, metrics) if first else path.on_path
    rows = np.flatnonzero(on_path & chosen[stages["request"]] & record.started)
    ends = until[stages["request"][rows]]
    assigned, start, end = (stages[name][rows] for name in ("assigned_ns", "start_ns", "end_ns"))
    token = np.where(stages["first_token_ns"][rows] >= 0, stages["first_token_ns"][rows], end)
    wait = np.maximum(np.minimum(start, ends) - assigned, 0)
    moved = np.minimum(path.communication_ns[rows], wait)
    kinds = [record.stage_kinds[code] for code in stages["kind"][rows].tolist()]
    groups = {index: name for name, members in client_groups(record.clients).items() for index in members}
    where = [groups[index] for index in stages["client"][rows].tolist()]
    columns = zip(kinds, where, (wait - moved).tolist(), moved.tolist(),
                  np.maximum(np.minimum(token, ends) - start, 0).tolist(),
                  np.maximum(np.minimum(end, ends) - np.maximum(token, start), 0).tolist(), strict=True)
    for kind, group, queue, link, prompt, decode in columns:
        for what, ns in (("queue", queue), ("transfer", link),
                         ("prompt" if kind in GENERATIONS and kind != "decode" else
                          "decode" if kind == "decode" else "service", prompt), ("decode", decode)):
            if ns:
                out[what, group] = out.get((what, group), 0.0) + ns
    if record.calls:
        _add_gateway(record, until, rows, where, path.begins[rows], out)
    return out


def _add_gateway(record: RunRecord, until: IntArray, rows: IntArray, where: list[str], begins: BoolArray,
                 out: dict[tuple[str, str], float]) -> None:
    """Add the time at the gateway before some stages, which is at groups of clients `where`."""
    at, before = AtGateway.of(record, until), (offered_ns(record) - record.arrival_ns)[record.stages["request"][rows]]
    lost = at.lost[rows] + np.where(begins, before, 0)
    columns = zip(where, at.hop_wait[rows].tolist(), at.hop[rows].tolist(), at.held[rows].tolist(), lost.tolist(),
                  strict=True)
    capacity, hop = GATEWAY_PARTS
    for group, waited, passed, held, gone in columns:
        for key, ns in (((capacity, "gateway"), waited), ((hop, "gateway"), passed), ((HELD, group), held),
                        ((LOST, group), gone)):
            if ns:
                out[key] = out.get(key, 0.0) + ns


def _steps(record: RunRecord, path: CriticalPath, chosen: BoolArray) -> dict[tuple[str, str], float]:
    """Return the nanoseconds after the first token, of some requests: steps with prompts of others, other steps, and
    time without a step of the request (it waited, or its KV moved)."""
    stages, out = record.stages, dict[tuple[str, str], float]()
    emits = path.on_path & chosen[stages["request"]] & (stages["output_tokens"] > 0)
    for group, members in client_groups(record.clients).items():
        for client in members:
            rows = np.flatnonzero(emits & (stages["client"] == client))
            mine = record.runs["client"] == client
            if not len(rows) or not mine.any():
                continue
            prefills = mine & (record.runs["prefill_tokens"] > 0)
            whole, beside = (merged(record.runs["start_ns"][one], record.runs["end_ns"][one])
                             for one in (mine, prefills))
            transferred = stages["kind"][rows] == (record.stage_kinds.index("decode") if "decode" in record.stage_kinds
                                                   else -1)
            begin = np.where(transferred, stages["start_ns"][rows], stages["first_token_ns"][rows])
            end = stages["end_ns"][rows]
            stepping, prompts = overlaps(begin, end, whole).sum(), overlaps(begin, end, beside).sum()
            waits = float(np.where(transferred, stages["start_ns"][rows] - stages["assigned_ns"][rows], 0).sum())
            for what, ns in (("steps without prompts", stepping - prompts), ("steps with prompts of others", prompts),
                             ("waiting", float((end - begin).sum()) - stepping + waits)):
                if ns > 0:
                    out[what, group] = out.get((what, group), 0.0) + float(ns)
    return out


def missed(record: RunRecord, found: dict[str, Any], binds: dict[str, Any]) -> dict[str, Any]:
    """Return `binds` with what a missed latency is made of, where nothing else binds: the resource of its largest
    part."""
    if binds["all"] or binds["what"] == "nothing" or found["share"] <= 1 or not found["parts"]:
        return binds
    if binds["what"] != "arrivals":   # few are turned away, and the others are late
        binds = binds | {"bounded_by": {"what": binds["what"], "share": binds["share"]}}
        binds.pop("do", None)
    part, share = next(iter(found["parts"].items()))
    of = limit_name(found["metric"], found["percentile"])
    for name, what in GATEWAY_PARTS.items():
        if part == f"{name} gateway" and record.calls:
            return binds | {"what": what, "where": "gateway", "share": share, "of": of}
    where = next((name for name in binds["groups"] if part.endswith(f" {name}")), None)
    if where is None:
        return binds
    group = binds["groups"][where]
    what = NAMES[Reason.COMPUTE]
    if part.startswith("transfer"):
        link = max(record.links, key=lambda use: use.full_ns, default=None)
        what, where = NAMES[Reason.LINK], link.name if link is not None else f"to {where}"
    elif part.startswith("queue") and group.get("early", {}).get("binds"):
        return binds | {"what": EARLY, "where": where, "share": group["early"]["share"], "do": LATER}
    elif part.startswith("queue") and group["waiting"]:
        what = group["resource"]
    elif part == f"{HELD} {where}":
        what = group["resource"] or FLOW_CONTROL
    elif part == f"{LOST} {where}":
        what = LOST.removesuffix(" at")
    return binds | {"what": what, "where": where, "share": share, "of": of}


def limit_of_row(row: Mapping[str, Any]) -> str | None:
    """Return `limit_text` of a flat row of figures; None without a limit."""
    if row.get("nearest_limit.metric") is None:
        return None
    prefix = "nearest_limit."
    found = {key: row[prefix + key] for key in ("metric", "percentile", "share")}
    parts = {name.removeprefix(f"{prefix}parts."): share for name, share in row.items()
             if name.startswith(f"{prefix}parts.") and share is not None}
    return limit_text({**found, "parts": dict(sorted(parts.items(), key=lambda item: -item[1]))})


def limit_text(found: dict[str, Any]) -> str:
    """Return one line: the latency nearest its limit, and its parts. `found`: `nearest_limit` of the summary."""
    parts = ", ".join(f"{name} {share:.0%}" for name, share in list(found["parts"].items())[:4])
    return f"{limit_name(found['metric'], found['percentile'])} at {found['share']:.0%} of its limit: {parts}"
