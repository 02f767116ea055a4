"""A run as OpenTelemetry spans (OTLP in JSON): what Jaeger or Tempo would show of its requests.

A trace is a request: its root from the arrival to the end, and a child for each stage at a client, the span's service.
Spans of engines have the name, scope and attributes of vLLM's own (`llm_request`; vllm/tracing/utils.py and
v1/engine/output_processor.py of 0.33: read, not run); times begin when the engine gets a request. A line holds up to
`SPANS` spans of one service, as OpenTelemetry's file exporter writes them and the collector's `otlpjsonfile` reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hermes.core.record import STATUS_COMPLETED, STATUS_UNFINISHED, RunRecord
from hermes.results.figures.usage import client_names
from hermes.results.metrics import attempts_moved
from hermes.units import NS_PER_S

__all__ = ["span_lines"]

SPANS = 1000
"""Most spans of a line."""
_INTERNAL, _SERVER = 1, 2   # kinds of spans
_OK, _ERROR = 1, 2
_ROOTS = 1 << 62   # span ids of requests; those of stages are below
Span = dict[str, Any]   # as JSON


def span_lines(record: RunRecord, start_s: float) -> Iterator[str]:
    """Yield the lines of a run's spans. start_s: The simulation's beginning, in seconds since 1970.

    A request or stage that the end of the run cut off has no span.
    """
    start_ns = round(start_s * NS_PER_S)
    yield from _lines("hermes", "hermes", _requests(record, start_ns))
    for client, name in enumerate(client_names(record)):
        engine = record.clients[client].kind == "llm"
        yield from _lines(name, "vllm.llm_engine" if engine else "hermes", _stages(record, client, start_ns, engine))


def _lines(service: str, scope: str, spans: Iterator[Span]) -> Iterator[str]:
    mine = list(spans)
    for first in range(0, len(mine), SPANS):
        yield json.dumps({"resourceSpans": [{
            "resource": {"attributes": [_attribute("service.name", service)]},
            "scopeSpans": [{"scope": {"name": scope}, "spans": mine[first:first + SPANS]}]}]}, separators=(",", ":"))


def _requests(record: RunRecord, start_ns: int) -> Iterator[Span]:
    """Yield the root of each request that has ended. One that was rejected ends with its last stage."""
    last = record.arrival_ns.copy()
    for request, end_ns in zip(record.stages["request"].tolist(), record.stages["end_ns"].tolist(), strict=True):
        last[request] = max(last[request], end_ns)
    columns = (record.status, record.arrival_ns, record.finish_ns, last, record.prompt_tokens, record.output_tokens)
    for request, (status, begin, finish, until, prompt, output) in enumerate(zip(*(c.tolist() for c in columns),
                                                                                 strict=True)):
        if status != STATUS_UNFINISHED:
            done = status == STATUS_COMPLETED
            yield _span(request, _ROOTS | request, "request", begin + start_ns, (finish if done else until) + start_ns,
                        {"gen_ai.request.id": str(request), "gen_ai.usage.prompt_tokens": prompt,
                         "gen_ai.request.max_tokens": output}, "" if done else record.reject_reasons[request])


def _stages(record: RunRecord, client: int, start_ns: int, engine: bool) -> Iterator[Span]:
    """Yield the spans of the stages that a client served."""
    stages, moved = record.stages, attempts_moved(record)
    names = ("client", "request", "kind", "assigned_ns", "start_ns", "first_token_ns", "end_ns", "prompt_tokens",
             "output_tokens", "cached_tokens")
    for row, (of, request, kind, assigned, start, first, end, prompt, output, cached) in enumerate(
            zip(*(stages[name].tolist() for name in names), strict=True)):
        if of != client or start < 0 or end < start:
            continue
        attributes: dict[str, float | str] = {"gen_ai.request.id": str(request), "hermes.stage":
                                              record.stage_kinds[kind]}
        if moved and (attempt := int(record.stage_attempts[row])) in moved:
            attributes["hermes.attempt"], attributes["hermes.outcome"] = moved[attempt]
        if engine:
            attributes |= {"gen_ai.latency.time_in_queue": (start - assigned) / NS_PER_S,
                           "gen_ai.latency.e2e": (end - assigned) / NS_PER_S,
                           "gen_ai.usage.prompt_tokens": prompt, "gen_ai.usage.completion_tokens": output,
                           "hermes.cached_tokens": cached}
            if first >= 0:
                attributes |= {"gen_ai.latency.time_to_first_token": (first - assigned) / NS_PER_S,
                               "gen_ai.latency.time_in_model_prefill": (first - start) / NS_PER_S,
                               "gen_ai.latency.time_in_model_decode": (end - first) / NS_PER_S,
                               "gen_ai.latency.time_in_model_inference": (end - start) / NS_PER_S}
        yield _span(request, row + 1, "llm_request" if engine else record.stage_kinds[kind], assigned + start_ns,
                    end + start_ns, attributes, parent=_ROOTS | request)


def _span(request: int, number: int, name: str, begin_ns: int, end_ns: int, attributes: dict[str, Any],
          error: str = "", parent: int | None = None) -> Span:
    return {"traceId": f"{request + 1:032x}", "spanId": f"{number:016x}",
            **({} if parent is None else {"parentSpanId": f"{parent:016x}"}), "name": name,
            "kind": _INTERNAL if parent is None else _SERVER, "startTimeUnixNano": str(begin_ns),
            "endTimeUnixNano": str(end_ns), "attributes": [_attribute(*each) for each in attributes.items()],
            "status": {"code": _ERROR, "message": error} if error else {"code": _OK}}


def _attribute(key: str, value: float | str) -> dict[str, Any]:
    """Return an attribute; 64-bit integers are strings in OTLP's JSON."""
    kind = "stringValue" if isinstance(value, str) else "intValue" if isinstance(value, int) else "doubleValue"
    return {"key": key, "value": {kind: str(value) if kind == "intValue" else value}}
