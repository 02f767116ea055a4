"""A run as OpenMetrics: what Prometheus would have scraped from its engines, every so many simulated seconds.

Names, labels and buckets are vLLM's (vllm/v1/metrics/loggers.py), names also SGLang's (srt/metrics/collector.py) by the
engine of the client, read, not run. `pod` is the client; it has samples while it serves. A sequence that was preempted
counts as running. Times begin when the engine gets a request, not when its user sends it.

    promtool tsdb create-blocks-from openmetrics run.om
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from hermes.arrays import FloatArray, IntArray
from hermes.config.yaml_document import parse_yaml
from hermes.core.record import RunRecord
from hermes.errors import InputError, inside
from hermes.results.figures.membership import SERVES, spans_in
from hermes.results.figures.usage import client_names
from hermes.results.files.stored import StoredResults
from hermes.results.metrics import stage_token_steps
from hermes.units import NS_PER_S, parse_duration, parse_number

__all__ = ["engines_of", "instant", "interval", "metric_lines"]

MOST_LINES = 20_000_000
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
         160.0, 640.0, 2560.0)
_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_WHOLE = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
          1920.0, 7680.0)


class _Family(NamedTuple):
    """A metric: its key in `_Engine`, type, name by engine ("" for none), help, labels and buckets."""

    key: str
    kind: str
    names: Mapping[str, str]
    text: str
    labels: str = ""
    buckets: tuple[float, ...] = ()


def _both(name: str) -> dict[str, str]:
    return {"vllm": f"vllm:{name}", "sglang": f"sglang:{name}"}


FAMILIES = (
    _Family("running", "gauge", {"vllm": "vllm:num_requests_running", "sglang": "sglang:num_running_reqs"},
            "Requests in the batch."),
    _Family("waiting", "gauge", {"vllm": "vllm:num_requests_waiting", "sglang": "sglang:num_queue_reqs"},
            "Requests that wait at the engine."),
    _Family("kv_use", "gauge", {"vllm": "vllm:kv_cache_usage_perc", "sglang": "sglang:token_usage"},
            "Share of the KV cache in use."),
    _Family("prompt", "counter", _both("prompt_tokens"), "Prompt tokens."),
    _Family("generation", "counter", _both("generation_tokens"), "Output tokens."),
    _Family("finished", "counter", {"vllm": "vllm:request_success"}, "Finished requests.",
            ',finished_reason="length"'),
    _Family("finished", "counter", {"sglang": "sglang:num_requests"}, "Finished requests."),
    _Family("preemptions", "counter", {"vllm": "vllm:num_preemptions"}, "Preemptions."),
    _Family("queries", "counter", {"vllm": "vllm:prefix_cache_queries"}, "Prompt tokens looked up."),
    _Family("hits", "counter", {"vllm": "vllm:prefix_cache_hits", "sglang": "sglang:cached_tokens"},
            "Prompt tokens found in the prefix cache."),
    _Family("ttft", "histogram", _both("time_to_first_token_seconds"), "Time to first token.", "", _TTFT),
    _Family("itl", "histogram", _both("inter_token_latency_seconds"), "Time between two tokens.", "", _TOKEN),
    _Family("tpot", "histogram", {"vllm": "vllm:request_time_per_output_token_seconds"},
            "Time of an output token but the first, mean of a request.", "", _TOKEN),
    _Family("queue", "histogram", {"vllm": "vllm:request_queue_time_seconds", "sglang": "sglang:queue_time_seconds"},
            "Time in the queue.", "", _WHOLE),
    _Family("e2e", "histogram", _both("e2e_request_latency_seconds"), "Time of a request.", "", _WHOLE),
)


class _Events(NamedTuple):
    """What happens at an engine: times (ns), values, and how often each counts; shape (events,) each."""

    time_ns: IntArray
    values: FloatArray
    counts: IntArray

    def sorted(self) -> _Events:
        order = np.argsort(self.time_ns, kind="stable")
        return _Events(self.time_ns[order], self.values[order], self.counts[order])

    def totals(self, at_ns: IntArray, amounts: FloatArray | IntArray) -> FloatArray:
        """Return the sum of amounts up to each time; events in order of time."""
        sums = np.concatenate([[0], np.cumsum(amounts)])
        return np.asarray(sums[np.searchsorted(self.time_ns, at_ns, side="right")])


def _events(time_ns: IntArray, values: FloatArray | IntArray, counts: IntArray | None = None) -> _Events:
    once = np.ones(len(time_ns), dtype=np.int64) if counts is None else counts
    return _Events(time_ns, np.asarray(values, dtype=np.float64), once).sorted()


class _Engine:
    """The series of a client.

    Attributes:
        gauges: Values by key, shape (samples,).
        events: Of counters (their values are amounts) and histograms (seconds), by key.
    """

    def __init__(self, record: RunRecord, client: int, at_ns: IntArray) -> None:
        stages, info = record.stages, record.clients[client]
        rows = np.flatnonzero(stages["client"] == client)
        mine = {name: column[rows] for name, column in stages.items()}
        begun, emits = mine["start_ns"] >= 0, mine["first_token_ns"] >= 0
        until = np.where(begun, mine["start_ns"], mine["end_ns"])
        prompts = emits & (mine["kind"] != record.stage_kinds.index("decode"))
        answers = emits & (mine["output_tokens"] > 1)
        gives = emits & (mine["output_tokens"] > 0)   # a prefill client may leave the first token to decode
        gaps = _gaps(record, client, rows[answers])
        first, end, assigned = mine["first_token_ns"], mine["end_ns"], mine["assigned_ns"]
        running = _level(mine["start_ns"][begun], end[begun], at_ns)
        self.gauges = {"running": running, "waiting": _level(assigned, until, at_ns),
                       "kv_use": _kv_use(record, client, at_ns) * (running > 0) / max(info.num_blocks, 1)}
        self.events = {
            "prompt": _events(first[prompts], mine["prompt_tokens"][prompts]),
            "generation": _events(np.concatenate([first[gives], gaps.time_ns]),
                                  np.concatenate([np.ones(int(gives.sum())), gaps.counts])),
            "finished": _events(end[emits], np.ones(int(emits.sum()))),
            "preemptions": _events(end, mine["preemptions"]),
            "queries": _events(mine["start_ns"][begun], mine["prompt_tokens"][begun] * info.prefix_caching),
            "hits": _events(mine["start_ns"][begun], mine["cached_tokens"][begun]),
            "ttft": _events(first[prompts], (first - assigned)[prompts] / NS_PER_S), "itl": gaps,
            "tpot": _events(end[answers], ((end - first) / NS_PER_S)[answers] / (mine["output_tokens"][answers] - 1)),
            "queue": _events(end[begun], (until - assigned)[begun] / NS_PER_S),
            "e2e": _events(end[emits], (end - assigned)[emits] / NS_PER_S)}


def _level(begin: IntArray, end: IntArray, at_ns: IntArray) -> IntArray:
    """Return how many of some spans hold at each time."""
    begun, ended = (np.searchsorted(np.sort(times), at_ns, side="right") for times in (begin, end))
    return np.asarray(begun - ended)


def _kv_use(record: RunRecord, client: int, at_ns: IntArray) -> FloatArray:
    """Return the blocks in use, linear between the ends of two runs of steps."""
    mine = record.runs["client"] == client
    ends, used = (record.runs[name][mine] for name in ("end_ns", "used_blocks"))
    return np.interp(at_ns, ends, used, left=0.0) if len(ends) else np.zeros(len(at_ns))


def _gaps(record: RunRecord, client: int, rows: IntArray) -> _Events:
    """Return the times between two tokens of the same stage. rows: Stages with more than one token."""
    ends, irregular = record.step_ends[client], set(record.gaps)
    apart = bool(record.decode_steps) and record.decode_steps[client] is not None
    alone = [row for row in rows.tolist() if apart or row in irregular]
    regular = np.setdiff1d(rows, np.array(alone, dtype=np.int64))
    begin, stop = record.stages["first_step"][regular], record.stages["last_step"][regular]
    counts = np.cumsum(np.bincount(begin, minlength=len(ends)) - np.bincount(stop, minlength=len(ends)))
    used = np.flatnonzero(counts)   # interval j lies between steps j and j + 1
    times, values, weights = [ends[used + 1]], [ends[used + 1] - ends[used]], [counts[used]]
    for row in alone:
        steps = ends[stage_token_steps(record, row)]
        times.append(steps[1:])
        values.append(np.diff(steps))
        weights.append(np.ones(max(len(steps) - 1, 0), dtype=np.int64))
    return _events(np.concatenate(times), np.concatenate(values) / NS_PER_S, np.concatenate(weights))


def engines_of(results: StoredResults) -> dict[str, str]:
    """Return `vllm` or `sglang` for each group of clients; engines of other kinds are given vLLM's names."""
    text = results.scenario_text
    clients = [] if text is None else parse_yaml(text).plain().get("clients") or []
    return {str(group.get("name")): "sglang" if str(group.get("engine")).startswith("sglang") else "vllm"
            for group in clients if isinstance(group, dict)}


