from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_records import by_hand, random_record

from hermes.core.record import RunRecord
from hermes.results.files.trace import trace_events, write_trace
from hermes.results.results import Results


def events_of(record: RunRecord, limit: int = 10**6) -> list[dict[str, Any]]:
    return list(trace_events(record, Results(record).metrics, limit))


def by_process(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    out = defaultdict(list)
    for event in events:
        if event["ph"] != "M":
            out[names[event["pid"]]].append(event)
    return out


def test_by_hand() -> None:
    record = by_hand()
    processes = by_process(events_of(record))
    assert set(processes) == {"requests", "network", "llm-a", "llm-b", "rag"}
    slices = [e for e in processes["llm-a"] if e["ph"] == "X"]
    assert [(e["ts"], e["dur"]) for e in slices][:2] == [(100_000.0, 10_000.0), (110_000.0, 20_000.0)]
    assert slices[1]["name"] == "1 decode x2"
    assert slices[2]["args"]["prefill_tokens"] == 200
    counters = [e for e in processes["llm-a"] if e["ph"] == "C"]
    assert max(e["args"]["used"] for e in counters if e["name"] == "KV blocks") == 10
    assert max(e["args"]["waiting"] for e in counters if e["name"] == "sequences") == 1
    assert {e["name"] for e in processes["rag"]} == {"retrieve", "retrieve waiting"}
    spans = [e for e in processes["requests"] if e["ph"] == "b"]
    assert [e["name"] for e in spans] == [f"request {i}" for i in range(6)]
    assert spans[3]["args"]["reason"] == "llm-a: needs 812 blocks, has 10"
    assert spans[0]["args"]["ttft_ms"] == 10.0
    assert [e["name"] for e in processes["network"]] == ["llm-a -> llm-b"] * 2
    start, finish = [e for process in processes.values() for e in process if e["ph"] in "sf"]
    assert (start["ph"], start["ts"], finish["ts"]) == ("s", 239_999.999, 290_000.0)


@given(st.integers(0, 10**6))
def test_valid(seed: int) -> None:
    record, _ = random_record(seed)
    events = events_of(record)
    assert json.loads(json.dumps(events, allow_nan=False)) == events
    spans: Counter[tuple[Any, ...]] = Counter()
    opened: dict[tuple[Any, ...], float] = {}
    for event in events:
        if event["ph"] == "M":
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] > 0
        elif event["ph"] in "be":
            key = (event["pid"], event["cat"], event["id2"]["local"])
            if event["ph"] == "b":
                assert key not in opened  # a span's id is its own
                opened[key] = event["ts"]
            else:
                assert event["ts"] >= opened[key]
            spans[key] += 1 if event["ph"] == "b" else -1
        elif event["ph"] in "sf":
            inside = [e for e in events if e["ph"] == "X" and e["pid"] == event["pid"]
                      and e["ts"] <= event["ts"] <= e["ts"] + e["dur"]]
            assert inside or event["ph"] == "f"  # arrows start at slices (random stages may start between runs)
    assert not any(spans.values())
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"]].append((event["ts"], event["ts"] + event["dur"]))
    for mine in slices.values():  # slices of one thread must not overlap
        mine.sort()
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(mine))


@pytest.mark.parametrize("limit", [0, 5, 40, 200])
def test_limit(limit: int) -> None:
    record, _ = random_record(1, requests=40)
    events = events_of(record, limit)
    notes = [e for e in events if e["ph"] == "i"]
    assert len(notes) == 1
    assert f"the limit is {limit}" in notes[0]["name"]
    rest = [e for e in events if e["ph"] not in "Mi"]
    assert len(rest) <= limit
    started = [e["ts"] for e in rest if e["ph"] == "X" or (e["ph"] == "b" and e["cat"] in ("queue", "request"))]
    assert all(start <= notes[0]["ts"] for start in started)
    assert not [e for e in events_of(record) if e["ph"] == "i"]


def test_written(tmp_path: Path) -> None:
    record = by_hand()
    metrics = Results(record).metrics
    write_trace(record, metrics, tmp_path / "a.json", compress=False)
    write_trace(record, metrics, tmp_path / "a.json.gz")
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["displayTimeUnit"] == "ms"
    assert content["traceEvents"] == events_of(record)
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == (tmp_path / "a.json").read_bytes()
