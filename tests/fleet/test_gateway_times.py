"""Where the time of a request goes at a gateway: its parts add up to TTFT and E2E, and are those of its events."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conservation import ran
from gateway_walk import completed, walked
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full
from test_failures import scenarios as failing
from test_failures_of_pipelines import FOLDER, conserved
from test_failures_of_pipelines import holding as disturbing
from test_flow_control import scenarios as holding

from hermes.api import simulate
from hermes.core.record import RunRecord
from hermes.results.figures.breakdown import CriticalPath, causes_of, critical_path, first_token_parts
from hermes.results.figures.gateway_times import AT_GATEWAY, offered_ns
from hermes.results.figures.waiting import merged
from hermes.results.metrics import answer, request_metrics
from hermes.results.request_times import request_times

MS = 1_000_000
LLM: dict[str, Any] = {"name": "llm", "model": "llama-3.1-8b",
                       "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}}


def one(workload: dict[str, Any], gateway: dict[str, Any], **client: Any) -> dict[str, Any]:
    work = {"requests": 3, "arrivals": {"kind": "at_once"}, "lengths": {"kind": "fixed", "prompt": 100, "output": 20}}
    return {"workload": work | workload, "clients": [LLM | client], "gateway": gateway}


def parts_of(data: dict[str, Any]) -> tuple[RunRecord, CriticalPath, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return a record, its path, and the parts of E2E and of TTFT per request, in ns."""
    record = ran(data)[1]
    path, metrics = critical_path(record), request_metrics(record, answer(record))
    whole = {cause: path.per_request(record, cause) for cause in causes_of(record)}
    return record, path, whole | {"other": path.other_ns}, first_token_parts(record, path, metrics)


@quick_and_full(16, 100, thorough=3000)
@given(st.one_of(failing(), holding()))
def test_the_parts_add_up_and_are_those_of_the_events(data: dict[str, Any]) -> None:
    record, path, whole, first = parts_of(data)
    metrics, offered = request_metrics(record, answer(record)), offered_ns(record)
    after = int(1e6) if "frontend" in data["clients"][0] else 0
    for request in completed(record):
        assert sum(int(part[request]) for part in whole.values()) == metrics.e2e_ns[request]
        assert sum(int(part[request]) for part in first.values()) == metrics.ttft_ns[request]
        assert all(part[request] >= 0 for part in (*whole.values(), *first.values()))
        rows = np.flatnonzero(path.on_path & (record.stages["request"] == request))
        *before, attempt = sorted(set(record.stage_attempts[rows].tolist()))   # each goes on with the tokens before it
        # a client went down while its front end still had an answer that the engine had completed
        sending = sum(max(int(record.attempts["end_ns"][one] - record.stages["end_ns"][rows][
            record.stage_attempts[rows] == one].max()), 0) for one in before)
        assert first["other"][request] == after   # what no part explains
        assert whole["other"][request] == after + sending
        call = int(record.attempts["call"][attempt])
        found = walked(record, call, 2**62, attempt, *before)
        found["lost"] += int(offered[request] - record.arrival_ns[request])
        assert {cause: int(whole[cause][request]) for cause in AT_GATEWAY} == found
        if metrics.first_token_ns[request] < offered[request]:   # of an offer that E2E calls lost
            assert first["gateway"][request] + first["held"][request] <= whole["lost"][request]
            continue
        assert first["gateway"][request] <= whole["gateway"][request]
        assert first["held"][request] <= whole["held"][request]


@quick_and_full(10, 50, thorough=1000)
@given(holding())
def test_something_keeps_calls_waiting_exactly_while_they_wait(data: dict[str, Any]) -> None:
    record = ran(data)[1]
    if not record.halts:
        return   # admission holds nothing
    gateway = record.calls["gateway"][record.held["call"]]
    for number in range(data["gateway"].get("replicas", 1)):
        tables = (record.held, "asked_ns", "left_ns", gateway), (record.halts, "begin_ns", "end_ns",
                                                                 record.halts["gateway"])
        held, halted = ([column.tolist() for column in spans(table[begin][of == number], table[end][of == number])]
                        for table, begin, end, of in tables)
        assert held == halted


