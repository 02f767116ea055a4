"""Commands on a stand-in for Windows (`data/windows/sitecustomize.py`), each in a process of its own.

Checked here: what needs the modules and functions that Windows does not have. Nothing of this has run on Windows.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from hermes.calibration.collect import link, terms
from hermes.calibration.collect.session import DRIVER_PID, CollectorError
from hermes.calibration.collect.start_up import StartUpCollector
from hermes.calibration.session import interpreter_environment
from hermes.errors import InputError
from hermes.explore import open_sweep, run_sweep
from hermes.explore.sweep import worker_process as worker_module
from hermes.explore.sweep.store import Folder

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = ROOT / "tests" / "data" / "windows"
SWEEP = "name: sizes\nscenario: small.yaml\ngrid: {workload.requests: [5, 6, 7, 8]}\nkeep: requests\n"
ONE_CLIENT = """\
workload: {requests: 50, arrivals: {kind: poisson, rate: 2000 /s}, lengths: {kind: fixed, prompt: 200, output: 20}}
clients: [{model: llama-3.1-8b, device: h100-sxm}]
slo: {ttft: 10 ms}
"""
RUN = ("import json, sys; from hermes.cli import main\n"
       "print([main(words) for words in json.loads(sys.argv[1])], file=sys.stderr)")


def on_windows(
    place: Path, *command: str, path: Sequence[Path] = (STAND_IN, ROOT), **variables: str,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))} | variables,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL))   # a job in the background ignores it


def codes(place: Path, commands: Sequence[str], path: Sequence[Path] = (STAND_IN, ROOT)) -> list[int]:
    """The exit code of each command, all run in one process, of the stand-in or without it."""
    words = [command.split() for command in commands]
    _, said = on_windows(place, "-c", RUN, json.dumps(words), path=path).communicate(timeout=120)
    return list(json.loads(said.splitlines()[-1]))


def files(place: Path) -> dict[str, bytes]:
    """Content of all files, but of databases, which hold wall-clock times."""
    return {path.relative_to(place).as_posix(): path.read_bytes() if path.suffix != ".sqlite" else b""
            for path in sorted(place.rglob("*")) if path.is_file()}


@pytest.fixture
def places(tmp_path: Path, small_file: Path) -> list[Path]:
    """Two folders with the same files."""
    for place in (tmp_path / "unix", tmp_path / "windows"):
        place.mkdir()
        (place / "small.yaml").write_text(small_file.read_text())
        (place / "sweep.yaml").write_text(SWEEP)
        (place / "one.yaml").write_text(ONE_CLIENT)
    return [tmp_path / "unix", tmp_path / "windows"]


def test_the_stand_in_stands_in(tmp_path: Path) -> None:
    code = ("import os, subprocess, sys\n"
            "open('new', 'w').write('a\\n'); held = open('new'); found = []\n"
            "for wrong in (lambda: __import__('fcntl'), lambda: os.replace('new', 'old'), lambda: os.open('.', 0),\n"
            "              lambda: open('a:b', 'w'), lambda: os.symlink('new', 'link'), os.fork,\n"
            "              lambda: subprocess.run('ls', pass_fds=[5])):\n"
            "    try: wrong()\n"
            "    except (ImportError, OSError, AttributeError, AssertionError) as error: found.append(str(error))\n"
            "print(len(found), open('new', 'rb').read())")
    said, wrong = on_windows(tmp_path, "-c", code.replace("os.fork,", "lambda: os.fork(),")).communicate(timeout=60)
    assert (said, wrong) == ("7 b'a\\r\\n'\n", "")


@pytest.mark.long
def test_a_run_and_a_sweep_have_the_same_bytes(places: list[Path]) -> None:
    """The sweep with two workers: forked from one process here, each loaded anew there."""
    commands = ["validate small.yaml", "run small.yaml -o run -q", "compare run run --json",
                "run small.yaml -o run -q", "run small.yaml -o run -q --overwrite",
                "sweep sweep.yaml -o sweep --workers 2 -q", "sweep sweep.yaml -o sweep --workers 0 -q --set seed=8",
                "init first.yaml --model llama-3.1-8b --rate 0.5 --count 1"]
    expected = [0, 0, 0, 2, 0, 0, 0, 0]
    assert codes(places[0], commands, path=[ROOT]) == expected   # a process of its own, too: hashes cover loaded code
    assert codes(places[1], commands) == expected
    here, there = map(files, places)
    assert here == there
    assert "sweep/results.parquet" in here


@pytest.mark.long
def test_plots_reports_and_sizes(places: list[Path]) -> None:
    sizing = "size one.yaml -q --workers 2 --tp 1 --pp 1 --layout mixed --max-devices 1"
    assert codes(places[1], [
        "run small.yaml -o run -q", "plot run -o run.png", "report run -o run.html", sizing, f"{sizing} -o sized",
        "calibrate plan link -o plan.yaml", "calibrate run plan.yaml --dry-run",
    ]) == [0, 0, 0, 1, 1, 0, 0]
    assert {path.name for path in places[1].iterdir()} == {
        "small.yaml", "sweep.yaml", "one.yaml", "run", "run.png", "run.html", "sized", "plan.yaml"}


def finished(out: Path) -> int:
    try:
        return len(Folder(out).reasons())
    except InputError:
        return 0


@contextmanager
def long_sweep(place: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A sweep of the stand-in in the middle of a point, and the number of its worker's process."""
    (place / "sweep.yaml").write_text(SWEEP.replace("[5, 6, 7, 8]", "[5, 200000]"))
    with on_windows(place, "-m", "hermes", "sweep", "sweep.yaml", "-o", "sweep", "-q", "--workers", "1") as process:
        try:
            while not finished(place / "sweep"):
                assert process.poll() is None
                time.sleep(0.01)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            assert len(children) == 1
            yield process, int(children[0])
        finally:
            process.kill()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL])
