"""Chrome trace (JSON) of a simulation, for https://ui.perfetto.dev or chrome://tracing.

Clients are processes: their runs of steps are slices, their stages asynchronous spans (waiting and service apart), and
sequences running and waiting and KV blocks in use are counters. Two more processes hold one span per request and the
transfers. Arrows (flow events) follow a request from the run that completed a stage to the run that started the next
one on another client. Where clients come and go, each has a second thread with the states of its replicas, and one more
process counts the ready ones of each group, and has the incidents. Times are microseconds with three decimals.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hermes.arrays import IntArray
from hermes.core.record import READY, STATUS_COMPLETED, RunRecord
from hermes.results.figures.incidents import incidents
from hermes.results.figures.membership import fleet_groups
from hermes.results.figures.replica_states import spans, state_counts
from hermes.results.figures.usage import client_names
from hermes.results.files.frames import STATUSES
from hermes.results.metrics import RequestMetrics, attempts_moved
from hermes.results.slo import SloConfig, slo_given, slo_groups
from hermes.units import NS_PER_S

__all__ = ["MAX_TRACE_EVENTS", "trace_events", "write_trace"]

MAX_TRACE_EVENTS = 200_000

Event = dict[str, Any]

_REQUESTS, _NETWORK, _FIRST_CLIENT = 1, 2, 3  # process ids; some viewers take 0 for the idle process
_STEPS, _REPLICA = 1, 2  # threads of a client: its runs, and the states of its replicas


@dataclass(frozen=True)
class _Rows:
    """Rows of the record that the trace includes, and the number of events of all rows."""

    runs: IntArray
    stages: IntArray
    requests: IntArray
    transfers: IntArray
    links: IntArray              # shape (links, 2): stage rows that follow each other on different clients
    total_events: int
    until_ns: int | None         # set when the trace was cut: later starts are left out


def _links(record: RunRecord) -> IntArray:
    """Return pairs of consecutive stages of one request, in order of completion, on two clients that work in runs."""
    stages = record.stages
    order = np.lexsort((stages["end_ns"], stages["request"]))
    before, after = order[:-1], order[1:]
    stepping = np.zeros(len(record.clients), dtype=bool)
    stepping[record.runs["client"]] = True
    client = stages["client"]
    keep = (
        (stages["request"][before] == stages["request"][after]) & (client[before] != client[after])
        & stepping[client[before]] & stepping[client[after]] & (stages["start_ns"][after] >= stages["end_ns"][before])
    )
    return np.stack((before[keep], after[keep]), axis=1)


def _select(record: RunRecord, max_events: int) -> _Rows:
    """Select the rows that start before the trace would exceed `max_events`."""
    stages, links = record.stages, _links(record)
    starts = {
        "runs": record.runs["start_ns"], "stages": stages["assigned_ns"], "requests": record.arrival_ns,
        "transfers": record.transfers["start_ns"], "links": stages["start_ns"][links[:, 1]],
        "replicas": record.membership[:, 2],
    }
    cost = {"runs": 3, "stages": 4, "requests": 2, "transfers": 2, "links": 2, "replicas": 2}
    total = sum(len(column) * cost[name] for name, column in starts.items())
    until: int | None = None
    if total > max_events:
        when = np.concatenate(list(starts.values()))
        events = np.concatenate([np.full(len(column), cost[name]) for name, column in starts.items()])
        order = np.argsort(when, kind="stable")
        until = int(when[order[np.searchsorted(np.cumsum(events[order]), max_events, side="right")]])
    rows = {
        name: np.flatnonzero((column >= 0) & (True if until is None else column < until))
        for name, column in starts.items()
    }
    return _Rows(rows["runs"], rows["stages"], rows["requests"], rows["transfers"], links[rows["links"]], total, until)


def _us(ns: int) -> float:
    return ns / 1000


def _lists(columns: dict[str, IntArray], rows: IntArray) -> Iterator[dict[str, int]]:
    names = list(columns)
    for values in zip(*(columns[name][rows].tolist() for name in names), strict=True):
        yield dict(zip(names, values, strict=True))


def _span(pid: int, cat: str, key: int, name: str, start: int, end: int, args: dict[str, Any]) -> Iterator[Event]:
    common = {"cat": cat, "name": name, "pid": pid, "tid": 0, "id2": {"local": hex(key)}}
    yield {"ph": "b", "ts": _us(start), **common, "args": args}
    yield {"ph": "e", "ts": _us(end), **common}


def _processes(record: RunRecord) -> Iterator[Event]:
    names = ["requests", "network", *client_names(record)]
    for place, name in enumerate(names):
        pid = place + _REQUESTS
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": place}}
        if pid >= _FIRST_CLIENT:
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": _STEPS, "args": {"name": "steps"}}
    if len(record.membership):
        pid = _FIRST_CLIENT + len(record.clients)
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "replicas"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": len(names)}}
        for client in np.unique(record.membership[:, 0]).tolist():
            yield {"ph": "M", "name": "thread_name", "pid": _FIRST_CLIENT + client, "tid": _REPLICA,
                   "args": {"name": "replica"}}


def _runs(record: RunRecord, rows: IntArray) -> Iterator[Event]:
    shown = ("num_steps", "prefill_seqs", "prefill_tokens", "prefill_past", "decode_seqs", "decode_ctx", "preempted")
    for run in _lists(record.runs, rows):
        pid = _FIRST_CLIENT + run["client"]
        parts = [f"{run[key]} {word}" for key, word in (("prefill_seqs", "prefill"), ("decode_seqs", "decode"))
                 if run[key]]
        steps = f" x{run['num_steps']}" if run["num_steps"] > 1 else ""
        yield {
            "ph": "X", "cat": "run", "name": (" + ".join(parts) or "run") + steps, "pid": pid, "tid": _STEPS,
            "ts": _us(run["start_ns"]), "dur": _us(run["end_ns"] - run["start_ns"]),
            "args": {key: run[key] for key in shown},
        }
        counter = {"ph": "C", "pid": pid, "tid": _STEPS, "ts": _us(run["start_ns"])}
        yield {**counter, "name": "sequences", "args": {"running": run["running"], "waiting": run["waiting"]}}
        if record.clients[run["client"]].num_blocks:
            yield {**counter, "ts": _us(run["end_ns"]), "name": "KV blocks", "args": {"used": run["used_blocks"]}}


def _stages(record: RunRecord, rows: IntArray) -> Iterator[Event]:
    shown = ("request", "prompt_tokens", "output_tokens", "cached_tokens", "preemptions")
    names, moved = record.stage_kinds, attempts_moved(record)
    for row, stage in zip(rows.tolist(), _lists(record.stages, rows), strict=True):
        pid, kind, start = _FIRST_CLIENT + stage["client"], names[stage["kind"]], stage["start_ns"]
        args: dict[str, Any] = {key: stage[key] for key in shown}
        if moved and (attempt := int(record.stage_attempts[row])) in moved:
            args |= {"attempt": moved[attempt][0], "outcome": moved[attempt][1]}
        if start > stage["assigned_ns"] and stage["branch"] <= 0:
            yield from _span(pid, "queue", row, f"{kind} waiting", stage["assigned_ns"], start, args)
        if kind == "prefill" and stage["branch"] > 0:
            continue   # equal to the first branch's
        if stage["branch"] >= 0:
            args |= {"branch": stage["branch"], "fork": stage["fork"]}
            if stage["branch"] and kind != "decode":   # the prompt is computed with the first branch
                start = stage["first_token_ns"]
            kind = f"{kind} branch {stage['branch']}"
        if start >= 0:
            yield from _span(pid, "stage", row, kind, start, stage["end_ns"], args)
        else:   # its request was given up before
            yield from _span(pid, "queue", row, f"{kind} waiting", stage["assigned_ns"], stage["end_ns"], args)


def _requests(record: RunRecord, metrics: RequestMetrics, rows: IntArray) -> Iterator[Event]:
    columns = {
        "arrival": record.arrival_ns, "finish": record.finish_ns, "status": record.status.astype(np.int64),
        "prompt_tokens": record.prompt_tokens, "output_tokens": record.output_tokens, "ttft": metrics.ttft_ns,
    }
    for key, request in zip(rows.tolist(), _lists(columns, rows), strict=True):
        args: dict[str, Any] = {"prompt_tokens": request["prompt_tokens"], "output_tokens": request["output_tokens"],
                                "status": STATUSES[request["status"]]}
        if request["ttft"] >= 0:
            args["ttft_ms"] = request["ttft"] / 1e6
        if key in record.reject_reasons:
            args["reason"] = record.reject_reasons[key]
        done = request["status"] == STATUS_COMPLETED
        end = request["finish"] if done else request["arrival"] if args.get("reason") else record.end_ns
        yield from _span(_REQUESTS, "request", key, f"request {key}", request["arrival"], end, args)


def _transfers(record: RunRecord, rows: IntArray) -> Iterator[Event]:
    names = client_names(record)
    for row, sent in zip(rows.tolist(), _lists(record.transfers, rows), strict=True):
        ends = [names[sent[end]] if 0 <= sent[end] < len(names) else "outside" for end in ("src", "dst")]
        args = {"request": sent["request"], "bytes": sent["bytes"]}
        yield from _span(_NETWORK, "transfer", row, " -> ".join(ends), sent["start_ns"], sent["end_ns"], args)


def _replicas(record: RunRecord, until_ns: int | None) -> Iterator[Event]:
    """Yield the states of replicas as slices, those of no length left out, and the ready ones of each group."""
    for span in spans(record):
        if span.end_ns > span.start_ns and (until_ns is None or span.start_ns < until_ns):
            args = {"incarnation": span.incarnation, "reason": span.reason} | ({"then": span.then} if span.then else {})
            yield {"ph": "X", "cat": "replica", "name": span.state, "pid": _FIRST_CLIENT + span.client,
                   "tid": _REPLICA, "ts": _us(span.start_ns), "dur": _us(span.end_ns - span.start_ns), "args": args}
    for group, members in fleet_groups(record).items():
        times, counts = state_counts(record, members)
        before = -1
        for time, ready in zip(times.tolist(), counts[:, READY].tolist(), strict=True):
            if ready != before and (until_ns is None or time < until_ns):
                yield {"ph": "C", "pid": _FIRST_CLIENT + len(record.clients), "tid": 0, "ts": _us(time),
                       "name": f"ready {group}", "args": {"ready": ready}}
            before = ready


def _incidents(record: RunRecord, metrics: RequestMetrics, slo: SloConfig, until_ns: int | None) -> Iterator[Event]:
    """Yield each incident as a span until capacity is back and the SLO met again, with its times as marks."""
    for key, one in enumerate(incidents(record, metrics, slo_groups(slo, record)) if record.incidents else ()):
        at = one.at_ns
        if until_ns is not None and at >= until_ns:
            return
        times = {"noticed": one.noticed_s, "traffic left": one.left_s, "capacity back": one.back_s,
                 "recovered": one.recovered_s}
        known = {name: at + round(value * NS_PER_S) for name, value in times.items() if value is not None}
        open_ = one.back_s is None or (one.recovered_s is None and slo_given(slo_groups(slo, record)))
        end = record.end_ns if open_ else max(known.values())
        name, pid = f"{one.kind} of {one.clients[0]}", _FIRST_CLIENT + len(record.clients)
        yield from _span(pid, "incident", key, name, at, end, one.row)
        for mark, time in known.items():
            yield {"ph": "n", "cat": "incident", "name": mark, "pid": pid, "tid": 0, "id2": {"local": hex(key)},
                   "ts": _us(time)}


def _flows(record: RunRecord, links: IntArray) -> Iterator[Event]:
    stages = record.stages
    for key, (before, after) in enumerate(links.tolist()):
        common = {"cat": "flow", "name": f"request {stages['request'][after]}", "id": key, "tid": _STEPS}
        # one nanosecond before the end, inside the slice from which the arrow starts
        yield {"ph": "s", "pid": _FIRST_CLIENT + int(stages["client"][before]),
               "ts": _us(int(stages["end_ns"][before]) - 1), **common}
        yield {"ph": "f", "bp": "e", "pid": _FIRST_CLIENT + int(stages["client"][after]),
               "ts": _us(int(stages["start_ns"][after])), **common}


def trace_events(record: RunRecord, metrics: RequestMetrics, max_events: int = MAX_TRACE_EVENTS,
                 slo: SloConfig | None = None) -> Iterator[Event]:
    """Yield at most `max_events` events, besides names, incidents and the note of where a trace was cut."""
    return _events(record, metrics, slo or SloConfig(), _select(record, max_events), max_events)


def _cut_text(rows: _Rows, max_events: int) -> str | None:
    """Return where a trace was cut, in words; None for a whole one."""
    if rows.until_ns is None:
        return None
    return (f"trace cut at {rows.until_ns / 1e9:.6g} s: the whole has about {rows.total_events:,} events, "
            f"the limit is {max_events:,}")


def _events(record: RunRecord, metrics: RequestMetrics, slo: SloConfig, rows: _Rows, max_events: int
            ) -> Iterator[Event]:
    yield from _processes(record)
    text = _cut_text(rows, max_events)
    if text is not None and rows.until_ns is not None:
        yield {"ph": "i", "s": "g", "name": text, "pid": _REQUESTS, "tid": 0, "ts": _us(rows.until_ns)}
    yield from _runs(record, rows.runs)
    yield from _stages(record, rows.stages)
    yield from _requests(record, metrics, rows.requests)
    yield from _transfers(record, rows.transfers)
    yield from _flows(record, rows.links)
    if len(record.membership):
        yield from _replicas(record, rows.until_ns)
    yield from _incidents(record, metrics, slo, rows.until_ns)


def write_trace(
    record: RunRecord, metrics: RequestMetrics, path: Path, max_events: int = MAX_TRACE_EVENTS, *,
    compress: bool = True, slo: SloConfig | None = None,
) -> str | None:
    """Write the trace, gzipped by default (viewers open that). Equal records give equal bytes.

    Returns where the trace was cut, in words, or None for a whole one.
    """
    rows = _select(record, max_events)
    with path.open("wb") as raw:
        # no file name and no time in the gzip header: they would differ from run to run
        packed: Any = gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) if compress else raw
        with io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as out:
            out.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
            separator = ""
            for event in _events(record, metrics, slo or SloConfig(), rows, max_events):
                out.write(separator + json.dumps(event, separators=(",", ":"), allow_nan=False))
                separator = ",\n"
            out.write("\n]}\n")
    return _cut_text(rows, max_events)
