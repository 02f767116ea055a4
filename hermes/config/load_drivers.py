"""Results of load drivers as tables of one form: aiperf, GuideLLM, inference-perf, LLMPerf, BLIS.

Those with a list per column (vLLM's and SGLang's) are `hermes.config.bench_results`.

Each driver has a clock and units of its own, and names of its own (`hermes.config.columns`). A table here has `request`
(numbered by the time it was sent), `arrival_s` (when it was sent, on the driver's clock), `prompt_tokens`,
`output_tokens`, `ttft_s` and `e2e_s` from that instant, and `error`; a failed request has no output tokens and no
times. Without a clock, `request` and `arrival_s` are missing, and the order is the file's. Where the driver keeps what
it sent (GuideLLM's `request_args`, inference-perf's `request`), `max_new_tokens` is what the request asked for, NaN
where unknown: with `ignore_eos`, the tokens that it got.

| driver | file | clock | units |
| --- | --- | --- | --- |
| aiperf | profile_export.jsonl | nanoseconds since 1970 | each metric states its own |
| GuideLLM | benchmarks.json | seconds since 1970 | TTFT in ms, latency in s |
| inference-perf | per_request_lifecycle_metrics.json | seconds of any origin | seconds |
| LLMPerf | NAME_individual_responses.json | none: in the order in which they ended | seconds |
| BLIS | trace data (CSV, version 2) | microseconds of any origin | microseconds, by the columns' names |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hermes.arrays import BoolArray
from hermes.config.columns import DURATIONS, LARGEST, PER_S, TIMES, TOKENS, TOOLS, Source, source
from hermes.config.files import MAX_DOCUMENT_BYTES, csv_rows, json_lines, open_file, read_json
from hermes.config.tables import Table, csv_table, lookup
from hermes.errors import InputError, Verbatim

__all__ = ["DRIVERS", "driver_of", "driver_table"]

_UNITS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_NEEDED = ("prompt_tokens", "output_tokens", "e2e", "finish")
_LIMITS = ("max_completion_tokens", "max_tokens", "max_new_tokens")
COUNTS = ("prompt_tokens", "output_tokens", "max_new_tokens", "prefix_tokens")
TEXTS = ("session", "prefix_group")


class Sent(NamedTuple):
    """A request in a driver's file: its line or its place in the document, its object, and why it failed."""

    line: int | None
    place: str
    row: Mapping[str, Any]   # Any: JSON
    error: str = ""


def driver_table(kind: str, path: Path, **options: Any) -> Table:
    """Return the requests in a file of a driver, in the order in which they were sent.

    options: For GuideLLM, `benchmark`, the number of one of several. Raises `InputError` for anything that is not such
    a file, with its place in it.
    """
    names = {ours: source(theirs, "s") for ours, theirs in TOOLS[kind].items()}
    table = _blis(path) if kind == "blis" else _raw_table(path, list(DRIVERS[kind](path, **options)), names)
    if not len(table):
        raise InputError("at least one request", Verbatim("none"), file=str(path))
    failed = np.array([bool(error) for error in table.columns["error"]])
    needed = _NEEDED if kind != "blis" else ()   # whose generated traces have no times
    found = {name: _typed(table, name, names.get(name), ~failed & (name in needed)) for name in table.columns
             if name not in (*TEXTS, "error")}
    columns = {name: found[name] for name in COUNTS if name in found}
    columns |= {"arrival_s": found["arrival"]} if "arrival" in found else {}
    for name, end in (("ttft", "first_token"), ("e2e", "finish")):
        duration = found[name] if name in found else found[end] - found["arrival"]
        columns[f"{name}_s"] = np.where(failed, np.nan, duration)
    columns["output_tokens"] = np.where(failed, 0, columns["output_tokens"])
    for name in ("prompt_tokens", "output_tokens"):
        columns[name] = np.nan_to_num(columns[name]).astype(np.int64)
    order, numbers = np.arange(len(failed)), {}
    if "arrival_s" in columns:
        order, numbers = np.argsort(columns["arrival_s"], kind="stable"), {"request": order}
    texts = {name: [table.columns[name][row] for row in order] for name in (*TEXTS, "error") if name in table}
    return Table(path, {**numbers, **{name: column[order] for name, column in columns.items()}, **texts},
                 places=[f"request {row}, " for row in range(len(order))])


def _raw_table(path: Path, sent: list[Sent], names: Mapping[str, Source]) -> Table:
    raw = {ours: [_found(one.row, theirs.name) for one in sent] for ours, theirs in names.items()}
    raw |= {"max_new_tokens": [one.row.get("max_new_tokens") for one in sent], "error": [one.error for one in sent]}
    return Table(path, raw, lines=[one.line for one in sent if one.line is not None] or None,
                 places=[one.place for one in sent], names={ours: theirs.name for ours, theirs in names.items()})


def _found(row: Mapping[str, Any], name: str) -> Any:
    try:
        return lookup(row, name)
    except KeyError:
        return None


