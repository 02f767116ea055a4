"""kill -9 at random moments: whatever was left behind, the next run ends in the same bytes."""

import gc
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hermes.errors import InputError
from hermes.explore import open_sweep
from hermes.explore.sweep import worker_process
from hermes.explore.sweep.store import Folder

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

import kill_check  # noqa: E402


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the product: the hash of a point covers the code, which nobody edits here in the middle of a test."""
    copy = tmp_path_factory.mktemp("package")
    for name in ("hermes", "hw_profiles", "traces"):
        shutil.copytree(ROOT / name, copy / name)   # with the compiled files
    (copy / "scenarios").mkdir()
    return copy


def start(package, sweep, out, workers):
    arguments = ["sweep", str(sweep), "-o", str(out), "-q", "--workers", str(workers)]
    return kill_check.start(arguments, sweep.parent, package)


def run(package, sweep, out, workers):
    process = start(package, sweep, out, workers)
    printed, wrong = process.communicate(timeout=600)
    assert process.returncode == 0, wrong
    return printed


def parts(out):
    try:
        return len(Folder(out).reasons())
    except InputError:
        return 0


def kill_after(process, out, more, delay_s):
    """SIGKILL when `more` further parts are there and some time has passed; False if the sweep was done before.

    One more part ends the time: a fast machine would finish the sweep in it.
    """
    there = parts(out)
    while parts(out) < there + more and process.poll() is None:
        time.sleep(0.001)
    deadline = time.monotonic() + delay_s
    while parts(out) <= there + more and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    return kill_check.kill(process)


def check(package, folder, sweep, points, kills, workers):
    whole, broken = folder / "whole", folder / "broken"
    run(package, sweep, whole, workers)
    seed = random.SystemRandom().randrange(2**32)
    rng, killed = random.Random(seed), 0
    for _ in range(kills):
        process = start(package, sweep, broken, rng.randint(1, workers))
        # one in five is killed before there is anything new: while it starts, or checks its points
        more = 0 if rng.random() < 0.2 else rng.randint(1, max(1, points // (kills + 2)))
        killed += kill_after(process, broken, more, rng.uniform(0, 2.5 if more == 0 else 0.05))
    printed = run(package, sweep, broken, workers)
    assert killed == kills, f"seed {seed}: {printed}"
    assert (broken / "results.parquet").read_bytes() == (whole / "results.parquet").read_bytes(), f"seed {seed}"
    one, other = Folder(broken), Folder(whole)
    assert one.manifest() == other.manifest()
    assert one.outcomes() == other.outcomes()
    for point in one.manifest()["points"]:
        assert one.scenario_text(point["hash"]) == other.scenario_text(point["hash"])
    assert {p.name for p in broken.iterdir()} == {p.name for p in whole.iterdir()}, "nothing is left over"
    frame, journal = open_sweep(broken).frame(), open_sweep(broken).journal()
    assert frame.point.tolist() == list(range(points))
    assert set(journal.hash) <= set(frame.hash)
    assert len(journal) == points   # what was finished was not run again


@pytest.mark.parametrize("command", [
    pytest.param(name, marks=pytest.mark.long if name in ("run", "sweep", "report") else pytest.mark.thorough)
    for name in kill_check.COMMANDS])
def test_the_same_command_heals_what_a_kill_left(command, tmp_path):
    """`python scripts/kill_check.py` does it more often."""
    seed = random.SystemRandom().randrange(2**32)
    assert not kill_check.check_command(command, 2, random.Random(seed), tmp_path), f"seed {seed}"


@pytest.mark.feature("Results, sweeps, studies", "`hermes sweep`: resumable, the same bytes on any number of workers")
@pytest.mark.long
def test_killed_and_run_again(package, folder, write):
    check(package, folder, write("grid: {workload.arrivals.rate: [2, 4, 6], workload.requests: [400, 401]}\n"), 6, 1, 1)


@pytest.mark.thorough
def test_sixty_points_killed_five_times(package, folder, write):
    sweep = write("""\
cases:
  - {label: chunked}
  - {label: static, set: {clients.0.scheduler: {kind: static, max_num_seqs: 4}}}
grid: {workload.arrivals.rate: [1, 2, 4, 8, 16], workload.requests: [500, 1000]}
seeds: 3
""")
    check(package, folder, sweep, 60, 5, 2)


@pytest.mark.long
def test_interrupted_it_keeps_what_was_finished(package, folder, write):
    sweep, out = write("grid: {workload.requests: [30, 31, 32, 33, 34, 200000]}\n"), folder / "out"
    process = start(package, sweep, out, 2)
    while parts(out) < 3 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    printed, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert printed == ""
    opened = open_sweep(out)
    assert not opened.complete
    finished = opened.frame()["requests.total"].tolist()
    assert said == (f"{out} keeps {len(finished)} finished points; the same command continues\nhermes: interrupted\n")
    assert len(finished) >= 3
    assert set(finished) <= {30, 31, 32, 33, 34}
    assert not (out / "results.parquet").exists()


@pytest.mark.long
@pytest.mark.parametrize("after", ["nothing", "modules", "loaded"])
def test_a_worker_whose_sweep_was_killed_says_nothing(after):
    """It ends when it reads, and when it answers: both ends of the sweep are closed, before or after its modules."""
    with subprocess.Popen([sys.executable, "-c", worker_process._START], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        if after != "nothing":
            process.stdin.write(b'{"modules": []}\n')
            process.stdin.flush()
        if after == "loaded":
            assert process.stdout.readline() == b'{"forks": false}\n'
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b""


@pytest.mark.long
def test_what_an_ended_worker_did_not_take_is_forgotten(monkeypatch):
    """A writer that kept it would try again when it is deleted: a traceback after Ctrl-C, since Python 3.13."""
    noted = []
    monkeypatch.setattr(sys, "unraisablehook", noted.append)
    loaded = worker_process.Loaded()
    worker = loaded.start_worker()
    worker.process.kill(worker.pid)
    assert loaded.wait(worker) == -signal.SIGKILL
    for _ in range(2):
        worker_process._send(worker.jobs, {"key": "x"})
    loaded.close()
    worker_process._send(worker.process._requests, {"start": True})
    del worker, loaded
    gc.collect()
    assert not noted
