"""What a sweep writes, what it keeps, and that neither workers nor the order of things show in it."""

import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hermes
from hermes.errors import InputError
from hermes.explore import open_sweep, plan_sweep, run_sweep
from hermes.explore.sweep import executor as executor_module
from hermes.explore.sweep import jobs as jobs_module
from hermes.explore.sweep import planning as planning_module
from hermes.explore.sweep import worker_process as worker_module
from hermes.explore.sweep.columns import table_of
from hermes.explore.sweep.figures import flatten
from hermes.explore.sweep.store import Folder

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

GRID = """\
cases:
  - {label: chunked}
  - {label: static, set: {clients.0.scheduler: {kind: static, max_num_seqs: 4}}}
grid: {workload.arrivals.rate: [2, 8]}
seeds: 2
columns: {workload.arrivals.rate: rate}
"""


def run_again(counter=None):
    """A progress function that counts the points that are run."""
    seen = []

    def update(what, done, total):
        if what == "run":
            seen.append(done)

    return seen, update


def contents(folder):
    """What the database of a sweep says, but for the order in which points ended and the time they took."""
    with closing(sqlite3.connect(folder / "sweep.sqlite")) as database:
        return {query: sorted(database.execute(query).fetchall()) for query in (
            "SELECT * FROM about WHERE key = 'manifest'", "SELECT * FROM scenarios", "SELECT * FROM outcomes")}


def change(folder, statement, *values):
    with closing(sqlite3.connect(folder / "sweep.sqlite")) as database, database:
        database.execute(statement, values)


def results_bytes(folder):
    return (folder / "results.parquet").read_bytes()


def test_a_row_is_what_the_scenario_answers(folder, write):
    out = run_sweep(write(GRID), folder / "out", workers=0)
    frame = out.frame()
    assert list(frame.columns[:8]) == ["point", "case", "rate", "seed", "hash", "status", "reason", "requests.total"]
    assert frame.rate.tolist() == [2, 2, 8, 8] * 2
    assert frame.seed.tolist() == [7, 8] * 4
    assert frame.status.unique().tolist() == ["ok"]
    pd.testing.assert_frame_equal(frame, pd.read_parquet(folder / "out" / "results.parquet"))
    for number in (1, 6):
        results = hermes.simulate(out.point(number))
        summary = {k: v for k, v in results.summary.items() if k not in ("clients", "requests")}
        row = out.arrow().to_pylist()[number]
        for name, value in flatten(summary):
            assert row[name] == value, name
        assert row["devices"] == 2 * 8   # tensor parallelism 8
        assert row["kv.capacity_tokens"] == 2 * 1000 * 16
        assert row["kv.capacity_per_client_tokens"] == 1000 * 16
        assert row["kv.peak_share"] == max(c["kv_peak_share"] for c in results.summary["clients"].values())
        assert 0 < row["kv.peak_share"] < 1
    assert out.complete
    assert len(out) == 8
    assert len(out.journal()) == 8
    with pytest.raises(InputError, match="from 0 to 7, found 8"):
        out.point(8)


def test_one_seed_is_one_workload_for_every_configuration(folder, write):
    out = run_sweep(write(GRID + "keep: requests\n"), folder / "out", workers=0)
    given_columns = ["arrival_s", "prompt_tokens", "output_tokens"]
    by = {}
    for number, point in enumerate(out.manifest["points"]):
        by.setdefault((point["settings"]["rate"], point["seed"]), []).append(out.requests(number)[given_columns])
    assert len(by) == 4
    for (one, other) in by.values():
        pd.testing.assert_frame_equal(one, other)
    assert not by[2, 7][0].equals(by[2, 8][0])


@pytest.mark.long
def test_bytes_do_not_depend_on_workers(folder, write):
    for workers in (0, 2):
        run_sweep(write(GRID + "keep: requests\n"), folder / f"out{workers}", workers=workers)
    first = {p.relative_to(folder / "out0"): p.read_bytes() for p in (folder / "out0").rglob("*.parquet")}
    assert len(first) == 8 + 1
    out = folder / "out2"
    assert {p.relative_to(out): p.read_bytes() for p in out.rglob("*.parquet")} == first
    assert contents(out) == contents(folder / "out0")


