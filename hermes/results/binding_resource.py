"""Binding resource: the resource that limits throughput, per group of equal clients and for the run.

The row of a run of steps whose plan left sequences waiting shows what they waited for: places in the batch (`slots`, as
many sequences as `max_num_seqs`), tokens of a step (`compute`, the batch is at its token budget), or blocks of memory
(`KV memory`, the batch had room for them). A batch at its token budget counts as `compute` even if no sequence waits,
and so does a batch that returns together, while it runs. KV that finds no room at its destination waits for `KV memory`
there. A service waits for `compute` if it is busy nearly all the time and work waits.

    share    of the window in which a resource was short; from half of it on, the resource binds
    link     binds if it is full, and holds transfers up, at least 90% of the time; likewise the link of a KV store
    machine  binds if its cores, or its memory bandwidth, are used more than 95%

If no resource binds, `arrivals` do: the clients serve the offered load as it comes. If all requests arrive at once,
nothing binds. A busy engine alone shows nothing: with continuous batching an engine that never rests may have room for
more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hermes.core.record import ClientInfo, RunRecord
from hermes.results.metrics import transfers_of_stages
from hermes.results.steady import Window
from hermes.results.usage import covered_ns, window_ns
from hermes.results.utilisation import THRESHOLD, resource_uses
from hermes.units import NS_PER_S

__all__ = ["BINDING_SHARE", "binding_summary", "client_groups"]

PART = 2**18   # runs at a time
BINDING_SHARE = 0.5
BUSY, FULL = 0.95, 0.9
CAUSES = ("compute", "slots", "KV memory")

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def client_groups(clients: list[ClientInfo]) -> dict[str, list[int]]:
    """Return the indices of the clients of each group, by the group's name. A client without a group is one by itself.
    """
    groups: dict[str, list[int]] = {}
    for index, info in enumerate(clients):
        name = info.group or info.name
        alike = groups.get(name)
        if alike is not None and (not info.group or clients[alike[0]].kind != info.kind):
            name = f"{name}#{index}"
        groups.setdefault(name, []).append(index)
    return groups


def binding_summary(record: RunRecord, window: Window) -> dict[str, Any]:
    """Return `binds` of the summary: `what`, `where` and `share` of the most binding resource, `all` binding resources,
    and `groups`: for each group of clients `what` binds there, and the shares."""
    start, end = window.start_ns, window.end_ns
    length = max(end - start, 1)
    shares = _of_steps(record, start, end) / length
    shares[:, CAUSES.index("KV memory")] += _waiting_to_move(record, start, end) / length
    busy = _busy(record, start, end) / length
    _of_services(record, shares, busy, start, end)
    groups, found = {}, []
    for name, members in client_groups(record.clients).items():
        mean, mean_busy = shares[members].mean(axis=0), float(busy[members].mean())
        top = int(mean.argmax())
        what = CAUSES[top] if mean[top] >= BINDING_SHARE else "arrivals" if mean_busy > 0 else "nothing"
        groups[name] = {
            "clients": len(members), "what": what, "busy_share": mean_busy,
            **{f"{cause.replace(' ', '_').lower()}_share": min(float(mean[i]), 1.0) for i, cause in enumerate(CAUSES)},
        }
        if mean[top] >= BINDING_SHARE:
            found.append((CAUSES[top], name, min(float(mean[top]), 1.0)))
    found += _of_resources(record, start, end)
    found.sort(key=lambda one: -one[2])
    if not found and window.stable is False and groups:
        found = [_most(groups)]
    once = window.why == "all requests arrive at once" or not len(record.stages["client"])
    what, where, share = found[0] if found else ("nothing" if once else "arrivals", None, None)
    if once:
        for group in groups.values():
            group["what"] = "nothing" if group["what"] == "arrivals" else group["what"]
    return {
        "what": what, "where": where, "share": share,
        "all": {f"{one} {name}": part for one, name, part in found}, "groups": groups,
    }


def _most(groups: dict[str, Any]) -> tuple[str, str, float]:
    """For a growing queue without a binding resource: return the one that was short most, or the busiest engine."""
    keys = {f"{cause.replace(' ', '_').lower()}_share": cause for cause in CAUSES}
    share, name, key = max((group[key], name, key) for name, group in groups.items() for key in keys)
    if share >= 0.1:
        return keys[key], name, share
    name = max(groups, key=lambda one: groups[one]["busy_share"])
    return "compute", name, groups[name]["busy_share"]


def _clipped(runs: dict[str, IntArray], start: int, end: int) -> IntArray:
    span: IntArray = np.maximum(np.minimum(runs["end_ns"], end) - np.maximum(runs["start_ns"], start), 0)
    return span


def _busy(record: RunRecord, start: int, end: int) -> npt.NDArray[np.float64]:
    n, stages = len(record.clients), record.stages
    busy = np.bincount(record.runs["client"], weights=_clipped(record.runs, start, end), minlength=n).astype(np.float64)
    for index in _without_steps(record):
        mine = stages["client"] == index
        busy[index] = covered_ns(np.clip(stages["start_ns"][mine], start, end),
                                 np.clip(stages["end_ns"][mine], start, end))
    return busy


def _without_steps(record: RunRecord) -> list[int]:
    served = np.bincount(record.stages["client"], minlength=len(record.clients))
    stepping = np.bincount(record.runs["client"], minlength=len(record.clients))
    return np.flatnonzero((served > 0) & (stepping == 0)).tolist()


def _of_steps(record: RunRecord, start: int, end: int) -> npt.NDArray[np.float64]:
    """Return the nanoseconds in which work waited for each of `CAUSES`, shape (clients, 3)."""
    count = len(record.runs["client"])
    parts = [_of_some(record, {name: column[low:low + PART] for name, column in record.runs.items()}, start, end)
             for low in range(0, count, PART)]
    return np.sum(parts, axis=0) if parts else np.zeros((len(record.clients), len(CAUSES)))


def _of_some(record: RunRecord, runs: dict[str, IntArray], start: int, end: int) -> npt.NDArray[np.float64]:
    """Return the same of some runs: columns as long as the table would be the largest memory of a long run."""
    n = len(record.clients)
    of = {name: np.array([getattr(info, name) for info in record.clients], dtype=np.int64)[runs["client"]]
          for name in ("max_num_seqs", "max_num_batched_tokens", "num_blocks", "block_size", "returns_together")}
    tokens, seqs = runs["prefill_tokens"] + runs["decode_seqs"], runs["running"]
    left = runs["left_waiting"] > 0
    # the needs of one more sequence like those in the batch
    prompt = runs["prefill_tokens"] // np.maximum(runs["prefill_seqs"], 1)
    blocks = np.where(runs["prefill_seqs"] > 0, -(-prompt // np.maximum(of["block_size"], 1)),
                      -(-runs["used_blocks"] // np.maximum(seqs, 1)))
    fits = (of["num_blocks"] == 0) | (runs["used_blocks"] + blocks <= of["num_blocks"])
    budget = of["max_num_batched_tokens"]
    at_budget = (budget > 0) & (tokens >= budget)
    whole = left & (runs["prefill_seqs"] > 0) & (tokens + prompt > budget) & fits   # a prompt is not split
    slots = left & (of["max_num_seqs"] > 0) & (seqs >= of["max_num_seqs"])
    together = left & (of["returns_together"] > 0) & fits
    compute = (at_budget | whole | together) & ~slots & (runs["preempted"] == 0)
    compute |= at_budget & (runs["preempted"] == 0)
    memory = (left & ~compute & ~slots) | (runs["preempted"] > 0)
    span = _clipped(runs, start, end)
    columns = (compute, slots & ~compute & ~memory, memory)
    return np.stack([np.bincount(runs["client"], weights=np.where(rows, span, 0), minlength=n) for rows in columns],
                    axis=1)


def _waiting_to_move(record: RunRecord, start: int, end: int) -> npt.NDArray[np.float64]:
    """Return the nanoseconds in which ready KV waited for room at each client, shape (clients,)."""
    out = np.zeros(len(record.clients))
    if "decode" not in record.stage_kinds or not len(record.transfers["request"]):
        return out
    stages, sent = record.stages, record.transfers
    transfer, stage = transfers_of_stages(record)
    decode = stages["kind"][stage] == record.stage_kinds.index("decode")
    transfer, stage = transfer[decode], stage[decode]
    prefills = np.flatnonzero(stages["kind"] == record.stage_kinds.index("prefill"))
    ready = np.zeros(len(record.arrival_ns), dtype=np.int64)
    np.maximum.at(ready, stages["request"][prefills], stages["end_ns"][prefills])
    since = np.maximum(stages["assigned_ns"][stage], ready[stages["request"][stage]])
    upto = np.maximum(sent["start_ns"][transfer], since)
    for client in np.unique(sent["dst"][transfer]).tolist():
        mine = sent["dst"][transfer] == client
        out[client] = covered_ns(np.clip(since[mine], start, end), np.clip(upto[mine], start, end))
    return out


def _of_services(record: RunRecord, shares: npt.NDArray[np.float64], busy: npt.NDArray[np.float64], start: int, end: int
                 ) -> None:
    """Add clients without steps: busy nearly all the time, with work that waits for most of it."""
    stages, machines = record.stages, {machine.client for machine in record.machines}
    for index in _without_steps(record):
        if index in machines or busy[index] < BUSY:   # machines count by their cores and bandwidth
            continue
        mine = stages["client"] == index
        waits = covered_ns(np.clip(stages["assigned_ns"][mine], start, end),
                           np.clip(stages["start_ns"][mine], start, end))
        shares[index, CAUSES.index("compute")] = waits / max(end - start, 1)


def _of_resources(record: RunRecord, start: int, end: int) -> list[tuple[str, str, float]]:
    """Return links and tiers that were full, and machines that were used up."""
    found: list[tuple[str, str, float]] = []
    if not (record.links or record.tiers or record.machines):
        return found
    whole = window_ns(record)
    length = max(whole[1] - whole[0], 1) / NS_PER_S
    links = {use.name: use for use in record.links} | {
        (f"{tier.name} of {tier.where}" if tier.where else tier.name): tier.link
        for tier in record.tiers if tier.link is not None}
    for use in resource_uses(record):
        if use.kind == "client":
            continue
        share = use.utilisation
        link = links.get(use.name) if use.kind in ("link", "tier") else None
        if link is not None:
            share = use.full_s / length
            if link.times_ns and end > start:
                sent = np.interp([start, end], link.times_ns, np.maximum.accumulate(link.sent_bytes))
                used = float(sent[1] - sent[0]) / (link.bandwidth * (end - start) / NS_PER_S)
                share = max(share, used if used > THRESHOLD else 0.0)
        if share >= (FULL if link is not None else THRESHOLD):
            found.append((use.kind, use.name, min(share, 1.0)))
    return found
