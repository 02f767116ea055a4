"""`hermes sweep`: what it prints, and its exit codes."""

import json
import os
import shutil
from pathlib import Path

import pytest

from hermes.cli import main

DATA = Path(__file__).parent / "data"


@pytest.fixture
def call(capsys):
    def run(*arguments):
        code = main(["sweep", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_run_dry_run_and_run_again(folder, write, call):
    sweep, out = write("name: two\ngrid: {workload.requests: [3, 4]}\n"), folder / "out"
    code, printed, wrong = call(sweep, "--dry-run", "--workers", 0)
    assert (code, wrong) == (0, "")
    assert printed.splitlines()[-1] == "two: 2 points, 2 to run"
    assert not out.exists()
    code, printed, wrong = call(sweep, "-o", out, "--workers", 0)
    assert (code, wrong) == (0, "")
    assert printed.splitlines()[-1].startswith("two: 2 points, 2 run in ")
    assert printed.endswith(f" s, 0 failed; written to {out / 'results.parquet'}\n")
    assert call(sweep, "-o", out, "--workers", 0)[1].splitlines()[-1].startswith("two: 2 points, 0 run in ")
    code, printed, _ = call(sweep, "-o", out, "--workers", 0, "--dry-run", "--json")
    assert json.loads(printed) == {"name": "two", "to_run": 0, "points": [
        {"point": i, "workload.requests": 3 + i, "seed": 7, "finished": True} for i in range(2)]}
    code, printed, _ = call(sweep, "-o", out, "--workers", 0, "--json", "--set", "workload.lengths.output=3")
    assert {k: v for k, v in json.loads(printed).items() if k != "wall_s"} == {
        "name": "two", "points": 2, "failed": {}, "run": 2}


def test_failed_points_are_listed_and_the_exit_code_is_1(folder, write, call):
    shutil.copy(DATA / "figures_of_mine.py", folder)
    sweep = write("extract: figures_of_mine:only_few\ngrid: {workload.requests: [10, 11]}\n")
    code, printed, wrong = call(sweep, "-o", folder / "out", "--workers", 0)
    assert (code, wrong) == (1, "")
    assert "2 points, 2 run" in printed
    assert printed.splitlines()[-1] == "point 1 (workload.requests=11): ValueError: eleven is too many"


@pytest.mark.parametrize(("text", "said"), [
    ("grid: {workload.requests: [2, 0]}", "sweep.yaml:2:31: point 1 (workload.requests=0): workload.requests: expected"
     " a number of at least 1, found 0"),
    ("gird: {}", "sweep.yaml:2:1: gird: expected one of the keys"),
])
def test_a_mistake_is_one_line_and_nothing_was_run(folder, write, call, text, said):
    code, printed, wrong = call(write(text + "\n"), "-o", folder / "out", "--workers", 0)
    assert (code, printed) == (2, "")
    assert said in wrong
    assert wrong.count("\n") == 1
    assert not list((folder / "out").rglob("*.parquet"))


@pytest.mark.parametrize("arguments", [["nothing"], ["nothing.yaml"], ["sweeps/which-batchin"], ["quickstart"]])
def test_no_such_sweep(folder, call, arguments):
    code, printed, wrong = call(*arguments, "-o", folder / "out", "--workers", 0)
    assert (code, printed) == (2, "")
    assert wrong.count("\n") == 1
    assert ("did you mean 'sweeps/which-batching'?" in wrong) == ("which-batchin" in arguments[0])


def test_a_folder_is_needed(write, call):
    code, _, wrong = call(write(""))
    assert (code, wrong) == (2, "hermes: --output: expected a folder for the results: -o DIR, found nothing\n")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(folder, write, call):
    (folder / "closed").mkdir(mode=0o500)
    code, _, wrong = call(write(""), "-o", folder / "closed" / "out", "--workers", 0)
    assert code == 2
    assert wrong.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_warning_of_several_points_is_printed_once(tmp_path: Path, capfd: pytest.CaptureFixture[str],
                                                     workers: str) -> None:
    file = tmp_path / "cards.yaml"
    file.write_text("name: cards\nscenario: quickstart\nseeds: [1, 2]\ngrid: {workload.requests: [20, 21, 22]}\n")
    clients = "clients=[{model: llama-3.1-8b, device: l40s, parallel: {tp: 2}}]"
    assert main(["sweep", str(file), "-o", str(tmp_path / "out"), "-q", "--workers", workers, "--set", clients]) == 0
    assert capfd.readouterr().err.count("have no NVLink") == 1
