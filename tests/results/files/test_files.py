"""What is written, byte for byte, and what is read back."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from long_runs import quick_and_full
from synthetic_records import by_hand, random_record
from typing_extensions import TypeAliasType

from hermes.api import simulate
from hermes.config.files import file_digest
from hermes.core.record import RunRecord
from hermes.errors import HermesError, InputError
from hermes.results.files import export
from hermes.results.files.export import write_results
from hermes.results.files.frames import TABLES, to_frame
from hermes.results.files.record_file import _decoded, read_record, write_record
from hermes.results.files.stored import open_run
from hermes.results.results import Results
from hermes.results.slo import SloConfig
from hermes.units import unit_of

META = {"name": "by hand", "version": "1", "seed": 7, "scenario": {"name": "by hand", "z": 1, "a": "µ"}, "wall_s": 0.1}
FILES = {
    "summary.json", "requests.parquet", "stages.parquet", "runs.parquet", "transfers.parquet", "clients.parquet",
    "utilisation.parquet", "steps.parquet", "token_steps.parquet", "scenario.resolved.yaml", "trace.json.gz",
    "record.parquet",
}
fast = quick_and_full(6, 15, suppress_health_check=[HealthCheck.function_scoped_fixture])


def assert_same(ours: Any, theirs: Any, where: str = "record") -> None:
    """Equal values of equal types, in equal order."""
    if isinstance(ours, np.ndarray):
        np.testing.assert_array_equal(ours, theirs, err_msg=where)
        assert ours.dtype == theirs.dtype, where
    elif isinstance(ours, RunRecord):
        assert_same(vars(ours), vars(theirs), where)
    elif isinstance(ours, Mapping):
        assert list(ours) == list(theirs), where
        for name, one in ours.items():
            assert_same(one, theirs[name], f"{where}.{name}")
    elif isinstance(ours, list | tuple):
        assert type(ours) is type(theirs), where
        assert len(ours) == len(theirs), where
        for number, one in enumerate(ours):
            assert_same(one, theirs[number], f"{where}.{number}")
    else:
        assert ours == theirs, where


def test_round_trip_by_hand(tmp_path: Path) -> None:
    results = Results(by_hand(), META, SloConfig(ttft=0.1))
    assert write_results(results, tmp_path / "new" / "run", trace_events=1000) == tmp_path / "new" / "run"
    assert {path.name for path in (tmp_path / "new" / "run").iterdir()} == FILES
    stored = open_run(tmp_path / "new" / "run")
    assert stored.summary == results.summary
    assert stored.slo == results.slo
    assert stored.meta == {"name": "by hand", "version": "1", "seed": 7}
    assert stored.scenario_text == "name: by hand\nz: 1\na: µ\n"
    for table in ("requests", "stages", "runs", "transfers", "clients", "utilisation"):
        pd.testing.assert_frame_equal(getattr(stored, table), getattr(results, table))
    assert_same(results.record, stored.record)
    np.testing.assert_array_equal(stored.token_times_s(2), results.token_times_s(2))
    assert stored.itl_s().stats() == results.itl_s().stats()
    assert "by hand" in stored.to_text()
    assert "simulated in" not in stored.to_text()
    pd.testing.assert_frame_equal(stored.client_timeseries("llm-a"), results.client_timeseries("llm-a"))


@pytest.mark.feature("Results, sweeps, studies", "Files, read back; Chrome trace")
@fast
@given(st.integers(0, 10**6))
def test_round_trip(tmp_path: Path, seed: int) -> None:
    results = Results(random_record(seed)[0])
    write_results(results, tmp_path / "run")
    stored = open_run(tmp_path / "run")
    assert_same(results.record, stored.record)
    assert json.dumps(stored.summary) == json.dumps(results.summary)
    assert json.dumps(stored.summary_of_run) == json.dumps(results.summary)


@pytest.mark.drawn
@pytest.mark.parametrize(("scenario", "settings", "kept"), [
    ("pipelines/mixed", [], ("links", "tiers", "machines", "transfers")),
    ("pipelines/prefix-tiers", [], ("tiers", "step_growth")),
    ("pipelines/rag-reasoning", ["workload.pipeline={name: rag-reasoning, branches: 3}"], ("machines", "sharing")),
    ("pipelines/rag-disaggregated", [], ("machines", "transfers")),
    ("batching/mixed", ["clients.0.memory={num_blocks: 900}"], ("gaps", "after_ns")),
    ("batching/static", [], ("decode_steps",)),
    ("closed-loop-priority", ["workload.requests=12", "measure={start: 1 s, weights: {generate: 2}}"], ("labels",)),
])
def test_a_folder_gives_what_the_run_gave(
    tmp_path: Path, scenario: str, settings: list[str], kept: tuple[str, ...],
) -> None:
    results = simulate(scenario, overrides=["workload.requests=40", *settings])
    write_results(results, tmp_path)
    stored = open_run(tmp_path)
    assert_same(results.record, stored.record)
    assert json.dumps(stored.summary) == json.dumps(results.summary)
    assert json.dumps(stored.summary_of_run) == json.dumps(results.summary_of_run)
    for table in TABLES:
        pd.testing.assert_frame_equal(to_frame(stored.columns(table)), to_frame(results.columns(table)))
    for name in kept:
        assert len(getattr(results.record, name)), "a scenario without what it is to show"


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
    assert content["run"]["format"] == 3
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

    monkeypatch.setattr(export, "write_table", stop)
    with pytest.raises(KeyboardInterrupt):
        write_results(Results(by_hand(), META), tmp_path)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert after == {name: content for name, content in before.items() if name != "summary.json"}
    with pytest.raises(InputError, match=r"a folder with finished results \(summary.json\)"):
        open_run(tmp_path)


def test_a_table_in_parts_is_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long run's runs are written some at a time: a row group each, as of the whole table."""
    results = simulate("quickstart", overrides={"workload.requests": 60})
    write_results(results, tmp_path / "whole")
    monkeypatch.setattr(export, "_ROWS", 7)
    write_results(results, tmp_path / "parts")
    rows = len(results.record.runs["client"])
    assert pq.ParquetFile(tmp_path / "parts" / "runs.parquet").num_row_groups == -(-rows // 7) > 3
    for name in ("runs", "transfers"):
        one, other = (pq.read_table(tmp_path / folder / f"{name}.parquet") for folder in ("whole", "parts"))
        assert one.equals(other), name
        assert one.schema.equals(other.schema, check_metadata=True), name


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
    ('{"run": {"format": 2, "end_s": 1}}', r"run.format: expected results of format 3 .*, found 2"),
    ('{"run": {"format": 3, "end_s": 1, "slo": {"ttft": "x"}}}', r"summary.json: it was changed after the run"),
    (b"\xff", "UTF-8 text"),
])
def test_damaged_summaries(tmp_path: Path, content: str | bytes, message: str) -> None:
    raw = content.encode() if isinstance(content, str) else content
    (tmp_path / "summary.json").write_bytes(raw)
    with pytest.raises(InputError, match=message):
        open_run(tmp_path)


