"""`WorkloadConfig.draw`: counts, durations, offsets, attributes, and independence of other workloads."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from hermes.errors import InputError
from hermes.workload import RequestTable, WorkloadConfig
from hermes.workload import workload as workload_module
from hermes.workload.traces import write_trace

HERE = Path()
POISSON = {"kind": "poisson", "rate": "40 /s"}
FIXED = {"kind": "fixed", "prompt": 1000, "output": 200}
COLUMNS = ("arrival_ns", "prompt_tokens", "output_tokens", "priority", "session", "prefix_group", "prefix_tokens")


def workload(**options: Any) -> WorkloadConfig:
    return WorkloadConfig.model_validate({"arrivals": POISSON, "lengths": FIXED} | options)


def columns(table: RequestTable) -> dict[str, list[int]]:
    return {name: getattr(table, name).tolist() for name in COLUMNS}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    frame = pd.DataFrame({
        "arrival_s": [10.0, 11.0, 12.0, 14.0], "prompt_tokens": [1500, 20, 30, 40], "output_tokens": [1, 2, 3, 4],
        "priority": [1, 1, 2, 2], "hash_ids": [[1, 2, 3], [4], [5], [6]],
    })
    write_trace(frame, tmp_path / "t.parquet", source="test")
    return tmp_path


TRACE = {"kind": "trace", "path": "t.parquet"}


def test_defaults() -> None:
    table = workload(requests=100).draw(1, HERE)
    assert len(table) == 100
    assert set(table.priority) == {0}
    assert set(table.session) == set(table.prefix_group) == {-1}
    assert set(table.prefix_tokens) == {0}
    assert table.users is None
    assert table.think_ns is None
    assert table.hash_ids is None


def test_same_seed_same_table_other_seed_other_table() -> None:
    config = workload(requests=50, lengths={"kind": "empirical", "profile": "azure-conv-2023"})
    assert columns(config.draw(5, HERE)) == columns(config.draw(5, HERE))
    assert columns(config.draw(5, HERE)) != columns(config.draw(6, HERE))


def test_a_workload_depends_on_its_name_only() -> None:
    chat = workload(name="chat", requests=50).draw(1, HERE)
    code = workload(name="code", requests=50).draw(1, HERE)
    assert chat.arrival_ns is not None
    assert code.arrival_ns is not None
    assert (chat.arrival_ns != code.arrival_ns).all()
    again = workload(name="chat", requests=50).draw(1, HERE)
    assert columns(chat) == columns(again)


@pytest.mark.parametrize(
    "addition",
    [
        {"priorities": {"values": [0, 1]}}, {"sessions": {"count": 3}}, {"prefixes": {"groups": 2, "tokens": 10}},
        {"lengths": {"kind": "empirical", "profile": "azure-code-2023"}}, {"requests": 80},
    ],
)
def test_consumers_do_not_disturb_each_other(addition: dict[str, Any]) -> None:
    plain, more = workload(requests=50).draw(1, HERE), workload(**{"requests": 50} | addition).draw(1, HERE)
    assert plain.arrival_ns is not None
    assert more.arrival_ns is not None
    np.testing.assert_array_equal(plain.arrival_ns, more.arrival_ns[:50])


def test_duration_gives_the_arrivals_before_its_end() -> None:
    long = workload(requests=2000).draw(3, HERE).arrival_ns
    table = workload(duration="20 s").draw(3, HERE)
    assert long is not None
    assert table.arrival_ns is not None
    assert len(table) == int((long < 20e9).sum())
    np.testing.assert_array_equal(table.arrival_ns, long[: len(table)])


def test_duration_longer_than_the_first_guess() -> None:
    table = workload(duration="1000 s").draw(3, HERE)
    assert len(table) == pytest.approx(40_000, rel=0.03)
    assert table.arrival_ns is not None
    assert 999e9 < table.arrival_ns[-1] < 1000e9


def test_duration_without_requests() -> None:
    assert len(workload(duration=0).draw(1, HERE)) == 0
    assert len(workload(arrivals={"kind": "poisson", "rate": 1e-6}, duration=1).draw(1, HERE)) == 0


def test_start_shifts_arrivals() -> None:
    early, late = workload(requests=5).draw(1, HERE), workload(requests=5, start="2 s").draw(1, HERE)
    assert early.arrival_ns is not None
    assert late.arrival_ns is not None
    assert (late.arrival_ns - early.arrival_ns).tolist() == [2 * 10**9] * 5


@pytest.mark.feature("Workloads", "Closed loops: `closed_loop`")
def test_closed_loop() -> None:
    arrivals = {"kind": "closed_loop", "users": 2, "think": "1 s"}
    table = workload(requests=4, arrivals=arrivals, start="10 s").draw(1, HERE)
    assert table.arrival_ns is None
    assert table.users == 2
    assert table.think_ns is not None
    assert table.think_ns.tolist() == [11 * 10**9, 11 * 10**9, 10**9, 10**9]


def test_trace_replay_needs_no_count(folder: Path) -> None:
    table = workload(arrivals=TRACE, lengths=TRACE).draw(1, folder)
    assert table.arrival_ns is not None
    assert (table.arrival_ns / 1e9).tolist() == [0, 1, 2, 4]
    assert table.prompt_tokens.tolist() == [1500, 20, 30, 40]
    assert table.priority.tolist() == [1, 1, 2, 2]
    assert table.hash_ids == [(1, 2, 3), (4,), (5,), (6,)]


def test_parts_of_a_trace(folder: Path) -> None:
    assert len(workload(arrivals=TRACE).draw(1, folder)) == 4
    assert len(workload(lengths=TRACE).draw(1, folder)) == 4
    assert len(workload(arrivals=TRACE, duration="1.5 s").draw(1, folder)) == 2
    assert len(workload(arrivals=TRACE, duration="1 h").draw(1, folder)) == 4
    assert len(workload(arrivals={**TRACE, "repeat": True}, duration="10 s").draw(1, folder)) == 8
    assert len(workload(lengths=TRACE, requests=3).draw(1, folder)) == 3
    with pytest.raises(InputError, match=r"t\.parquet: expected at most 4 requests"):
        workload(lengths=TRACE, requests=5).draw(1, folder)


def test_attributes_replace_the_trace_s(folder: Path) -> None:
    table = workload(
        arrivals=TRACE, lengths=TRACE, priorities={"values": [9]}, prefixes={"groups": 1, "tokens": 25},
    ).draw(1, folder)
    assert set(table.priority) == {9}
    assert table.hash_ids is None
    assert table.prefix_tokens.tolist() == [25, 20, 25, 25]


def test_context_window(folder: Path) -> None:
    table = workload(arrivals=TRACE, lengths=TRACE, max_total_tokens=1000).draw(1, folder)
    assert table.prompt_tokens.tolist() == [999, 20, 30, 40]
    assert table.hash_ids == [(1, 2), (4,), (5,), (6,)]
    lengths = {"kind": "fixed", "prompt": 90, "output": 50}
    long = workload(requests=1, lengths=lengths, max_total_tokens=100).draw(1, HERE)
    assert (long.prompt_tokens[0], long.output_tokens[0]) == (90, 10)


def test_priorities() -> None:
    config = {"values": [0, 5, 7], "weights": [1, 0, 3]}
    drawn = workload(requests=40_000, priorities=config).draw(1, HERE).priority
    assert set(drawn) == {0, 7}
    assert (drawn == 7).mean() == pytest.approx(0.75, abs=0.01)
    even = workload(requests=40_000, priorities={"values": [1, 2]}).draw(1, HERE).priority
    assert (even == 1).mean() == pytest.approx(0.5, abs=0.01)


def test_sessions() -> None:
    drawn = workload(requests=1000, sessions={"count": 10}).draw(1, HERE).session
    assert sorted(set(drawn)) == list(range(10))


@pytest.mark.parametrize("extend", [False, True])
def test_prefixes(extend: bool) -> None:
    config = {"groups": 4, "tokens": 1200, "fraction": 0.3, "extend": extend}
    table = workload(requests=20_000, prefixes=config).draw(1, HERE)
    has = table.prefix_group >= 0
    assert has.mean() == pytest.approx(0.3, abs=0.02)
    assert sorted(set(table.prefix_group)) == [-1, 0, 1, 2, 3]
    assert set(table.prefix_tokens[has]) == ({1200} if extend else {1000})
    assert set(table.prompt_tokens[has]) == ({2200} if extend else {1000})
    assert set(table.prefix_tokens[~has]) == {0}
    assert set(table.prompt_tokens[~has]) == {1000}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give a number of requests, or a duration"),
        ({"requests": 5, "duration": 5}, "requests and duration exclude each other"),
        ({"duration": 5, "arrivals": {"kind": "at_once"}}, "at_once arrivals have no end"),
        ({"duration": 5, "arrivals": {"kind": "closed_loop", "users": 1}}, "closed_loop arrivals have no end"),
        ({"requests": 0}, "greater than or equal to 1"),
        ({"requests": 10**9}, "less than or equal to"),
        ({"requests": "5"}, "integer"),
        ({"requests": 5, "arrivals": {"kind": "posson", "rate": 1}}, "poisson"),
        ({"requests": 5, "arrivals": {"rate": 1}}, "kind"),
        ({"requests": 5, "size": 1}, "Extra inputs"),
        ({"requests": 5, "priorities": {"values": [1], "weights": [1, 2]}}, "as many weights as values"),
        ({"requests": 5, "priorities": {"values": [1], "weights": [0]}}, "sum above 0"),
        ({"requests": 5, "priorities": {"values": []}}, "at least 1"),
        ({"requests": 5, "prefixes": {"groups": 0, "tokens": 5}}, "groups"),
        ({"requests": 5, "sessions": {"count": 0}}, "count"),
        ({"requests": 5, "max_total_tokens": 1}, "max_total_tokens"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        workload(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": {"kind": "empirical", "profile": "azure"}}, r"^lengths\.profile: expected a workload profile"),
        ({"lengths": {"kind": "empirical", "profile": "no/such.yaml"}}, r"^no/such\.yaml: "),
        ({"lengths": {"kind": "trace", "path": "no.parquet"}}, r"^lengths\.path: no such file: no\.parquet"),
        ({"arrivals": {"kind": "trace", "path": "no.csv"}}, r"^arrivals\.path: no such file: no\.csv"),
        ({"arrivals": {"kind": "trace", "path": "a\0.csv"}}, r"a CSV file, found .*a\\x00\.csv"),
        ({"arrivals": {"kind": "trace", "path": "a\0.parquet"}}, "Parquet"),
        ({"arrivals": {"kind": "poisson", "rate": 1e-9}}, "^arrivals: expected arrivals within 292 years"),
        (
            {"lengths": {"kind": "independent", "prompt": {"kind": "normal", "mean": 5, "std": 1, "min": 500},
                         "output": {"kind": "fixed", "tokens": 1}}},
            r"^lengths\.min: expected bounds",
        ),
    ],
)
def test_refused_when_drawn(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        workload(requests=50, **options).draw(1, HERE)


def test_endless_durations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_module, "MAX_REQUESTS", 10_000)
    with pytest.raises(InputError, match="10000 requests or more arrive"):
        workload(duration="1000 s").draw(1, HERE)
    assert len(workload(duration="200 s").draw(1, HERE)) < 10_000


@pytest.mark.parametrize("lengths", [
    {"kind": "empirical", "profile": "azure-conv-2023"},
    {"kind": "independent", "prompt": {"kind": "lognormal", "median": 500, "sigma": 1},
     "output": {"kind": "normal", "mean": 200, "std": 50}},
])
def test_a_million_requests_in_two_seconds(lengths: dict[str, Any]) -> None:
    arrivals = {"kind": "mmpp", "rates": [5, 80], "dwells": [30, 3]}
    config = workload(requests=1_000_000, lengths=lengths, arrivals=arrivals)
    started = time.process_time()
    config.draw(1, HERE)
    assert time.process_time() - started < 2
