"""What is written, byte for byte, and what is read back."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic_records import by_hand, random_record

from hermes.api import simulate
from hermes.core.record import RunRecord
from hermes.errors import HermesError, InputError
from hermes.results import export
from hermes.results.export import write_results
from hermes.results.results import Results
from hermes.results.slo import SloConfig
from hermes.results.stored import open_run

META = {"name": "by hand", "version": "1", "seed": 7, "scenario": {"name": "by hand", "z": 1, "a": "µ"}, "wall_s": 0.1}
FILES = {
    "summary.json", "requests.parquet", "stages.parquet", "runs.parquet", "transfers.parquet", "clients.parquet",
    "utilisation.parquet", "steps.parquet", "token_steps.parquet", "scenario.resolved.yaml", "trace.json.gz",
    "resources.json",
}
fast = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


def assert_same_record(ours: RunRecord, theirs: RunRecord) -> None:
    for name, mine in vars(ours).items():
        other = getattr(theirs, name)
        if isinstance(mine, np.ndarray):
            np.testing.assert_array_equal(mine, other, err_msg=name)
            assert mine.dtype == other.dtype
        elif name == "stages" and "kind" in mine:
            kinds = [[ours.stage_kinds[k] for k in mine["kind"]], [theirs.stage_kinds[k] for k in other["kind"]]]
            assert kinds[0] == kinds[1]
            assert_columns({**mine, "kind": other["kind"]}, other)
        elif name in ("runs", "transfers"):
            assert_columns(mine, other)
        elif name == "step_ends":
            for a, b in zip(mine, other, strict=True):
                np.testing.assert_array_equal(a, b)
        elif name == "gaps":
            assert_columns(mine, other)
        elif name == "decode_steps":
            for mine_of, other_of, ends in zip(mine, other, ours.step_ends, strict=False):
                every = np.arange(len(ends))  # None means every step
                np.testing.assert_array_equal(
                    every if mine_of is None else mine_of, every if other_of is None else other_of
                )
        elif name != "stage_kinds":
            assert mine == other, name


def assert_columns(mine: dict[Any, Any], other: dict[Any, Any]) -> None:
    assert mine.keys() == other.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], other[name], err_msg=str(name))


def test_round_trip_by_hand(tmp_path: Path) -> None:
    results = Results(by_hand(), META, SloConfig(ttft=0.1))
    assert write_results(results, tmp_path / "new" / "run", trace_events=1000) == tmp_path / "new" / "run"
    assert {path.name for path in (tmp_path / "new" / "run").iterdir()} == FILES
    stored = open_run(tmp_path / "new" / "run")
    assert stored.summary == results.summary
    assert stored.slo == results.slo
    assert stored.meta == {"name": "by hand", "version": "1", "seed": 7}
    assert stored.scenario_text == "name: by hand\nz: 1\na: µ\n"
    for table in ("requests", "stages", "runs", "transfers"):
        pd.testing.assert_frame_equal(
            getattr(stored, table), getattr(results, table), check_dtype=False, check_categorical=False
        )
    assert stored.clients["name"].tolist() == results.clients["name"].tolist()
    np.testing.assert_array_equal(stored.clients["kv_mean_share"], results.clients["kv_mean_share"])
    assert_same_record(results.record, stored.record)
    np.testing.assert_array_equal(stored.token_times_s(2), results.token_times_s(2))
    assert stored.itl_s().stats() == results.itl_s().stats()
    assert "by hand" in stored.to_text()
    assert "simulated in" not in stored.to_text()
    pd.testing.assert_frame_equal(stored.client_timeseries("llm-a"), results.client_timeseries("llm-a"))


@fast
@given(st.integers(0, 10**6))
def test_round_trip(tmp_path: Path, seed: int) -> None:
    results = Results(random_record(seed)[0])
    write_results(results, tmp_path / "run")
    stored = open_run(tmp_path / "run")
    assert_same_record(results.record, stored.record)
    assert json.dumps(stored.summary) == json.dumps(results.summary)
    recomputed = Results(stored.record).summary
    assert recomputed["latency"] == results.summary["latency"]
    assert recomputed["energy"] == results.summary["energy"]


@pytest.mark.parametrize(("scenario", "kept"), [
    ("pipelines/mixed", ("links", "tiers", "machines")), ("pipelines/prefix-tiers", ("tiers",)),
    ("pipelines/rag-reasoning", ("machines", "sharing")),
])
def test_links_tiers_machines_and_sharing_come_back(tmp_path: Path, scenario: str, kept: tuple[str, ...]) -> None:
    branches = ["workload.pipeline={name: rag-reasoning, branches: 3}"] if "sharing" in kept else []
    results = simulate(scenario, overrides=["workload.requests=40", *branches])
    write_results(results, tmp_path)
    stored = open_run(tmp_path)
    for name in ("links", "tiers", "machines", "sharing"):
        assert getattr(stored.record, name) == getattr(results.record, name), name
    recomputed = Results(stored.record, slo=stored.slo).summary
    for part in ("utilisation", "tiers", "sharing"):
        assert recomputed.get(part) == results.summary.get(part)
    assert all(getattr(stored.record, name) for name in kept), "a scenario without what it is to show"


def test_results_from_before_resources_were_written(tmp_path: Path) -> None:
    write_results(Results(by_hand()), tmp_path)
    (tmp_path / "resources.json").unlink()
    assert open_run(tmp_path).record.links == []


@pytest.mark.parametrize(("content", "message"), [
    ("{", r"resources.json:1:2: expected valid JSON"),
    ("{}", "links, tiers, machines and sharing as hermes writes them"),
    ('{"links": [{"name": "a"}], "tiers": [], "machines": [], "sharing": []}', "as hermes writes them"),
])
def test_damaged_resources(tmp_path: Path, content: str, message: str) -> None:
    write_results(Results(by_hand()), tmp_path)
    (tmp_path / "resources.json").write_text(content)
    with pytest.raises(InputError, match=message):
        _ = open_run(tmp_path).record


@fast
@given(st.integers(0, 10**6))
def test_same_record_same_bytes(tmp_path: Path, seed: int) -> None:
    for folder, wall in (("a", 1.0), ("b", 2.0)):
        write_results(Results(random_record(seed)[0], {**META, "wall_s": wall}), tmp_path / folder, trace_events=100)
    assert {p.name for p in (tmp_path / "a").iterdir()} == FILES
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_summary_is_plain_json(tmp_path: Path) -> None:
    write_results(Results(by_hand(), META), tmp_path)
    text = (tmp_path / "summary.json").read_text()
    assert "NaN" not in text
    content = json.loads(text)
    assert content["run"]["format"] == 1
    assert "wall_s" not in content["run"]
    assert content["clients"]["rag"]["mean_batch"] is None
    assert content["latency"]["ttft_s"]["mean"] == pytest.approx(0.06)


def test_parquet_is_readable_without_hermes(tmp_path: Path) -> None:
    write_results(Results(by_hand(), META), tmp_path)
    steps = pd.read_parquet(tmp_path / "steps.parquet")
    assert steps["client"].tolist() == ["llm-a"] * 7 + ["llm-b"] * 3
    assert steps["step"].tolist() == [*range(7), *range(3)]
    assert steps["end_s"].tolist()[-1] == 0.350
    requests = pd.read_parquet(tmp_path / "requests.parquet")
    assert requests["status"].tolist()[3] == "rejected"
    assert np.isnan(requests["ttft_s"][4])
    assert pd.read_parquet(tmp_path / "clients.parquet")["prefill_w"].tolist() == [1000.0, 0.0, 20.0]


def test_scenario_text_is_kept_and_stale_files_go(tmp_path: Path) -> None:
    write_results(Results(by_hand(), {"scenario_text": "a: 1\n"}), tmp_path, trace_events=1000)
    assert (tmp_path / "trace.json.gz").exists()
    assert (tmp_path / "scenario.resolved.yaml").read_text() == "a: 1\n"
    write_results(Results(by_hand()), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES - {"scenario.resolved.yaml", "trace.json.gz"}
    assert open_run(tmp_path).scenario_text is None


def test_an_interrupted_write_leaves_no_torn_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_results(Results(by_hand(), META), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def stop(path: Path, columns: Any) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(export, "_write_table", stop)
    with pytest.raises(KeyboardInterrupt):
        write_results(Results(by_hand(), META), tmp_path)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert after == {name: content for name, content in before.items() if name != "summary.json"}
    with pytest.raises(InputError, match=r"a folder with finished results \(summary.json\)"):
        open_run(tmp_path)


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(InputError, match="a folder for the results"):
        write_results(Results(by_hand()), file)
    with pytest.raises(HermesError, match="cannot write results to"):
        write_results(Results(by_hand()), file / "below")


@pytest.mark.parametrize(("content", "message"), [
    ("{", r"summary.json:1:2: expected valid JSON"),
    ("[]", "a summary that hermes wrote"), ("{}", "a summary that hermes"),
    ('{"run": {"format": 99, "end_s": 1}}', r"run.format: expected results of format 1, found 99"),
    ('{"run": {"format": 1, "end_s": 1, "slo": {"ttft": "x"}}}', r"summary.json: run.slo.ttft: expected a duration"),
    (b"\xff", "UTF-8 text"),
])
def test_damaged_summaries(tmp_path: Path, content: str | bytes, message: str) -> None:
    raw = content.encode() if isinstance(content, str) else content
    (tmp_path / "summary.json").write_bytes(raw)
    with pytest.raises(InputError, match=message):
        open_run(tmp_path)


def test_damaged_tables(tmp_path: Path) -> None:
    write_results(Results(by_hand()), tmp_path)
    (tmp_path / "requests.parquet").write_bytes(b"not Parquet")
    with pytest.raises(InputError, match=r"requests.parquet: expected a Parquet file"):
        _ = open_run(tmp_path).requests
    (tmp_path / "requests.parquet").unlink()
    with pytest.raises(InputError, match=r"requests.parquet: expected a table of a finished run"):
        _ = open_run(tmp_path).requests


def test_the_trace_opens(tmp_path: Path) -> None:
    write_results(Results(by_hand()), tmp_path, trace_events=1000)
    with gzip.open(tmp_path / "trace.json.gz") as file:
        assert json.load(file)["traceEvents"]
