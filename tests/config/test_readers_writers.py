"""Readers that never block or read without end, and writers that leave a whole file or none."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hermes.config import files, tables
from hermes.config.files import (
    MAX_TABLE_BYTES,
    beside,
    csv_rows,
    is_parquet,
    json_lines,
    parquet_metadata,
    parquet_table,
    parse_json,
    read_bytes,
    read_json,
    read_text,
    relative_name,
    unzipped,
)
from hermes.config.tables import csv_table, json_table, npz_arrays, parquet_columns
from hermes.config.writing import check_writable, locked, replacing, write_text
from hermes.errors import HermesError, InputError
from hermes.scenario import load_scenario
from hermes.workload.traces import read_trace

READERS: dict[str, Callable[[Path], Any]] = {
    "bytes": read_bytes, "text": read_text, "json": read_json, "lines": lambda path: list(json_lines(path)),
    "csv": lambda path: list(csv_rows(path)), "parquet": parquet_table, "footer": parquet_metadata,
    "csv table": csv_table, "json table": lambda path: json_table(path, []),
    "parquet columns": lambda path: parquet_columns(path, ["a"]),
}


@pytest.fixture(params=["fifo", "device", "folder", "loop", "missing", "null byte"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "odd"
    if request.param == "fifo":
        os.mkfifo(path)
    elif request.param == "device":
        path.symlink_to("/dev/zero")
    elif request.param == "folder":
        path.mkdir()
    elif request.param == "loop":
        path.symlink_to(path)
    elif request.param == "null byte":
        return tmp_path / "a\0b"
    return path


@pytest.mark.feature("Scenarios and commands", (
    "Files from elsewhere are read under bounds, outputs are whole or absent"))
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_what_is_no_regular_file_is_refused_at_once(reader: Callable[[Path], Any], odd: Path) -> None:
    started = time.monotonic()
    with pytest.raises(InputError) as refused:
        reader(odd)
    assert "\n" not in str(refused.value)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("reader", [READERS[name] for name in ("bytes", "text", "json")])
def test_reads_are_bounded(reader: Callable[[Path], Any], tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match="a file of at most 8388608 bytes, found a larger one"):
        reader(tmp_path / "sparse")


@pytest.mark.parametrize("name", ["lines", "csv"])
def test_a_line_without_an_end_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes.config.files.MAX_LINE", 1000)
    (tmp_path / "f").write_text("x" * 5000)
    with pytest.raises(InputError, match="lines of less than 1000 characters"):
        READERS[name](tmp_path / "f")


@pytest.mark.parametrize(("text", "message"), [
    ('{"a": NaN}', "finite numbers, found NaN"), ('{"a": 1e999}', "finite numbers, found 1e999"),
    ('{"a": 1, "a": 2}', "each key once, found 'a' again"), ('["\\ud800"]', "whole characters"), ("{", "valid JSON"),
    ("[" * 100_000, "RecursionError"), ("1" * 5000, "ValueError"), ('{"a": Infinity}', "finite numbers"),
])
def test_json_is_strict(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_json(text, "x.json")


def test_parquet_that_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1, 2]}), path)
    assert is_parquet(path)
    assert parquet_metadata(path) == (2, ["a"])
    path.write_bytes(path.read_bytes()[:-10])
    assert not is_parquet(path)
    with pytest.raises(InputError, match="damaged, or not Parquet"):
        parquet_table(path)
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), path)
    assert not is_parquet(path), "a table that lost its rows is not what was kept"
    pq.write_table(pa.table({"a": [1] * 100}), path)
    with pytest.raises(InputError, match="at most 10 rows, found 100"):
        parquet_table(path, max_rows=10)


def test_a_read_asks_for_the_memory_that_the_file_needs(tmp_path: Path) -> None:
    """A file of 1,000 bytes that may have 4 GiB, one of none, and one whose size the system does not tell."""
    path = tmp_path / "some"
    for content in (b"x" * 1000, b""):
        path.write_bytes(content)
        tracemalloc.start()
        assert read_bytes(path, MAX_TABLE_BYTES) == content
        assert tracemalloc.get_traced_memory()[1] < 2**20
        tracemalloc.stop()
    if sys.platform == "linux":
        assert read_bytes("/proc/self/status").startswith(b"Name:")


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million zeros take a kilobyte."""
    packed = io.BytesIO()
    np.savez_compressed(packed, zeros=np.zeros(10**6, dtype=np.int8))
    assert len(packed.getvalue()) < 2000
    assert npz_arrays(packed.getvalue(), "a.npz", "times")["zeros"].shape == (10**6,)
    assert len(unzipped(zlib.compress(bytes(10**6)))) == 10**6
    monkeypatch.setattr(files, "MAX_UNPACKED", 10**6 - 1)
    monkeypatch.setattr(tables, "MAX_UNPACKED", 10**6)   # a header comes on top
    said = r"^a\.npz: expected times that unpacks to at most 1000000 bytes, found 1000128$"
    with pytest.raises(InputError, match=said):
        npz_arrays(packed.getvalue(), "a.npz", "times")
    with pytest.raises(ValueError, match="unpacks to more than 999999 bytes"):
        unzipped(zlib.compress(bytes(10**6)))