def test_a_summary_may_be_laid_out_anew_but_not_changed(tmp_path: Path) -> None:
    write_results(Results(by_hand()), tmp_path)
    path = tmp_path / "summary.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content))
    assert open_run(tmp_path).summary["requests"]["total"] == 6
    content["requests"]["total"] = 7
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"summary.json: it was changed after the run; run the scenario again"):
        open_run(tmp_path)


def test_a_summary_says_where_it_was_made_and_the_rest_does_not_depend_on_it(tmp_path: Path) -> None:
    texts = {}
    for build in ("pure", "compiled"):
        environment = {"build": build, "python": "3.11.0", "numpy": "2.0.0"}
        write_results(Results(by_hand(), {**META, "environment": environment}), tmp_path / build)
        texts[build] = (tmp_path / build / "summary.json").read_text()
        assert open_run(tmp_path / build).meta["environment"] == environment
    pure, compiled = (json.loads(text) for text in texts.values())
    assert pure["run"].pop("environment")["build"] == "pure"
    assert compiled["run"].pop("environment")["build"] == "compiled"
    assert pure == compiled
    assert texts["pure"].replace('"pure"', '"compiled"') == texts["compiled"]
    write_results(open_run(tmp_path / "pure"), tmp_path / "again")   # it was simulated there
    assert (tmp_path / "again" / "summary.json").read_text() == texts["pure"]