def test_only_what_changed_is_run_again(folder, write):
    grid = GRID.replace("seeds: 2\n", "")
    out, sweep = folder / "out", write(grid)
    run_sweep(sweep, out, workers=0)
    before = results_bytes(out)
    seen, update = run_again()
    run_sweep(sweep, out, workers=0, progress=update)
    assert seen == [4]
    assert results_bytes(out) == before
    seen, update = run_again()
    write(grid.replace("[2, 8]", "[8, 2, 16]"))
    run_sweep(sweep, out, workers=0, progress=update)
    assert seen == [4, 5, 6]
    frame = open_sweep(out).frame()
    assert frame.rate.tolist() == [8, 2, 16] * 2
    run_sweep(sweep, folder / "fresh", workers=0)
    assert results_bytes(folder / "fresh") == results_bytes(out)
    write("name: other\ndescription: other words\n" + grid)   # changes nothing that is simulated
    run_sweep(sweep, out, workers=0)
    assert results_bytes(out) == before
    (folder / "small.yaml").write_text((folder / "small.yaml").read_text().replace("output: 20", "output: 21"))
    assert len(plan_sweep(sweep, out, workers=0).waiting) == 4


def test_a_changed_data_file_is_noticed(folder, write):
    profile = folder / "mine.yaml"
    shutil.copy(ROOT / "hw_profiles" / "splitwise-2023-llama-2-70b-h100-tp8.yaml", profile)
    sweep = write("grid: {clients.0.hardware.profile: [./mine.yaml, splitwise-2023-llama-2-70b-h100-tp8]}\n")
    out = folder / "out"
    run_sweep(sweep, out, workers=0)
    assert not plan_sweep(sweep, out, workers=0).waiting
    profile.write_text(profile.read_text() + "# a comment\n")
    assert [p.point.index for p in plan_sweep(sweep, out, workers=0).waiting] == [0]


def test_an_earlier_check_is_used_again(folder, write, monkeypatch):
    sweep, out = write("seeds: 2\n"), folder / "out"
    run_sweep(sweep, out, workers=0)
    monkeypatch.setattr(planning_module, "Job", None)   # nothing may be given to anybody
    assert len(plan_sweep(sweep, out, workers=0).finished) == 2


def test_equal_points_are_run_once(folder, write):
    seen, update = run_again()
    out = run_sweep(write("cases: [{label: a}, {label: b}, {label: c, set: {workload.requests: 4}}]\n"),
                    folder / "out", workers=0, progress=update)
    assert seen == [0, 1, 2]
    frame = out.frame()
    assert frame.case.tolist() == ["a", "b", "c"]
    assert frame.hash[0] == frame.hash[1] != frame.hash[2]


@pytest.mark.long
def test_more_figures(folder, write, monkeypatch):
    shutil.copy(HERE / "data" / "figures_of_mine.py", folder)   # beside the sweep: found there
    sweep = write("extract: figures_of_mine:longest\nkeep: all\n")
    out = run_sweep(sweep, folder / "out", workers=1)
    row = out.arrow().to_pylist()[0]
    assert row["longest_s"] == hermes.simulate(out.point(0)).requests.e2e_s.max() == row["latency.e2e_s.max"]
    assert row["nothing"] is None
    assert row["words"] == "two words"
    assert out.results(0).summary["makespan_s"] == row["makespan_s"]
    assert not plan_sweep(sweep, folder / "out").waiting
    source = folder / "figures_of_mine.py"
    source.write_text(source.read_text() + "# changed\n")
    assert len(plan_sweep(sweep, folder / "out").waiting) == 1
    for name, said in (("nested", "extract.a: expected numbers, text"), ("taken", "no other column has"),
                       ("no_dict", "expected a dict of figures, found int")):
        assert said in run_sweep(write(f"extract: figures_of_mine:{name}\n"), folder / name, workers=0).failed()[0]


def test_what_is_kept(folder, write):
    plain = run_sweep(write(""), folder / "out", workers=0)
    with pytest.raises(InputError, match="keep: requests"):
        plain.requests(0)
    seen, update = run_again()
    kept = run_sweep(write("keep: requests\n"), folder / "out", workers=0, progress=update)
    assert seen == [0, 1]   # its figures are there, its requests are not
    served = hermes.simulate(kept.point(0)).requests
    numbers = served.select_dtypes("number").columns
    assert kept.requests(0).columns.tolist() == served.columns.tolist()
    pd.testing.assert_frame_equal(kept.requests(0)[numbers], served[numbers])
    with pytest.raises(InputError, match="keep: all"):
        kept.results(0)