def spans(begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The union of intervals that have a length."""
    some = end > begin
    return merged(begin[some], end[some])


@pytest.mark.drawn
@pytest.mark.parametrize("name", [
    "pipelines/rag.yaml", "pipelines/rag-disaggregated.yaml", "studies/telerag/server.yaml"])
def test_the_parts_of_pipelines_add_up(name: str) -> None:
    path = FOLDER / name
    record = conserved(path, disturbing(path, 20, 3))[2]
    way, metrics = critical_path(record), request_metrics(record, answer(record))
    whole = np.sum([way.per_request(record, cause) for cause in causes_of(record)], axis=0)
    delays = np.array(record.after_ns or [0] * len(record.clients))[record.stages["client"]]
    delays[np.array(record.stage_kinds)[record.stages["kind"]] == "prefill"] = 0   # its token is not given
    after = np.bincount(record.stages["request"][way.on_path], weights=delays[way.on_path],
                        minlength=len(record.arrival_ns))
    done = completed(record)
    assert done
    assert (whole + after)[done].tolist() == metrics.e2e_ns[done].tolist()
    assert way.held_ns.any()


def test_the_hop_and_its_queue_by_hand() -> None:
    record, _path, whole, first = parts_of(one({}, {"capacity": 100, "delay": 0.003}))
    assert (whole["gateway"] // MS).tolist() == [13, 23, 33]   # 10 ms of service each, one after the other, and 3 ms
    assert (first["gateway"] // MS).tolist() == [13, 23, 33]
    assert record.calls["served_ns"].tolist() == [0, 10 * MS, 20 * MS]


def test_flow_control_by_hand() -> None:
    gateway = {"flow_control": {"detector": {"kind": "concurrency", "limit": 1}, "cycle": 0.001}}
    record, _path, whole, first = parts_of(one({}, gateway))
    order = np.argsort(record.finish_ns)
    ends = record.finish_ns[order]
    assert whole["held"][order[0]] == 0
    for before, mine in zip(ends[:-1], order[1:], strict=True):   # until the tick after the end of the one before
        assert whole["held"][mine] == -(-int(before) // MS) * MS
        assert first["held"][mine] == whole["held"][mine]
    names = [record.halts[name].tolist() for name in ("client", "band", "limit")]
    assert {tuple(row) for row in zip(*names, strict=True)} == {(0, 0, 1)}   # in flight
    assert record.halts["end_ns"][-1] == -(-int(ends[-2]) // MS) * MS


def test_a_crash_its_back_off_and_the_next_attempt_by_hand() -> None:
    fleet = {"start": 2, "start_up": {"total": 60}, "crashes": [{"at": 0.02, "replica": 0}],
             "probe": {"period": 0.001, "failures": 1, "delay": 0}}
    data = one({"requests": 1}, {"retries": 1, "backoff": 0.5, "retry": None} | {"begun": "restart"}, count=2,
               fleet=fleet)
    del data["gateway"]["retry"]
    data["router"] = {"kind": "round_robin"}
    record, _path, whole, first = parts_of(data)
    begin, end = record.attempts["start_ns"], record.attempts["end_ns"]
    assert record.attempts["outcome"].tolist() == [2, 1]
    assert end[0] == 20 * MS
    assert whole["lost"].tolist() == [begin[1] - begin[0]]
    assert first["lost"].tolist() == [0]   # its user has had the first token of the attempt that failed
    assert first["compute"] + first["queue"] == record.stages["first_token_ns"][0]


def test_a_request_that_waits_for_a_replica_is_held() -> None:
    fleet = {"start": 0, "start_up": {"total": 2}, "autoscaler": {"kind": "schedule", "changes": [
        {"at": 1, "replicas": 1}]}}
    record, _path, whole, _first = parts_of(one({}, {"queue": {"ttl": 60}}, count=1, fleet=fleet))
    assert set(whole["held"].tolist()) == set((record.queued["left_ns"] - record.queued["asked_ns"]).tolist())
    assert whole["held"].min() >= 3e9


def test_a_request_that_is_offered_again_has_lost_the_first_offer() -> None:
    data = one({"requests": 2, "retry": {"kind": "openai", "retries": 2, "backoff": 1, "jitter": 0}},
               {}, scheduler={"kind": "chunked", "max_num_queued_reqs": 1, "max_num_seqs": 1})
    record, _path, whole, _first = parts_of(data)
    late = int(record.offers["request"][0])
    assert whole["lost"][late] == record.offers["offered_ns"][0] - record.arrival_ns[late]


@pytest.mark.parametrize("gateway", [
    {"capacity": 100, "delay": 0.003}, {"flow_control": {"detector": {"kind": "concurrency", "limit": 1}}}])
def test_the_parts_of_one_request_add_up(gateway: dict[str, Any]) -> None:
    results = simulate(one({}, gateway))
    for request in range(3):
        parts = request_times(results, request)
        row = results.requests.iloc[request]
        assert sum(part.seconds for part in parts) == pytest.approx(row["e2e_s"], abs=1e-9)
    assert {part.part for part in request_times(results, 2)} >= {"gateway" if "capacity" in gateway else "held"}
