from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from synthetic_records import by_hand, random_record

from hermes.core.record import RunRecord
from hermes.errors import InputError
from hermes.results.layout import format_s
from hermes.results.results import Results


def test_frames() -> None:
    results = Results(by_hand())
    assert results.requests is results.requests  # made once
    assert results.stages["client"].tolist() == ["llm-a", "rag", "llm-a", "llm-a", "llm-a", "llm-b"]
    assert results.stages["kind"].tolist()[-1] == "decode"
    assert np.isnan(results.stages["first_token_s"][1])
    assert results.stages["end_s"].tolist()[-1] == 0.350
    assert results.runs["client"].value_counts()["llm-a"] == 6
    assert results.transfers.iloc[0].to_dict() == {
        "request": 2, "src": "llm-a", "dst": "llm-b", "bytes": 1 << 20, "start_s": 0.250, "end_s": 0.280,
    }
    assert results.clients["name"].tolist() == ["llm-a", "llm-b", "rag"]
    assert results.clients["utilisation"][0] == pytest.approx(70 / 300)


def test_the_record_is_made_when_needed() -> None:
    made = []

    def make() -> RunRecord:
        made.append(1)
        return by_hand()

    results = Results(make)
    assert not made
    assert results.summary["requests"]["total"] == 6
    assert results.requests is not None
    assert made == [1]


def test_step_ends() -> None:
    results = Results(by_hand())
    np.testing.assert_allclose(results.step_ends_s("llm-b"), [0.300, 0.320, 0.350])
    np.testing.assert_allclose(results.step_ends_s(1), results.step_ends_s("llm-b"))
    for unknown in ("llm-c", 3, -1):
        with pytest.raises(InputError, match="a client: one of llm-a, llm-b, rag"):
            results.step_ends_s(unknown)
    with pytest.raises(InputError, match="did you mean 'llm-"):
        results.client_timeseries("llm-A")


def test_timeseries_by_hand() -> None:
    series = Results(by_hand()).client_timeseries("llm-a", bins=30)  # 100 ms to 400 ms: bins of 10 ms
    assert len(series) == 30
    np.testing.assert_allclose(series["t_s"][:2], [0.105, 0.115])
    np.testing.assert_allclose(series["stepping"], [1, 1, 1] + [0] * 8 + [1] * 4 + [0] * 15, atol=1e-9)
    np.testing.assert_allclose(series["kv_blocks"][11:15], [9, 10, 8, 7], atol=1e-6)
    np.testing.assert_allclose(series["waiting"][10:15], [0, 1, 1, 1, 0], atol=1e-6)
    np.testing.assert_allclose(series["prefill_tokens_per_s"][0], 100 / 0.01)
    np.testing.assert_allclose(series["output_tokens_per_s"].sum() * 0.01, 8)  # a sampled sequence per step, two once
    narrow = Results(by_hand()).client_timeseries("llm-a", bins=2, start_s=0.1, end_s=0.12)
    np.testing.assert_allclose(narrow["stepping"], [1, 1])
    idle = Results(by_hand()).client_timeseries("rag", bins=4)
    assert not idle["stepping"].any()


@given(st.integers(0, 10**6), st.integers(1, 50))
def test_timeseries_conserves(seed: int, bins: int) -> None:
    record, _ = random_record(seed)
    results = Results(record)
    end = max(record.end_ns, 1) / 1e9
    for client in range(3):
        mine = record.runs["client"] == client
        series = results.client_timeseries(client, bins, start_s=0.0, end_s=end)
        width = end / bins
        busy = (record.runs["end_ns"] - record.runs["start_ns"])[mine].sum() / 1e9
        assert series["stepping"].sum() * width == pytest.approx(busy)
        assert series["steps_per_s"].sum() * width == pytest.approx(record.runs["num_steps"][mine].sum())
        assert series["running"].max() <= record.runs["running"][mine].max() + 1e-9


def test_shown_to_people() -> None:
    results = Results(by_hand(), {"name": "a <b>run</b> [red]", "wall_s": 0.5, "seed": 1})
    text = results.to_text()
    for part in ("6 of a <b>run</b> [red]: 4 completed, 1 rejected, 1 unfinished", "TTFT", "has 10",
                 "2 steps (20.0%)"):
        assert part in text
    everything = results.to_text(verbose=True)
    assert everything.startswith(text)
    assert "llm-b" in everything
    assert "500 ms" in everything
    assert max(len(line) for line in everything.splitlines()) <= 80
    html = results._repr_html_()
    assert "a &lt;b&gt;run&lt;/b&gt;" in html
    assert "<b>run" not in html
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(results.table(verbose=True))
    assert "[red]" in console.export_text()
    assert repr(results).startswith("<Results a <b>run</b> [red]: 4 of 6 requests in 300 ms")


def test_many_clients_are_cut() -> None:
    record = by_hand()
    record.clients += [record.clients[2]] * 40
    record.step_ends += [record.step_ends[2]] * 40
    record.out_of_range_steps += [0] * 40
    for number, client in enumerate(record.clients[2:]):
        record.clients[2 + number] = replace(client, name=f"rag-{number}")
    assert "and 27 more groups of clients" in Results(record).to_text(verbose=True)
    record.clients[2:] = [replace(client, group="rag") for client in record.clients[2:]]
    text = Results(record).to_text(verbose=True)
    assert "more groups" not in text
    assert "rag x 41" in text


@pytest.mark.parametrize(("seconds", "text"), [
    (None, "-"), (0.0, "0 s"), (1.5, "1.5 s"), (0.25, "250 ms"), (0.00002, "20 µs"), (1e-9, "0.001 µs"),
    (12345.6, "12,346 s"),
])
def test_durations(seconds: float | None, text: str) -> None:
    assert format_s(seconds) == text
