"""Results of load drivers as rows of one form: aiperf, GuideLLM, inference-perf, BLIS.

Each driver has a clock and units of its own. A row here has `request` (numbered by the time it was sent), `arrival_s`
(when it was sent, on the driver's clock), `prompt_tokens`, `output_tokens`, `ttft_s` and `e2e_s` from that instant, and
`error`; a failed request has no output tokens and no times. Where the driver keeps what it sent (GuideLLM's
`request_args`, inference-perf's `request`), `max_new_tokens` is what the request asked for: with `ignore_eos`, the
tokens that it got.

| driver | file | clock | units |
| --- | --- | --- | --- |
| aiperf | profile_export.jsonl | nanoseconds since 1970 | each metric states its own |
| GuideLLM | benchmarks.json | seconds since 1970 | TTFT in ms, latency in s |
| inference-perf | per_request_lifecycle_metrics.json | seconds of any origin | seconds |
| BLIS | trace data (CSV, version 2) | microseconds of any origin | microseconds, by the columns' names |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hermes.config.files import csv_rows, json_lines
from hermes.errors import InputError, Verbatim

__all__ = ["DRIVERS", "aiperf_rows", "blis_rows", "driver_of", "driver_rows", "guidellm_rows", "inference_perf_rows"]

Row = dict[str, Any]   # Any: numbers, texts and None
_UNITS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_BLIS = ("request_id", "input_tokens", "output_tokens", "arrival_time_us", "send_time_us", "first_chunk_time_us",
         "last_chunk_time_us")


def driver_rows(kind: str, path: Path) -> list[Row]:
    """Return the requests in a file of a driver, in the order in which they were sent.

    Raises `InputError` for anything that is not such a file, with its place in it.
    """
    rows = sorted(DRIVERS[kind](path), key=lambda row: float(row["arrival_s"]))
    if not rows:
        raise InputError("at least one request", Verbatim("none"), file=str(path))
    return [{"request": number, **row} for number, row in enumerate(rows)]


def driver_of(path: Path) -> str | None:
    """Return the driver that wrote a file, by its first record; None for other files."""
    try:
        if path.suffix == ".csv":
            head = next(csv_rows(path, unnamed=True), (0, []))[1]
            return "blis" if set(_BLIS) <= set(head) else None
        if path.suffix not in (".json", ".jsonl"):
            return None
        with path.open(encoding="utf-8") as file:
            start = file.read(4096).lstrip()
        if start.startswith("["):
            found = _document(path)
            entry = found[0] if isinstance(found, list) and found else None
            return "inference-perf" if isinstance(entry, dict) and {"start_time", "end_time"} <= entry.keys() else None
        first = json.loads(start.splitlines()[0]) if path.suffix == ".jsonl" and "\n" in start else None
        if isinstance(first, dict):
            return "aiperf" if {"metadata", "metrics"} <= first.keys() else None
        if '"benchmarks"' not in start and '"metadata"' not in start:
            return None
        whole = _document(path)
        return "guidellm" if isinstance(whole, dict) and isinstance(whole.get("benchmarks"), list) else None
    except (OSError, ValueError, InputError, IndexError):
        return None   # whoever reads the file says what is wrong with it


def aiperf_rows(path: Path) -> Iterator[Row]:
    """Yield the requests of aiperf's profile_export.jsonl; those of its warm-up are left out."""
    for line, record in json_lines(path):
        at = _At(path, line)
        metadata, metrics = at.mapping(record, "metadata"), record.get("metrics") or {}
        if metadata.get("benchmark_phase") == "warmup":
            continue
        sent = at.number(metadata, "request_start_ns", "metadata") * 1e-9
        prompt = _metric(at, metrics, "input_sequence_length", optional=bool(record.get("error")))
        if record.get("error"):
            yield _failed(sent, prompt, record["error"])
            continue
        yield {"arrival_s": sent, "prompt_tokens": prompt, "error": "",
               "output_tokens": _metric(at, metrics, "output_sequence_length"),
               "ttft_s": _metric(at, metrics, "time_to_first_token", time=True, optional=True),
               "e2e_s": _metric(at, metrics, "request_latency", time=True)}


