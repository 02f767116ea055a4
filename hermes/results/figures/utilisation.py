"""Utilisation of links, tiers, machines and clients. `hermes.results.figures.binding_resource` says which binds.

    link      bytes that left it over its capacity; one row for each direction of a full-duplex link
    tier      the same for the link over which a KV store is read and written
    machine   cores, or memory bandwidth, of a machine without an LLM engine
    client    time in which it served (LLM client: the engine was running a step, whatever its batch size)

Shares are of the window (`hermes.results.figures.usage`: first arrival to last completion), and of the busiest of
`WINDOWS` equal parts of it, which shows resources that were the limit only while requests arrived.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hermes.arrays import FloatArray, IntArray
from hermes.core.network import LinkUse
from hermes.core.record import RunRecord
from hermes.results.figures.usage import client_names, window_ns
from hermes.units import NS_PER_S

__all__ = ["KINDS", "THRESHOLD", "WINDOWS", "Use", "bottlenecks", "resource_uses", "utilisation_summary"]

THRESHOLD = 0.95
WINDOWS = 20
KINDS = ("link", "tier", "machine", "client")


@dataclass(frozen=True)
class Use:
    """Use of one resource.

    Attributes:
        kind: One of `KINDS`.
        capacity: Bytes/s, NaN for resources counted in time.
        num_bytes: Bytes moved in the window, NaN likewise.
        busy_s: Time with work.
        full_s: Time in which a link or tier held up its transfers, otherwise NaN.
        utilisation: Share used of the window.
        peak: Share used of its busiest twentieth, NaN if unknown.
    """

    kind: str
    name: str
    capacity: float
    num_bytes: float
    busy_s: float
    full_s: float
    utilisation: float
    peak: float


def resource_uses(record: RunRecord) -> list[Use]:
    """Return the use of every link, tier, machine and client, in this order."""
    start, end = window_ns(record)
    if end <= start:
        return []
    edges = np.linspace(start, end, WINDOWS + 1)
    return [
        *(_of_link("link", use.name, use, edges) for use in record.links),
        *(_of_link("tier", _tier_name(tier), tier.link, edges) for tier in record.tiers if tier.link is not None),
        *_machines(record, end - start),
        *_clients(record, edges),
    ]


def bottlenecks(uses: list[Use]) -> list[Use]:
    """Return links, tiers and machines used more than `THRESHOLD` of the window, or of a part of it, most used first.

    Clients are not among them: a busy engine may have room for more.
    """
    found = [u for u in uses if u.kind != "client" and (u.utilisation > THRESHOLD or u.peak > THRESHOLD)]
    return sorted(found, key=lambda u: (u.utilisation <= THRESHOLD, KINDS.index(u.kind), -u.utilisation, u.name))


def utilisation_summary(record: RunRecord) -> dict[str, Any]:
    """Return `bottlenecks` of the summary (name -> use), and the most used resource of each kind."""
    uses = resource_uses(record)
    most: dict[str, Any] = {}
    for kind in KINDS:
        mine = [use for use in uses if use.kind == kind]
        if mine:
            top = max(mine, key=lambda use: use.utilisation)
            most[kind] = {"name": top.name, "utilisation": top.utilisation, "peak": _plain(top.peak)}
    return {
        "threshold": THRESHOLD, "windows": WINDOWS, "most_used": most,
        "bottlenecks": {
            f"{use.kind} {use.name}": {
                "utilisation": use.utilisation, "peak": _plain(use.peak), "whole_window": use.utilisation > THRESHOLD,
            }
            for use in bottlenecks(uses)
        },
    }


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else value


def _tier_name(tier: Any) -> str:
    return f"{tier.name} of {tier.where}" if tier.where else str(tier.name)


def _of_link(kind: str, name: str, use: LinkUse, edges: FloatArray) -> Use:
    width = float(edges[-1] - edges[0]) / NS_PER_S
    if not use.times_ns:
        return Use(kind, name, use.bandwidth, 0.0, 0.0, 0.0, 0.0, 0.0)
    sent = np.interp(edges, use.times_ns, np.maximum.accumulate(use.sent_bytes))
    moved = float(sent[-1] - sent[0])
    part = float(np.diff(sent).max()) / (use.bandwidth * width / WINDOWS)
    return Use(kind, name, use.bandwidth, moved, use.busy_ns / NS_PER_S, use.full_ns / NS_PER_S,
               moved / (use.bandwidth * width), part)


def _machines(record: RunRecord, window: int) -> Iterator[Use]:
    names = client_names(record)
    for machine in record.machines:
        for what, used in (("cores", machine.core_ns), ("memory bandwidth", machine.bandwidth_ns)):
            yield Use("machine", f"{names[machine.client]}: {what}", np.nan, np.nan, machine.busy_ns / NS_PER_S, np.nan,
                      used / window, np.nan)


def _clients(record: RunRecord, edges: FloatArray) -> Iterator[Use]:
    """Yield the use of clients. Runs of steps do not overlap; stages of clients without runs may."""
    runs, n, served = record.runs, len(record.clients), record.started
    stages = {name: record.stages[name][served] for name in ("client", "start_ns", "end_ns")}
    by_run, by_stage = (np.argsort(table["client"], kind="stable") for table in (runs, stages))
    ranges = np.arange(n + 1)
    run_at = pairwise(np.searchsorted(runs["client"][by_run], ranges))
    stage_at = pairwise(np.searchsorted(stages["client"][by_stage], ranges))
    for name, (a, b), (c, d) in zip(client_names(record), run_at, stage_at, strict=True):
        table, rows = (runs, by_run[a:b]) if b > a else (stages, by_stage[c:d])
        busy = _busy_by(edges, table["start_ns"][rows], table["end_ns"][rows])
        inside = np.diff(busy)
        whole = float(busy[-1] - busy[0])
        yield Use("client", name, np.nan, np.nan, whole / NS_PER_S, np.nan, whole / float(edges[-1] - edges[0]),
                  float(inside.max()) / float(edges[1] - edges[0]))


def _busy_by(times: FloatArray, start: IntArray, end: IntArray) -> FloatArray:
    """Return how long at least one of the intervals was under way before each of `times`."""
    if len(start) == 0:
        return np.zeros(len(times))
    order = np.argsort(start, kind="stable")
    start, upto = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], start[1:] > upto[:-1]))      # start of a stretch without a break
    begin = start[first]
    stop = upto[np.concatenate((np.flatnonzero(first)[1:] - 1, [len(upto) - 1]))]
    done = np.concatenate(([0], np.cumsum(stop - begin)))
    index = np.searchsorted(begin, times, side="right")
    running = np.where(index > 0, np.minimum(times, stop[index - 1]) - begin[index - 1], 0.0)
    return np.asarray(done[np.maximum(index - 1, 0)] + running, dtype=np.float64)
