"""Trace files: what is written is read back, and whatever is malformed is refused with its place."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.errors import HermesError, InputError
from hermes.workload.traces import describe, read_trace, write_trace

HEAD = "arrival_s,prompt_tokens,output_tokens\n"
GOOD = {"arrival_s": [0.0, 0.5, 0.5], "prompt_tokens": [10, 20, 30], "output_tokens": [1, 2, 3]}
OPTIONAL = {
    "priority": [-1, 0, 1], "session": [0, -1, 2**61 + 1], "prefix_group": [-1, 0, 0], "prefix_tokens": [0, 20, 5],
    "hash_ids": [[1, 2], [], [3]],
}


def parquet(folder: Path, columns: dict[str, Any], marked: bool = True) -> Path:
    """A Parquet file written without any check."""
    table = pa.table(columns)
    if marked:
        table = table.replace_schema_metadata({b"hermes-trace/1": b"{}"})
    pq.write_table(table, folder / "t.parquet")
    return folder / "t.parquet"


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_trace(path)
    with pytest.raises(InputError):
        describe(path)
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(str(path), "FILE")


def test_round_trip(tmp_path: Path) -> None:
    write_trace(pd.DataFrame(GOOD | OPTIONAL), tmp_path / "t.parquet", source="test", hash_block_tokens=16)
    table = read_trace(tmp_path / "t.parquet")
    assert table.arrival_ns is not None
    assert table.arrival_ns.tolist() == [0, 500_000_000, 500_000_000]
    for name in ("prompt_tokens", "output_tokens", "priority", "session", "prefix_group", "prefix_tokens"):
        assert getattr(table, name).tolist() == (GOOD | OPTIONAL)[name]
    assert table.hash_ids == [(1, 2), (), (3,)]
    assert table.hash_block_tokens == 16


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "t.CSV"
    path.write_text("\ufeffprompt_tokens, arrival_s,output_tokens\r\n10,0,1\r\n\r\n20.0,1e-1,2\r\n", encoding="utf-8")
    table = read_trace(path)
    assert table.arrival_ns is not None
    assert table.arrival_ns.tolist() == [0, 100_000_000]
    assert table.prompt_tokens.tolist() == [10, 20]


def test_same_trace_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_trace(pd.DataFrame(GOOD), tmp_path / name, source="test")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_writing_checks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="output_tokens"):
        write_trace(pd.DataFrame(GOOD).drop(columns="output_tokens"), tmp_path / "t.parquet", source="test")
    (tmp_path / "file").write_text("")
    with pytest.raises(HermesError, match=r"cannot write .*/file/t\.parquet: "):
        write_trace(pd.DataFrame(GOOD), tmp_path / "file" / "t.parquet", source="test")


@pytest.mark.parametrize("empty", [pd.DataFrame({name: [] for name in GOOD})])
def test_a_trace_without_rows(tmp_path: Path, empty: pd.DataFrame) -> None:
    write_trace(empty, tmp_path / "t.parquet", source="test")
    assert len(read_trace(tmp_path / "t.parquet")) == 0
    assert describe(tmp_path / "t.parquet")["requests"] == 0


def test_describe(tmp_path: Path) -> None:
    write_trace(pd.DataFrame(GOOD), tmp_path / "t.parquet", source="here")
    figures = describe(tmp_path / "t.parquet")
    assert figures["requests"] == 3
    assert figures["source"] == "here"
    assert figures["arrivals"] == {"first_s": 0.0, "duration_s": 0.5, "rate_per_s": 4.0, "interarrival_cv": 1.0}
    assert figures["prompt_tokens"]["mean"] == figures["prompt_tokens"]["p50"] == 20
    assert figures["prompt_tokens"]["total"] == 60
    assert figures["spearman"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("arrival_s", [0.0, float("nan"), 1.0], "FILE: arrival_s[1]: expected a finite number, found nan"),
        ("arrival_s", [0.0, float("inf"), 1.0], "FILE: arrival_s[1]: expected a finite number, found inf"),
        ("arrival_s", [0.0, None, 1.0], "FILE: arrival_s[1]: expected a finite number, found nan"),
        ("arrival_s", [-1.0, 0.0, 1.0], "FILE: arrival_s[0]: expected seconds from 0 to 1e+09, found -1.0"),
        ("arrival_s", [0.0, 0.0, 1e18], "FILE: arrival_s[2]: expected seconds from 0 to 1e+09, found 1e+18"),
        ("arrival_s", [0.0, 2.0, 1.0], "FILE: arrival_s[2]: expected an arrival not before the previous row's (2.0"),
        ("arrival_s", ["0", "x", "1"], "FILE: arrival_s[1]: expected a number, found 'x'"),
        ("arrival_s", [[0.0], [1.0], [2.0]], "FILE: arrival_s[0]: expected a number, found array"),
        ("prompt_tokens", [1, 0, 1], "FILE: prompt_tokens[1]: expected an integer from 1 to 2**40, found 0"),
        ("prompt_tokens", [1, -5, 1], "FILE: prompt_tokens[1]: expected an integer from 1 to"),
        ("prompt_tokens", [1, 2**62, 1], "FILE: prompt_tokens[1]: expected an integer from 1 to"),
        ("prompt_tokens", [1, 1.5, 1], "FILE: prompt_tokens[1]: expected an integer from 1 to 2**40, found 1.5"),
        ("output_tokens", [1, None, 1], "FILE: output_tokens[1]: expected a finite number, found nan"),
        ("output_tokens", [True, True, True], "FILE: output_tokens: expected a column of numbers, found one of b"),
        ("prefix_tokens", [0, 0, 31], "FILE: prefix_tokens[2]: expected at most the row's prompt_tokens (30), found"),
        ("hash_ids", [[1], [-1], [1]], "FILE: hash_ids[1]: expected a list of integers of at least 0"),
        ("hash_ids", [1, 2, 3], "FILE: hash_ids[0]: expected a list of integers of at least 0"),
        ("prompts", [1, 2, 3], "FILE: expected columns among"),
    ],
)
def test_bad_values(tmp_path: Path, column: str, values: list[Any], message: str) -> None:
    assert message in refused(parquet(tmp_path, GOOD | {column: values}))


@pytest.mark.parametrize("missing", list(GOOD))
def test_missing_columns(tmp_path: Path, missing: str) -> None:
    text = refused(parquet(tmp_path, {name: values for name, values in GOOD.items() if name != missing}))
    assert f"FILE: expected a column {missing}, found columns" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "FILE:1: expected a header line"),
        ("arrival_s,prompt_tokens,prompt_tokens\n", "FILE:1: expected a header line with distinct column names"),
        ("arrival_s,prompt_tokens\n", "FILE: expected a column output_tokens"),
        (HEAD + "0,1\n", "FILE:2: expected 3 fields, found 2"),
        (HEAD + "0,1,2,3\n", "FILE:2: expected 3 fields, found 4"),
        (HEAD + "\n0,1,1\n0,,1\n", "FILE:4: prompt_tokens: expected a number, found ''"),
        (HEAD + "0,1,1\n0,1,1e400\n", "FILE:3: output_tokens: expected a finite number"),
        (HEAD + "0,1," + "9" * 5000, "FILE:2: output_tokens: expected a finite number"),
        (HEAD + "1,1,1\n0,1,1\n", "FILE:3: arrival_s: expected an arrival not before"),
        (HEAD + '0,1,"1\n', "FILE:2: expected a CSV file"),
        ("arrival_s,prompt_tokens,output_tokens,hash_ids\n0,1,1,[1]\n", "FILE:2: hash_ids: expected a list"),
        ("arrival_s;prompt_tokens;output_tokens\n0;1;1\n", "FILE: expected columns among"),
        (HEAD + "0,1,\0\n", "FILE:2"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    assert message in refused(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "junk.csv").write_bytes(b"\xff\xfe\x00\x01")
    (tmp_path / "folder.csv").mkdir()
    assert "no such file" in refused(tmp_path / "no.csv")
    assert "directory" in refused(tmp_path / "folder.csv")
    assert "UTF-8" in refused(tmp_path / "junk.csv")
    assert "no such file" in refused(tmp_path / "no.parquet")
    (tmp_path / "folder.csv").rename(tmp_path / "folder.parquet")
    refused(tmp_path / "folder.parquet")
    refused(tmp_path / ("x" * 5000))


def test_parquet_that_is_no_trace(tmp_path: Path) -> None:
    assert "Parquet without hermes-trace/1 metadata" in refused(parquet(tmp_path, GOOD, marked=False))
    for metadata in (b"", b"[]", b'{"hash_block_tokens": 0}', b'{"hash_block_tokens": "x"}', b"\xff", b"[" * 5000):
        pq.write_table(pa.table(GOOD).replace_schema_metadata({b"hermes-trace/1": metadata}), tmp_path / "t.parquet")
        assert "metadata" in refused(tmp_path / "t.parquet")
    pq.write_table(pa.Table.from_arrays([pa.array([1])] * 2, names=["a", "a"]), tmp_path / "t.parquet")
    assert "distinct names" in refused(tmp_path / "t.parquet")


def test_damaged_parquet(tmp_path: Path) -> None:
    write_trace(pd.DataFrame(GOOD | OPTIONAL), tmp_path / "good.parquet", source="test")
    data = (tmp_path / "good.parquet").read_bytes()
    path = tmp_path / "t.parquet"
    for length in [*range(0, len(data), 97), len(data) - 1]:
        path.write_bytes(data[:length])
        refused(path)
    rng = np.random.default_rng(0)
    for _ in range(200):  # flipped bytes: an error of ours, or (where nothing important was hit) a trace
        broken = bytearray(data)
        broken[rng.integers(4, len(data) - 8)] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(broken))
        with suppress(InputError):
            read_trace(path)


@quick_and_full(50, 200)
@given(data=st.binary(max_size=200))
def test_any_bytes_give_one_line(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("junk")
    for name in ("t.csv", "t.parquet"):
        (folder / name).write_bytes(data)
        refused(folder / name)


FIELDS = st.one_of(st.text(max_size=5), st.integers().map(str), st.floats().map(str), st.just("1"), st.just(""))


@quick_and_full(75, 300)
@given(rows=st.lists(st.lists(FIELDS, min_size=3, max_size=3), max_size=4))
def test_any_csv_is_a_trace_or_an_input_error(tmp_path_factory: Any, rows: list[list[str]]) -> None:
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    text = HEAD + "\n".join(",".join(row) for row in rows)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with suppress(InputError):
        table = read_trace(path)
        assert (table.prompt_tokens >= 1).all()
        assert table.arrival_ns is not None
        assert (np.diff(table.arrival_ns, prepend=0) >= 0).all()