def guidellm_rows(path: Path, benchmark: int | None = None) -> Iterator[Row]:
    """Yield the requests of one benchmark of GuideLLM's benchmarks.json, the only one where `benchmark` is None."""
    found = _document(path)
    benchmarks = found.get("benchmarks") if isinstance(found, dict) else None
    if not isinstance(benchmarks, list) or not benchmarks:
        raise InputError("a list `benchmarks`", Verbatim("none"), file=str(path))
    if benchmark is None and len(benchmarks) > 1:
        raise InputError(Verbatim(f"the file has {len(benchmarks)} benchmarks; import one of them "
                                  "(hermes trace import guidellm FILE --set benchmark=0)"), file=str(path))
    if benchmark is not None and benchmark >= len(benchmarks):
        raise InputError(f"a benchmark from 0 to {len(benchmarks) - 1}", benchmark, field="benchmark", file=str(path))
    number = benchmark or 0
    at = _At(path)
    requests = at.mapping(benchmarks[number], "requests", f"benchmarks.{number}")
    for status in ("successful", "errored", "incomplete"):
        for i, row in enumerate(requests.get(status) or []):
            place = f"benchmarks.{number}.requests.{status}.{i}"
            if status == "successful":
                ttft = row.get("time_to_first_token_ms")
                yield {"arrival_s": at.number(row, "request_start_time", place), "error": "",
                       "prompt_tokens": at.number(row, "prompt_tokens", place),
                       "output_tokens": (output := at.number(row, "output_tokens", place)),
                       "max_new_tokens": _asked(row.get("request_args"), output),
                       "ttft_s": None if ttft is None else at.number(row, "time_to_first_token_ms", place) * 1e-3,
                       "e2e_s": at.number(row, "request_latency", place)}
            elif row.get("request_start_time") is not None:   # others were never sent
                yield _failed(at.number(row, "request_start_time", place), row.get("prompt_tokens"), status)


def inference_perf_rows(path: Path) -> Iterator[Row]:
    """Yield the requests of inference-perf's per_request_lifecycle_metrics.json, in the forms of its versions 0.1 to
    0.7."""
    found = _document(path)
    at = _At(path)
    if isinstance(found, dict):
        raise InputError(Verbatim("a summary has no requests; let inference-perf write them (report.request_lifecycle."
                                  "per_request: true)"), file=str(path))
    for i, entry in enumerate(found):
        if not isinstance(entry, dict):
            raise InputError("an object", entry, file=str(path), field=str(i))
        sent, ended = at.number(entry, "start_time", str(i)), at.number(entry, "end_time", str(i))
        info = entry.get("info") or {}
        asked = (info.get("request_metrics") or {}).get("text") or info
        answer = info.get("response_metrics") or info
        if entry.get("error"):
            yield _failed(sent, asked.get("input_tokens"), entry["error"])
            continue
        times = answer.get("output_token_times") or []
        yield {"arrival_s": sent, "e2e_s": ended - sent, "error": "",
               "prompt_tokens": at.number(asked, "input_tokens", f"{i}.info"),
               "output_tokens": (output := at.number(answer, "output_tokens", f"{i}.info")),
               "max_new_tokens": _asked(entry.get("request"), output),
               "ttft_s": float(times[0]) - sent if times else None}