def _typed(table: Table, name: str, theirs: Source | None, needed: BoolArray) -> Any:
    """Return a column of numbers, times in seconds, NaN where a request that does not need one has none."""
    declared = TOKENS if name in COUNTS else DURATIONS if name in ("ttft", "e2e") else TIMES
    values = table.typed(declared.named(name, null=True))
    for row in np.flatnonzero(np.isnan(values) & (needed | (name == "arrival")))[:1]:
        raise table.wrong(name, int(row), "a number", Verbatim("none"))
    return values if name in COUNTS or theirs is None else values / PER_S[theirs.unit]


def driver_of(path: Path) -> str | None:
    """Return the driver that wrote a file, by its first record; None for other files."""
    try:
        if path.suffix == ".csv":
            head = next(csv_rows(path, unnamed=True), (0, []))[1]
            return "blis" if {"request_id", "send_time_us", "first_chunk_time_us"} <= set(head) else None
        if path.suffix not in (".json", ".jsonl"):
            return None
        with open_file(path) as file:
            start = file.read(4096).decode("utf-8", "ignore").lstrip("\ufeff \n\r\t")
        if start.startswith("["):
            found = _document(path)
            entry = found[0] if isinstance(found, list) and found and isinstance(found[0], dict) else {}
            return next((name for name, keys in _ARRAYS.items() if keys <= entry.keys()), None)
        first = json.loads(start.splitlines()[0]) if path.suffix == ".jsonl" and "\n" in start else None
        if isinstance(first, dict):
            return "aiperf" if {"metadata", "metrics"} <= first.keys() else None
        if '"benchmarks"' not in start and '"metadata"' not in start:
            return None
        whole = _document(path)
        listed = whole.get("benchmarks") if isinstance(whole, dict) else None
        if not isinstance(listed, list) or all(isinstance(one, dict) and not one.get("requests") for one in listed):
            return "guidellm" if listed == [] else None   # a summary, without requests
        return "guidellm"
    except (ValueError, RecursionError, IndexError):
        return None   # the reader of the file says what is wrong with it


_ARRAYS = {"inference-perf": {"start_time", "end_time"}, "llmperf": {"ttft_s", "end_to_end_latency_s"}}
"""Driver -> keys of the objects in its array."""


def _aiperf(path: Path) -> Iterator[Sent]:
    """Yield the requests of aiperf's profile_export.jsonl; those of its warm-up are left out."""
    for line, record in json_lines(path):
        metadata = _mapping(record, "metadata", path, line)
        if metadata.get("benchmark_phase") == "warmup":
            continue
        metrics = {} if record.get("metrics") is None else _mapping(record, "metrics", path, line)
        times = {name: _timed(metrics, name, path, line) for name in ("time_to_first_token", "request_latency")}
        row = {"metadata": metadata, "metrics": metrics | {name: {"value": value} for name, value in times.items()}}
        yield Sent(line, "", row, _error(record.get("error")))


def _timed(metrics: dict[str, Any], name: str, path: Path, line: int) -> Any:
    """Return the value of a metric in seconds; its entry states the unit."""
    if metrics.get(name) is None:
        return None
    entry = _mapping(metrics, name, path, line, "metrics.")
    value, unit = entry.get("value"), entry.get("unit")
    if not isinstance(unit, str) or unit not in _UNITS:
        raise InputError(f"one of {', '.join(_UNITS)}", unit, file=str(path), line=line, field=f"metrics.{name}.unit")
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST:
        return value * _UNITS[unit]
    return value   # refused with its column


def _guidellm(path: Path, benchmark: int | None = None) -> Iterator[Sent]:
    """Yield the requests of one benchmark of GuideLLM's benchmarks.json, the only one where `benchmark` is None."""
    found = _document(path)
    benchmarks = found.get("benchmarks") if isinstance(found, dict) else None
    if not isinstance(benchmarks, list) or not benchmarks:
        raise InputError("a list `benchmarks`", Verbatim("none"), file=str(path))
    if benchmark is None and len(benchmarks) > 1:
        raise InputError(Verbatim(f"the file has {len(benchmarks)} benchmarks; import one of them "
                                  "(hermes trace import guidellm FILE --set benchmark=0), or compare with --part 0"),
                         file=str(path))
    if benchmark is not None and benchmark >= len(benchmarks):
        raise InputError(f"a benchmark from 0 to {len(benchmarks) - 1}", benchmark, field="benchmark", file=str(path))
    number = benchmark or 0
    requests = _mapping(benchmarks[number], "requests", path, None, f"benchmarks.{number}.")
    for status in ("successful", "errored", "incomplete"):
        place = f"benchmarks.{number}.requests.{status}."
        for i, row in enumerate(_objects(requests.get(status) or [], path, place)):
            if status == "successful":
                asked = _asked(row.get("request_args"), row.get("output_tokens"))
                yield Sent(None, f"{place}{i}.", row | {"max_new_tokens": asked})
            elif row.get("request_start_time") is not None:   # others were never sent
                yield Sent(None, f"{place}{i}.", row | {"max_new_tokens": None}, status)