def interval(text: str) -> float:
    """Return the time between two samples in seconds. Raises `InputError` for anything but a time above 0."""
    with inside("--every"):
        seconds = parse_duration(text)
        if seconds <= 0:
            raise InputError("a time above 0", text)
        return seconds


def instant(text: str) -> float:
    """Return an instant in seconds since 1970: a number, or a date with time."""
    try:
        return parse_number(text)
    except (TypeError, ValueError):
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InputError("seconds since 1970, or a date and time such as 2026-01-31T08:00:00Z", text,
                         field="--start") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def metric_lines(record: RunRecord, engines: Mapping[str, str], every_s: float, start_s: float) -> Iterator[str]:
    """Yield the lines of a run's metrics.

    Args:
        record: The run.
        engines: `vllm` or `sglang` by group of clients.
        every_s: Simulated time between two samples.
        start_s: Time of the simulation's beginning, in seconds since 1970.

    Raises `InputError` for a run without engines, and for more than 20 million lines.
    """
    clients = [number for number, info in enumerate(record.clients) if info.kind == "llm"]
    if not clients:
        raise InputError("a run with LLM clients", found=None)
    last = max(int(record.stages["end_ns"].max(initial=0)), 1)
    step = max(round(every_s * NS_PER_S), 1)
    count = -(-last // step) + 1
    lines = count * len(clients) * sum(len(family.buckets) + 3 for family in FAMILIES)
    if lines > MOST_LINES:
        raise InputError(f"at least {every_s * lines / MOST_LINES:.3g} s, for at most {MOST_LINES:,} lines", every_s,
                         field="--every")
    at_ns = np.arange(count, dtype=np.int64) * step
    stamps = [_number(start_s + time / NS_PER_S) for time in at_ns.tolist()]
    there = {client: _scraped(record, client, at_ns) for client in clients}
    names = client_names(record)
    series = {client: _Engine(record, client, at_ns) for client in clients}
    for family in FAMILIES:
        for engine, name in family.names.items():
            mine = [client for client in clients if engines.get(record.clients[client].group, "vllm") == engine]
            if not mine:
                continue
            yield f"# TYPE {name} {family.kind}"
            yield f"# HELP {name} {family.text}"
            for client in mine:
                labels = f'model_name="{record.clients[client].model}",engine="0",pod="{names[client]}"{family.labels}'
                yield from _samples(family, name, labels, series[client], at_ns, stamps, there[client])
    yield "# EOF"


def _scraped(record: RunRecord, client: int, at_ns: IntArray) -> list[bool]:
    """Return whether an engine answers at each time: an empty slot, a replica that starts and a dead one have no
    samples."""
    begin, end = spans_in(record, client, SERVES, 0, max(int(at_ns[-1]), record.end_ns) + 1)
    place = np.searchsorted(begin, at_ns, side="right") - 1
    found: list[bool] = ((place >= 0) & (at_ns < np.append(end, 0)[place])).tolist()
    return found


def _samples(family: _Family, name: str, labels: str, engine: _Engine, at_ns: IntArray, stamps: list[str],
             there: list[bool]) -> Iterator[str]:
    if family.kind == "gauge":
        for value, stamp, answers in zip(engine.gauges[family.key].tolist(), stamps, there, strict=True):
            if answers:
                yield f"{name}{{{labels}}} {_number(value)} {stamp}"
        return
    events = engine.events[family.key]
    sums = events.totals(at_ns, events.values * events.counts).tolist()
    if family.kind == "counter":
        totals = events.totals(at_ns, events.values).tolist()
        for value, stamp, answers in zip(totals, stamps, there, strict=True):
            if answers:
                yield f"{name}_total{{{labels}}} {_number(value)} {stamp}"
        return
    limits = [*family.buckets, np.inf]
    columns = [events.totals(at_ns, events.counts * (events.values <= limit)).tolist() for limit in limits]
    texts = [f"{limit}" if np.isfinite(limit) else "+Inf" for limit in limits]
    for place, stamp in [each for each in enumerate(stamps) if there[each[0]]]:
        for text, column in zip(texts, columns, strict=True):
            yield f'{name}_bucket{{{labels},le="{text}"}} {_number(column[place])} {stamp}'
        yield f"{name}_count{{{labels}}} {_number(columns[-1][place])} {stamp}"
        yield f"{name}_sum{{{labels}}} {_number(sums[place])} {stamp}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
