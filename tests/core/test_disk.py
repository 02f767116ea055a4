"""Tables of long runs in temporary files: the same results to the byte, and one line where there is no room."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from outcomes import digest

from hermes import simulate
from hermes.core import columns, disk
from hermes.core.columns import MOST_ROWS, RowLog, kept
from hermes.errors import InputError
from hermes.results.files import export
from hermes.results.files.export import write_results, write_table
from hermes.results.files.frames import TABLES, table_parts

SCENARIOS = {
    "quickstart": [],
    "pipelines/rag-disaggregated": [],
    "studies/incidents/crash": ["workload.duration=2 min"],
    "studies/datastructures/branches": [],
    "closed-loop-priority": [],
}
WIDE = st.integers(-2**62, 2**62) | st.integers(-2**31 - 1, 2**31) | st.integers(-3, 3)


def logged(rows: list[tuple[int, ...]], most: int) -> dict[str, np.ndarray]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "_ROWS", 8)
        patched.setattr(disk, "_CHUNK", 3)
        patched.setenv(MOST_ROWS, str(most))
        log = RowLog(("a", "b", "c"), frozenset("b"), (("c",), ("c",)))
        for row in rows:
            log.add(row[2], *row[:2])   # the head first
        return log.columns()


@given(st.lists(st.tuples(WIDE, WIDE, st.just(7)) | st.tuples(*3 * [st.sampled_from([0, 2**31])]), max_size=40))
def test_columns_on_disk_are_those_in_memory(rows):
    here, there = logged(rows, 10**9), logged(rows, 12)
    for name in "abc":
        assert there[name].tolist() == here[name].tolist()
        assert (there[name].dtype, there[name].strides) == (here[name].dtype, here[name].strides)


def test_arrays_on_disk_are_those_in_memory(monkeypatch):
    monkeypatch.setenv(MOST_ROWS, "5")
    given = [np.arange(10), np.zeros((4, 3), dtype=bool), np.broadcast_to(np.int64(3), 10), np.arange(30)[::3],
             np.empty(0), np.linspace(0, 1, 7)]
    assert all(one is other for one, other in zip(kept(given, 4), given, strict=True)), "few enough rows for memory"
    found = kept(given, 5)
    disk.drop_pages()
    for one, other in zip(found, given, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert (one == other).all()
    assert found[2] is given[2], "takes no memory"
    assert not found[0].flags.writeable


@pytest.mark.feature("Scenarios and commands", "Ten million requests in one run: long tables go to temporary files")
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_on_disk_gives_the_same_bytes(name, monkeypatch, tmp_path):
    found = []
    for most in ("", "0"):
        monkeypatch.setenv(MOST_ROWS, most)
        results = simulate(name, overrides=SCENARIOS[name])
        folder = write_results(results, tmp_path / f"most{most}")
        tables = [results.requests, results.stages, results.runs]
        found.append((digest(results.record), results.summary, tables,
                      {path.name: path.read_bytes() for path in sorted(folder.iterdir())}))
    (here, summary, tables, files), (there, other, others, copies) = found
    assert "hermes.core.disk" in sys.modules
    assert there == here
    assert other == summary
    assert all(one.equals(another) for one, another in zip(tables, others, strict=True))
    assert copies == files


def test_a_table_in_parts_has_the_bytes_of_the_whole(monkeypatch, tmp_path):
    results = simulate("closed-loop-priority")
    monkeypatch.setattr(export, "_ROWS", 64)
    for name in set(TABLES) - {"steps"}:
        write_table(tmp_path / "whole", results.columns(name))
        write_table(tmp_path / "parts", table_parts(name, results.record, partial(results.columns, name), 64))
        assert (tmp_path / "whole").read_bytes() == (tmp_path / "parts").read_bytes(), name
    assert len(results.requests) > 64


def hermes(tmp_path: Path, *before: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = "; ".join([*before, "from hermes.cli import main", "sys.exit(main())"])
    return subprocess.run(
        [sys.executable, "-c", f"import sys; {program}", "run", "quickstart", "-q"],
        env=os.environ | {MOST_ROWS: "100"} | environment, capture_output=True, text=True, check=False, cwd=tmp_path,
        timeout=60)


def test_no_folder_for_temporary_files(tmp_path):
    done = hermes(tmp_path, TMPDIR=str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (f"hermes: cannot keep the tables of this long run in {tmp_path}/none: No such file or "
                           "directory; give it room, or set TMPDIR to another folder\n")


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of a file's size")
def test_a_full_disk(tmp_path):
    # the first table is full while the simulation runs, or one of those that are made afterwards
    for size in (10_000, 60_000):
        limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"
        done = hermes(tmp_path, limit, TMPDIR=str(tmp_path))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines() == [
            f"hermes: cannot keep the tables of this long run in {tmp_path}: File too large; give it room, or "
            "set TMPDIR to another folder"]
    assert not list(tmp_path.iterdir())


def test_the_rows_in_memory_are_a_number(monkeypatch):
    monkeypatch.setenv(MOST_ROWS, "many")
    with pytest.raises(InputError, match=r"HERMES_ROWS_IN_MEMORY: expected a number of rows, found 'many'"):
        simulate("quickstart")