def test_a_worker_ends_with_its_sweep(number: signal.Signals, places: list[Path]) -> None:
    with long_sweep(places[1]) as (process, worker):
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        if number == signal.SIGINT:
            assert process.returncode == 130
            assert said.splitlines()[-1] == "hermes: interrupted"
            assert all("the same command continues" in line for line in said.splitlines()[:-1])
        until = time.monotonic() + 20
        while Path(f"/proc/{worker}").exists() and time.monotonic() < until:
            time.sleep(0.01)
        assert not Path(f"/proc/{worker}").exists()
    assert open_sweep(places[1] / "sweep").frame()["requests.total"].tolist() == [5]


def test_a_worker_that_is_killed_fails_its_point_alone(
    places: list[Path], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "FORKS", False)
    sweep = places[0] / "sweep.yaml"
    sweep.write_text(SWEEP + "extract: killed:once\n")
    (places[0] / "killed.py").write_text(
        "import os, sys\n\ndef once(results):\n    print('no outcome')\n    assert sys.stdin.read() == ''\n"
        "    if len(results.requests) == 6:\n        os.kill(os.getpid(), 9)\n    return {'worker': os.getpid()}\n")
    out = run_sweep(sweep, places[0] / "out", workers=1)
    assert out.failed() == {1: "the process was ended by SIGKILL (out of memory?)"}
    workers = out.frame()["worker"].dropna().tolist()
    assert workers[0] != workers[1] == workers[2], "another process goes on"


def test_measurements_that_windows_does_not_allow_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fork", "posix_fadvise"):
        monkeypatch.delattr(os, name)
    for opened in (lambda: link.Disk(".", 1), lambda: link.Memory(1), lambda: StartUpCollector({}),
                   lambda: terms.open_collector({"backend": "numpy", "threads": 1})):
        with pytest.raises(CollectorError, match=r"not measured on Windows|are measured on Linux"):
            opened()


def test_a_collector_finds_a_copy_where_links_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError("a required privilege is not held by the client")

    monkeypatch.setattr(Path, "symlink_to", refused)
    with interpreter_environment() as environment:
        assert (Path(environment["PYTHONPATH"]) / "hermes" / "locks.py").is_file()


def test_a_collector_measures_where_there_is_no_fork(tmp_path: Path) -> None:
    """Its parent is not its driver there, and what needs CPU time is refused."""
    plan = {"format": "hermes-plan/1", "options": {}, "points": [{"name": "a"}]}
    for clock, code, said in (("wall", 0, ""), ("cpu", 2, "clock: cpu: not measured on Windows; measure on Linux or "
                                                          "macOS\n")):
        (tmp_path / "plan.json").write_text(json.dumps(plan | {"clock": clock}))
        process = on_windows(tmp_path, "-m", "tests.calibration.fake_collector", "plan.json", f"{clock}.jsonl",
                             **{DRIVER_PID: str(os.getpid())})
        assert process.communicate(timeout=60) == ("", said)
        assert process.returncode == code
    assert (tmp_path / "wall.jsonl").read_text().count('"kind":"point"') == 1
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", "wall.jsonl", "wall.jsonl.lock"}