@pytest.mark.long
def test_a_point_that_fails_leaves_the_others_alone(folder, write):
    shutil.copy(HERE / "data" / "figures_of_mine.py", folder)
    sweep = write("extract: figures_of_mine:only_few\ngrid: {workload.requests: [10, 11, 12, 13]}\n")
    out = run_sweep(sweep, folder / "out", workers=1)
    frame = out.frame()
    assert frame.status.tolist() == ["ok", "failed", "failed", "ok"]
    assert out.failed() == {1: "ValueError: eleven is too many",
                            2: "the process was ended by SIGKILL (out of memory?)"}
    assert frame["count"].fillna(-1).tolist() == [10, -1, -1, 13]
    assert "only_few" in out.journal().traceback.dropna().iloc[0]
    assert [p.point.index for p in plan_sweep(sweep, folder / "out").waiting] == [1, 2]   # tried again
    before = results_bytes(folder / "out")
    run_sweep(sweep, folder / "out", workers=1)
    assert results_bytes(folder / "out") == before


def test_two_processes_cannot_run_one_sweep(folder, write):
    sweep, out = write(""), folder / "out"
    run_sweep(sweep, out, workers=0)
    held = subprocess.Popen([sys.executable, "-c", textwrap.dedent(f"""
        from pathlib import Path
        from hermes.explore.sweep.store import Folder
        with Folder(Path({str(out)!r})).locked():
            print("held", flush=True)
            input()
    """)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        assert held.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match=f"that no other process is running \\(process {held.pid} is\\)"):
            run_sweep(sweep, out, workers=0)
        assert len(open_sweep(out).frame()) == 1   # reading needs no lock
    finally:
        held.kill()
        held.wait()
    run_sweep(sweep, out, workers=0)


@pytest.mark.parametrize("name", ["file", "full"])
def test_a_folder_of_something_else_is_left_alone(folder, write, name):
    (folder / "file").write_text("text")
    (folder / "full").mkdir()
    (folder / "full" / "thesis.doc").write_text("text")
    with pytest.raises(InputError, match="folder"):
        run_sweep(write(""), folder / name, workers=0)
    assert (folder / "full" / "thesis.doc").exists()
    with pytest.raises(InputError):
        open_sweep(folder / name)


def test_a_dict_and_a_manifest_that_is_none(folder, monkeypatch):
    monkeypatch.chdir(folder)
    out = run_sweep({"scenario": "small.yaml", "grid": {"workload.requests": [3, 4]}, "seeds": [2**100]}, "out",
                    workers=0)
    assert out.frame()["requests.total"].tolist() == [3, 4]
    assert out.frame().seed.tolist() == [str(2**100)] * 2
    assert out.point(0).seed == 2**100
    change(folder / "out", "PRAGMA user_version = 7")
    with pytest.raises(InputError, match="expected a sweep of format 2, found format 7"):
        open_sweep("out")


@given(st.lists(st.none() | st.booleans() | st.integers(-2**70, 2**70) | st.floats(allow_nan=False) | st.text("ab")))
def test_a_column_has_one_type_whatever_the_order(values):
    one, other = table_of([{"x": v} for v in values], "x"), table_of([{"x": v} for v in reversed(values)], "x")
    assert one["x"].type == other["x"].type or not values
    got = one["x"].to_pylist()
    assert [v is None for v in got] == [v is None for v in values]
    assert other["x"].to_pylist() == got[::-1]


def test_a_finished_part_is_readable_by_anything(folder, write):
    run_sweep(write("grid: {workload.requests: [2, 3]}\n"), folder / "out", workers=0)
    with closing(sqlite3.connect(folder / "out" / "sweep.sqlite")) as database:
        rows = database.execute("SELECT hash, status, figures ->> '$.\"requests.total\"' FROM outcomes").fetchall()
    assert {row[1:] for row in rows} == {("ok", 2), ("ok", 3)}
    assert all(row[0] for row in rows)


@pytest.mark.drawn
@pytest.mark.parametrize("damage", [
    lambda out: (out / "results.parquet").write_bytes((out / "results.parquet").read_bytes()[:-40]),
    lambda out: (out / "results.parquet").write_bytes(b""), lambda out: (out / "results.parquet").unlink(),
])
def test_a_damaged_table_is_written_again(folder, write, damage):
    sweep, out = write(GRID), folder / "out"
    run_sweep(sweep, out, workers=0)
    before = results_bytes(out)
    damage(out)
    seen, update = run_again()
    run_sweep(sweep, out, workers=0, progress=update)
    assert seen == [8], "nothing is run again"
    assert results_bytes(out) == before


@pytest.mark.parametrize(("keep", "name"), [("requests", "requests.parquet"), ("all", "summary.json")])
def test_what_was_kept_has_to_be_whole(folder, write, keep, name):
    sweep, out = write(f"grid: {{workload.requests: [10, 11]}}\nkeep: {keep}\n"), folder / "out"
    run_sweep(sweep, out, workers=0)
    whole = {path: path.read_bytes() for path in sorted(out.glob(f"kept/*/{name}"))}
    for path, size in zip(whole, (0, 100), strict=True):
        path.write_bytes(whole[path][:size])
    assert len(plan_sweep(sweep, out, workers=0).waiting) == 2
    run_sweep(sweep, out, workers=0)
    assert {path: path.read_bytes() for path in whole} == whole


@pytest.mark.parametrize("odd", ["[1, 2]", "null", "{", "7", '{"a": ["b"]}', ""])
def test_odd_notes_of_checks_are_no_traceback(folder, write, odd):
    sweep, out = write(""), folder / "out"
    run_sweep(sweep, out, workers=0)
    change(out, "UPDATE checks SET found = ?", odd)
    (out / "results.parquet").unlink()
    assert run_sweep(sweep, out, workers=0).complete


def test_a_database_that_is_none_is_refused(folder, write):
    sweep, out = write(""), folder / "out"
    run_sweep(sweep, out, workers=0)
    whole = (out / "sweep.sqlite").read_bytes()
    for broken in (b"text" * 5000, whole[:5000], b"\0" * len(whole), whole[:4096] + b"x" * (len(whole) - 4096), b""):
        (out / "sweep.sqlite").write_bytes(broken)
        with pytest.raises(InputError, match="a sweep"):
            open_sweep(out).frame()


def test_checks_are_saved_as_they_go(folder, write, monkeypatch):
    sweep, out = write("grid: {workload.requests: [10, 11, 12, 13]}\n"), folder / "out"
    monkeypatch.setattr(planning_module, "SAVE_EVERY_S", 0.0)
    perform, done = jobs_module.perform, []

    def interrupted(job, built):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(job)
        return perform(job, built)

    monkeypatch.setattr(executor_module, "perform", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, out, workers=0)
    assert len(Folder(out).checks()) == 2
    monkeypatch.setattr(executor_module, "perform", lambda job, built: done.append(job) or perform(job, built))
    run_sweep(sweep, out, workers=0)
    assert [job.task for job in done] == ["check"] * 4 + ["run"] * 4


@pytest.mark.long
def test_a_worker_killed_while_it_starts_ends_no_sweep(folder, write, monkeypatch):
    real, started = subprocess.Popen, []

    def killed_at_first(*arguments, **options):
        process = real(*arguments, **options)
        started.append(process)
        if len(started) in (1, 2, 4, 5, 6):
            process.kill()
        return process

    monkeypatch.setattr(worker_module.subprocess, "Popen", killed_at_first)
    out = run_sweep(write("grid: {workload.requests: [10, 11]}\n"), folder / "out", workers=1)
    assert out.frame().status.tolist() == ["ok", "ok"], "the third start succeeded"
    started[:] = started[:3]
    again = run_sweep(write("grid: {workload.requests: [12]}\n"), folder / "again", workers=1)
    assert again.failed() == {0: "the process was ended by SIGKILL (out of memory?), 3 times while it started"}
    assert run_sweep(write("grid: {workload.requests: [12]}\n"), folder / "again", workers=1).failed() == {}


def test_columns_of_results_have_units(folder, write):
    out = folder / "out"
    run_sweep(write("grid: {workload.requests: [2, 3]}\nkeep: requests\n"), out, workers=0)
    units = {field.name: (field.metadata or {}).get(b"unit") for field in pq.read_schema(out / "results.parquet")}
    assert [units[name] for name in ("latency.ttft_s.p99", "requests.total", "makespan_s", "status")] == [
        b"s", b"1", b"s", None]
    kept = pq.read_schema(next(out.glob("kept/*/requests.parquet")))
    assert kept.field("prompt_tokens").metadata == {b"unit": b"tokens"}


def test_warnings_of_workers_are_single_lines(folder, write, capfd):
    (folder / "warned.py").write_text(
        "import warnings\nimport numpy as np\n\n\n"
        "def extract(results):\n    np.log(np.zeros(1))\n    warnings.warn('two\\nlines')\n    return {'a': 1}\n")
    run_sweep(write("extract: warned:extract\n"), folder / "out", workers=1)
    said = capfd.readouterr().err.splitlines()
    assert said
    assert all(line.startswith("hermes: warning: ") for line in said)