def test_no_damaged_record_is_read(tmp_path: Path) -> None:
    write_results(Results(by_hand()), tmp_path)
    path, rng = tmp_path / "record.parquet", random.Random(1)
    good = path.read_bytes()
    damaged = [b"", b"not Parquet", good[:-1], good + b"x"]
    for _ in range(50):
        place = rng.randrange(len(good))
        damaged.append(good[:place] + bytes([good[place] ^ rng.randrange(1, 256)]) + good[place + 1:])
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"record.parquet: it is not the file that the run wrote"):
            _ = open_run(tmp_path).record
    with path.open("wb") as file:
        file.truncate(1 << 40)   # a terabyte of zeros, which takes no space and 10 minutes to read
    with pytest.raises(InputError, match=r"record.parquet: it is not the file that the run wrote"):
        _ = open_run(tmp_path).record
    path.unlink()
    with pytest.raises(InputError, match=r"record.parquet: expected a readable file, found no such file"):
        _ = open_run(tmp_path).record


@pytest.mark.parametrize("change", [
    lambda record: vars(record).pop("priority"), lambda record: vars(record).update(more=1),
    lambda record: vars(record).update(end_ns="late"), lambda record: vars(record).update(status=record.status[:-1]),
    lambda record: record.runs.update(client=record.runs["client"][1:]),
    lambda record: vars(record).update(clients=[{"name": "a"}]),
])
def test_a_record_with_another_schema_is_refused(tmp_path: Path, change: Callable[[RunRecord], Any]) -> None:
    record, path = by_hand(), tmp_path / "record.parquet"
    change(record)
    write_record(record, path)
    with pytest.raises(InputError, match=r"record.parquet: expected the record of a run of this version, found "):
        read_record(path, file_digest(path))


@fast
@given(st.binary(min_size=1, max_size=3), st.floats(0, 1))
def test_a_mutated_file_with_a_fitting_digest_ends_in_one_line(tmp_path: Path, new: bytes, share: float) -> None:
    path = tmp_path / "record.parquet"
    write_record(by_hand(), path)
    content = path.read_bytes()
    place = int(share * (len(content) - len(new)))
    path.write_bytes(content[:place] + new + content[place + len(new):])
    try:
        read_record(path, file_digest(path))
    except InputError as error:
        expected = r"record.parquet: (expected the record of a run|it is not the file that the run wrote)"
        assert re.search(expected, str(error))


def test_tables_are_not_read_back(tmp_path: Path) -> None:
    write_results(Results(by_hand()), tmp_path)
    for name in TABLES:
        (tmp_path / f"{name}.parquet").unlink()
    pd.testing.assert_frame_equal(open_run(tmp_path).requests, Results(by_hand()).requests)


@pytest.mark.parametrize("table", TABLES)
def test_columns_of_numbers_have_units(tmp_path: Path, table: str) -> None:
    write_results(Results(by_hand()), tmp_path)
    units = {field.name: field.metadata for field in pq.read_schema(tmp_path / f"{table}.parquet")
             if pa.types.is_floating(field.type) or pa.types.is_integer(field.type)}
    for name, metadata in units.items():
        assert metadata[b"unit"].decode() == unit_of(name), name
        for end, unit in {"_s": b"s", "_j": b"J", "_w": b"W", "_tokens": b"tokens", "_bytes": b"bytes"}.items():
            if name.endswith(end) and not name.endswith(("_per_s", "block_s")):
                assert metadata[b"unit"] == unit, name


def test_the_trace_opens(tmp_path: Path) -> None:
    write_results(Results(by_hand()), tmp_path, trace_events=1000)
    with gzip.open(tmp_path / "trace.json.gz") as file:
        assert json.load(file)["traceEvents"]


def test_arrays_are_read_where_their_type_is_an_alias() -> None:
    """NumPy 2.5 made `NDArray` an alias, of which `get_origin` gives the alias itself."""
    scalar = TypeVar("scalar", bound=np.generic)
    alias = TypeAliasType("alias", np.ndarray[Any, np.dtype[scalar]], type_params=(scalar,))
    written = {"array": 0, "dtype": "int32", "shape": [2]}
    read = _decoded(alias[np.int32], written, [np.array([3, 4], dtype=np.int64)])
    np.testing.assert_array_equal(read, np.array([3, 4], dtype=np.int32), strict=True)
