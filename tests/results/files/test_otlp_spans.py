"""A run as OpenTelemetry spans: by hand from the record, in the form that OTLP's JSON has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes import simulate
from hermes.cli import main
from hermes.results.files.export import write_results
from hermes.results.files.otlp_spans import SPANS, span_lines

START_S = 1_700_000_000.0


@pytest.fixture(scope="module")
def results() -> Any:
    return simulate({
        "workload": {"requests": 30, "arrivals": {"kind": "poisson", "rate": 8}, "patience": {"total": "250ms"},
                     "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 50, "max": 300},
                                 "output": {"kind": "uniform", "min": 5, "max": 80}}},
        "clients": [{"name": "pre", "role": "prefill", "model": "llama-3.1-8b", "device": "h100-sxm"},
                    {"name": "dec", "role": "decode", "model": "llama-3.1-8b", "device": "h100-sxm"}]})


def spans_of(lines: list[str]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (service, scope, span) of all spans."""
    found = []
    for line in lines:
        for resource in json.loads(line)["resourceSpans"]:
            service = resource["resource"]["attributes"][0]["value"]["stringValue"]
            for scope in resource["scopeSpans"]:
                assert len(scope["spans"]) <= SPANS
                found += [(service, scope["scope"]["name"], span) for span in scope["spans"]]
    return found


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


@pytest.mark.feature("Results, sweeps, studies", "`hermes export spans`: requests as OpenTelemetry spans")
def test_spans_are_the_stages_of_requests(results: Any) -> None:
    record, found = results.record, spans_of(list(span_lines(results.record, START_S)))
    roots = {int(span["traceId"], 16) - 1: span for service, _, span in found if service == "hermes"}
    assert sorted(roots) == list(range(30))
    assert {span["status"]["code"] for span in roots.values()} == {1, 2}   # some gave up
    served = [(service, span) for service, scope, span in found if scope == "vllm.llm_engine"]
    assert {service for service, _ in served} == {"pre", "dec"}
    assert len(served) == int((record.stages["start_ns"] >= 0).sum())
    assert len({span["spanId"] for _, _, span in found}) == len(found)
    for service, span in served:
        row = int(span["spanId"], 16) - 1
        mine = {name: int(column[row]) for name, column in record.stages.items()}
        root = roots[mine["request"]]
        assert (span["traceId"], span["parentSpanId"], span["name"]) == (root["traceId"], root["spanId"], "llm_request")
        assert record.clients[mine["client"]].name == service
        assert int(span["startTimeUnixNano"]) == round(START_S * 1e9) + mine["assigned_ns"]
        assert int(root["startTimeUnixNano"]) <= int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
        said = attributes(span)
        assert said["gen_ai.latency.e2e"] == pytest.approx((mine["end_ns"] - mine["assigned_ns"]) / 1e9)
        if mine["first_token_ns"] >= 0:
            parts = said["gen_ai.latency.time_in_model_prefill"] + said["gen_ai.latency.time_in_model_decode"]
            assert parts + said["gen_ai.latency.time_in_queue"] == pytest.approx(said["gen_ai.latency.e2e"])
        assert said["gen_ai.usage.prompt_tokens"] == str(mine["prompt_tokens"])


def test_names_are_vllms(results: Any) -> None:
    """vllm/tracing/utils.py of the 0.33.0 wheel."""
    known = {"gen_ai.usage.completion_tokens", "gen_ai.usage.prompt_tokens", "gen_ai.request.max_tokens",
             "gen_ai.request.id", "gen_ai.latency.time_in_queue", "gen_ai.latency.time_to_first_token",
             "gen_ai.latency.e2e", "gen_ai.latency.time_in_model_prefill", "gen_ai.latency.time_in_model_decode",
             "gen_ai.latency.time_in_model_inference"}
    found = {key for _, _, span in spans_of(list(span_lines(results.record, 0.0))) for key in attributes(span)}
    assert {key for key in found if key.startswith("gen_ai.")} == known


def test_the_command_writes_a_file(results: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(results, tmp_path / "run")
    assert main(["export", "spans", str(tmp_path / "run"), "--start", str(START_S), "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text().splitlines() == list(span_lines(results.record, START_S))
    assert "otlpjsonfile" in capsys.readouterr().out