def blis_rows(path: Path) -> Iterator[Row]:
    """Yield the requests of a trace of BLIS, version 2, with `session`, `prefix_group` and `prefix_tokens`.

    A prompt is what the server counted; without such a count (generated traces), the prefix and the request's own
    tokens. Requests without times of chunks have no latencies.
    """
    table = csv_rows(path)
    _, head = next(table)
    if missing := [name for name in _BLIS if name not in head]:
        raise InputError(f"a column {missing[0]}", Verbatim(", ".join(head)), file=str(path), line=1)
    for line, cells in table:
        at, row = _At(path, line), dict(zip(head, cells, strict=True))
        sent_us = at.number(row, "send_time_us") or at.number(row, "arrival_time_us")
        own, prefix = at.number(row, "input_tokens"), at.number(row, "prefix_length") if "prefix_length" in row else 0.0
        counted = at.number(row, "server_input_tokens") if row.get("server_input_tokens") else 0.0
        more = {"session": row.get("session_id", ""), "prefix_group": row.get("prefix_group", ""),
                "prefix_tokens": prefix}
        if row.get("status", "ok") != "ok":
            yield _failed(sent_us * 1e-6, counted or own + prefix, row.get("error_message") or row["status"]) | more
            continue
        first, last = at.number(row, "first_chunk_time_us"), at.number(row, "last_chunk_time_us")
        timed = last > sent_us
        yield {"arrival_s": sent_us * 1e-6, "prompt_tokens": counted or own + prefix, "error": "",
               "output_tokens": at.number(row, "output_tokens"),
               "ttft_s": (first - sent_us) * 1e-6 if timed else None,
               "e2e_s": (last - sent_us) * 1e-6 if timed else None, **more}


DRIVERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "aiperf": aiperf_rows, "guidellm": guidellm_rows, "inference-perf": inference_perf_rows, "blis": blis_rows,
}


class _At:
    """A place in a file, for messages."""

    def __init__(self, path: Path, line: int | None = None) -> None:
        self._path, self._line = str(path), line

    def number(self, row: Mapping[str, Any], name: str, place: str = "") -> float:
        """Return a finite number; texts of CSV cells are read, an empty one is 0."""
        value = row.get(name)
        if isinstance(value, str) and self._line is not None:
            with suppress(ValueError):
                value = float(value) if value else 0.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
            field = f"{place}.{name}" if place else name
            raise InputError("a number", value, file=self._path, line=self._line, field=field)
        return float(value)

    def mapping(self, row: Any, name: str, place: str = "") -> Mapping[str, Any]:
        value = row.get(name) if isinstance(row, dict) else None
        if not isinstance(value, dict):
            raise InputError("an object", value, file=self._path, line=self._line,
                             field=f"{place}.{name}" if place else name)
        return value


def _metric(at: _At, metrics: Mapping[str, Any], name: str, *, time: bool = False, optional: bool = False,
            ) -> float | None:
    entry = metrics.get(name)
    if entry is None and optional:
        return None
    value = at.number(at.mapping(metrics, name, "metrics"), "value", f"metrics.{name}")
    if not time:
        return value
    unit = entry.get("unit") if isinstance(entry, dict) else None
    if unit not in _UNITS:
        raise InputError(f"one of {', '.join(_UNITS)}", unit, file=at._path, line=at._line,
                         field=f"metrics.{name}.unit")
    return value * _UNITS[unit]


def _asked(sent: Any, output: float) -> int | None:
    """Return the output tokens that a request asked for, by what was sent (JSON text or an object); None if unknown."""
    with suppress(ValueError):
        sent = json.loads(sent) if isinstance(sent, str) else sent
    if isinstance(sent, dict) and isinstance(sent.get("body"), dict):
        sent = sent["body"]
    if not isinstance(sent, dict):
        return None
    limits = [sent[name] for name in ("max_completion_tokens", "max_tokens", "max_new_tokens") if name in sent]
    if sent.get("ignore_eos") is True:
        return int(output)
    return limits[0] if limits and type(limits[0]) is int and limits[0] > 0 else None


def _failed(sent: float, prompt: Any, error: Any) -> Row:
    text = error.get("message") or error.get("error_msg") or str(error) if isinstance(error, dict) else str(error)
    return {"arrival_s": sent, "prompt_tokens": prompt, "output_tokens": 0, "ttft_s": None, "e2e_s": None,
            "error": str(text)[:200]}


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError("a JSON document", Verbatim(f"{error}"[:200]), file=str(path)) from None