def test_a_text_in_an_archive_of_arrays_is_one_line() -> None:
    packed = io.BytesIO()
    np.savez(packed, a=np.zeros(3))
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr("notes.txt", "hello")
    with pytest.raises(InputError, match=r"^a\.npz: notes\.txt: expected times of arrays alone, found another file$"):
        npz_arrays(packed.getvalue(), "a.npz", "times")


UNSEEN = {"\u202e": "U+202E", "\u2066": "U+2066", "\u200b": "U+200B", "\u200d": "U+200D", "\ufeff": "U+FEFF",
          "\u00ad": "U+00AD", "\u061c": "U+061C", "\u3164": "U+3164", "\ufe0f": "U+FE0F", "\u2060": "U+2060"}


@pytest.mark.parametrize("character", UNSEEN, ids=UNSEEN.get)
def test_names_have_no_characters_that_are_not_seen(character: str, tmp_path: Path) -> None:
    said = rf"text without direction marks and zero-width characters, found character {re.escape(UNSEEN[character])}"
    workload = {"requests": 1, "arrivals": {"kind": "at_once"}, "lengths": {"kind": "fixed", "prompt": 1, "output": 1}}
    client = {"model": "llama-3.1-8b", "device": "h100-sxm"}
    for data in ({"name": f"a{character}"}, {"clients": [client | {"name": f"a{character}"}]},
                 {"workload": workload | {"tenants": {"values": ["a", f"a{character}"]}}}):
        with pytest.raises(InputError, match=said):
            load_scenario({"workload": workload, "clients": [client]} | data)
    trace = tmp_path / "t.csv"
    rows = f"arrival_s,prompt_tokens,output_tokens,tenant\n0,3,4,a\n1,3,4,a{character}\n"
    trace.write_text(rows, encoding="utf-8")
    with pytest.raises(InputError, match=rf"t\.csv:3: tenant: expected {said}"):
        read_trace(trace)
    for name in ("Ünïcode", "数据", "عربي", "a b-c_d.1", "🙂"):
        assert load_scenario({"name": name, "workload": workload, "clients": [client]}).name == name


@pytest.mark.parametrize("name", ["../x", "/x", "", "..", "a/b", "a\0"])
def test_names_that_lead_elsewhere(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the name of a file beside this one"):
        beside(tmp_path / "header.yaml", name)


def test_a_writer_leaves_a_whole_file_or_none(tmp_path: Path) -> None:
    write_text(tmp_path / "new" / "f", "one")

    def interrupted(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "new" / "f") as path:
        interrupted(path)
    assert [(p.name, p.read_text()) for p in (tmp_path / "new").iterdir()] == [("f", "one")]


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")   # as `write` says it: without a name

    with pytest.raises(HermesError, match=r"cannot write .*/f: no space left on device"), replacing(tmp_path / "f"):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["/dev/null", "/dev/full", "/tmp"])
def test_what_is_no_file_is_not_replaced(target: str) -> None:
    with pytest.raises(InputError, match="a file to write"):
        write_text(target, "x")


def test_a_folder_that_cannot_be_written() -> None:
    with pytest.raises(HermesError, match="cannot write into /proc/self/x: "):
        check_writable(Path("/proc/self/x"))


def test_a_relative_name_has_slashes_and_is_whole_between_drives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert relative_name(tmp_path / "a" / "b.csv", tmp_path / "c") == "../a/b.csv"

    def refused(*_: object) -> str:
        raise ValueError("path is on mount 'C:', start on mount 'D:'")

    monkeypatch.setattr("os.path.relpath", refused)
    assert relative_name(tmp_path / "b.csv", tmp_path) == (tmp_path / "b.csv").resolve().as_posix()


def test_two_processes_do_not_write_into_one_folder(tmp_path: Path) -> None:
    code = ("import sys; from pathlib import Path; from hermes.config.writing import locked\n"
            f"with locked(Path({str(tmp_path)!r})): print('held', flush=True); sys.stdin.read()")
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        other.stdout.readline()
        with pytest.raises(InputError, match="found one that another process holds"), locked(tmp_path):
            pass
        other.kill()
    with locked(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_threads_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    refused: list[Exception] = []

    def second() -> None:
        try:
            with locked(tmp_path):
                pass
        except InputError as error:
            refused.append(error)

    with locked(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert len(refused) == 1


def test_json_that_was_written_is_read(tmp_path: Path) -> None:
    data = {"a": [1, 2.5, None, True, "é\x1b"], "b": {"c": -1}}
    write_text(tmp_path / "f.json", json.dumps(data))
    assert read_json(tmp_path / "f.json") == data