def _inference_perf(path: Path) -> Iterator[Sent]:
    """Yield the requests of inference-perf's per_request_lifecycle_metrics.json, in the forms of its versions 0.1 to
    0.7."""
    found = _document(path)
    if isinstance(found, dict):
        raise InputError(Verbatim("a summary has no requests; let inference-perf write them (report.request_lifecycle."
                                  "per_request: true)"), file=str(path))
    for i, entry in enumerate(_objects(found, path, "")):
        info = entry.get("info") or {}
        asked = _found(info, "request_metrics.text") or info
        answer = _found(info, "response_metrics") or info
        row = {name: entry.get(name) for name in ("start_time", "end_time")}
        times = _found(answer, "output_token_times") or []
        if not isinstance(times, list) or not all(type(time) in (int, float) for time in times):
            raise InputError("a list of times", times, file=str(path), field=f"{i}.info.output_token_times")
        row |= {"input_tokens": _found(asked, "input_tokens"), "output_tokens": _found(answer, "output_tokens"),
                "output_token_times": times}
        yield Sent(None, f"{i}.", row | {"max_new_tokens": _asked(entry.get("request"), row["output_tokens"])},
                   _error(entry.get("error")))


def _llmperf(path: Path) -> Iterator[Sent]:
    """Yield the requests of LLMPerf's NAME_individual_responses.json, in the order in which they ended."""
    for i, entry in enumerate(_objects(_document(path), path, "")):
        code = entry.get("error_code")
        yield Sent(None, f"{i}.", entry, "" if code in (None, "") else _error(entry.get("error_msg")) or str(code))


def _blis(path: Path) -> Table:
    """Return a trace of BLIS, version 2, with `session`, `prefix_group` and `prefix_tokens`.

    A prompt is what the server counted; without such a count (generated traces), the prefix and the request's own
    tokens. Requests without times of chunks have no latencies.
    """
    read = csv_table(path)
    table = read.renamed({ours: source(theirs).name for ours, theirs in TOOLS["blis"].items()
                          if ours not in (*TEXTS, "prefix_tokens")} | {"arrived": "arrival_time_us"})

    def numbers(name: str) -> Any:
        """Return a column of numbers, 0 for empty cells."""
        return np.nan_to_num(table.typed((TOKENS if name.endswith("tokens") else TIMES).named(name, null=True)))

    for name, theirs in (("server_tokens", "server_input_tokens"), ("prefix_tokens", "prefix_length")):
        table.columns[name], table.names[name] = read.columns.get(theirs, np.zeros(len(read))), theirs
    for name in TEXTS:
        table.columns[name] = read.columns.get(TOOLS["blis"][name], [""] * len(read))
    arrival, counted, last = numbers("arrival"), numbers("server_tokens"), numbers("finish")
    more: dict[str, Any] = {"arrival": np.where(arrival > 0, arrival, numbers("arrived"))}
    more |= {name: np.where(last > more["arrival"], numbers(name), np.nan) for name in ("first_token", "finish")}
    more["prompt_tokens"] = np.where(counted > 0, counted, numbers("prompt_tokens") + numbers("prefix_tokens"))
    more["prefix_tokens"] = np.where([bool(group) for group in table.columns["prefix_group"]],
                                     numbers("prefix_tokens"), 0)
    states, said = (read.columns.get(name, [other] * len(read)) for name, other in (("status", "ok"),
                                                                                      ("error_message", "")))
    more["error"] = ["" if state == "ok" else text or state or "failed"
                     for state, text in zip(states, said, strict=True)]
    table.columns = {name: values for name, values in (table.columns | more).items()
                     if name not in ("arrived", "server_tokens")}
    return table


DRIVERS: dict[str, Callable[..., Iterator[Sent]]] = {
    "aiperf": _aiperf, "guidellm": _guidellm, "inference-perf": _inference_perf, "llmperf": _llmperf,
}
"""Readers of drivers whose files hold an object for each request."""


def _mapping(row: Any, name: str, path: Path, line: int | None, place: str = "") -> dict[str, Any]:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, dict):
        raise InputError("an object", value, file=str(path), line=line, field=place + name)
    return value


def _objects(rows: Any, path: Path, place: str) -> Iterator[dict[str, Any]]:
    if not isinstance(rows, list):
        raise InputError("a list of requests", rows, file=str(path), field=place.strip(".") or None)
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise InputError("an object", row, file=str(path), field=f"{place}{i}")
        yield row


def _asked(sent: Any, output: Any) -> Any:
    """Return the output tokens that a request asked for, by what was sent (JSON text or an object); None if unknown."""
    with suppress(ValueError, RecursionError):
        sent = json.loads(sent) if isinstance(sent, str) else sent
    if isinstance(sent, dict) and isinstance(sent.get("body"), dict):
        sent = sent["body"]
    if not isinstance(sent, dict):
        return None
    if sent.get("ignore_eos") is True:
        return output
    limits = [sent[name] for name in _LIMITS if name in sent]
    return limits[0] if limits and type(limits[0]) is int and limits[0] > 0 else None


def _error(error: Any) -> str:
    text = error.get("message") or error.get("error_msg") or error if isinstance(error, dict) else error
    return str(text)[:200] if text else ""


def _document(path: Path) -> Any:
    return read_json(path, MAX_DOCUMENT_BYTES, unknown=True)
