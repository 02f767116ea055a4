"""`hermes optimize`: fronts, constraints, repeated and interrupted searches."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hermes.api import simulate
from hermes.cli import app, main
from hermes.errors import HermesError, InputError
from hermes.explore import open_sweep
from hermes.explore.executors import Job, Outcome, make_executor, perform
from hermes.explore.optimize import Tried, fronts, optimize
from hermes.explore.optimize.files import plain
from hermes.explore.optimize.space import load_space
from hermes.explore.sweep.executor import InProcess, of_workers

SCENARIO = {
    "name": "small", "slo": {"ttft": "1 s"},
    "workload": {"requests": 60, "arrivals": {"kind": "poisson", "rate": 30},
                 "lengths": {"kind": "fixed", "prompt": 700, "output": 60}},
    "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm", "scheduler": {"kind": "chunked"}}],
}


def space(**more: Any) -> dict[str, Any]:
    return {
        "name": "small", "scenario": SCENARIO,
        "space": {"clients.0.count": {"min": 1, "max": 4, "integer": True},
                  "clients.0.scheduler.max_num_seqs": {"choices": [4, 16, 64]},
                  "clients.0.scheduler.kind": {"choices": ["chunked"]}},
        "objectives": {"latency.ttft_s.p99": "minimize", "cost.dollars_per_hour": "minimize"}, **more}


def search(data: dict[str, Any], folder: Path, workers: int = 0) -> Any:
    with closing(make_executor("local", workers)) as executor:
        return optimize(load_space(data), folder, executor)


@pytest.mark.feature("Results, sweeps, studies", (
    "`hermes optimize`: several objectives, constraints, short simulations first, resumable"))
@pytest.mark.long
def test_the_front_is_that_of_all_settings(tmp_path: Path) -> None:
    found = search(space(), tmp_path)
    assert found.whole
    assert len(found.tried) == 12
    points = {}
    for count, seqs in itertools.product(range(1, 5), (4, 16, 64)):
        summary = simulate(SCENARIO, overrides={"clients.0.count": count, "clients.0.scheduler": {
            "kind": "chunked", "max_num_seqs": seqs}}).summary
        points[count, seqs] = (summary["latency"]["ttft_s"]["p99"], summary["cost"]["dollars_per_hour"])
    best = {key for key, (a, b) in points.items() if not any(
        x <= a and y <= b and (x, y) != (a, b) for x, y in points.values())}
    assert {tuple(one.settings.values())[:2] for one in found.front} == best
    assert 1 < len(best) < 12


@pytest.mark.long
def test_constraints_keep_settings_off_the_front(tmp_path: Path) -> None:
    free = search(space(), tmp_path / "free")
    limit = float(np.median([one.values[0] for one in free.tried]))
    held = search(space(constraints={"latency.ttft_s.p99": {"at_most": limit}}), tmp_path / "held")
    assert all(one.values[0] <= limit for one in held.front)
    assert any(one.values[0] > limit for one in held.tried)
    assert sum(one.feasible for one in held.tried) < len(held.tried)


def large(**more: Any) -> dict[str, Any]:
    return space(**{"trials": 18, "batch": 6, "space": {
        "clients.0.count": {"min": 1, "max": 6, "integer": True},
        "clients.0.scheduler.max_num_seqs": {"min": 2, "max": 256, "integer": True, "log": True},
        "workload.arrivals.rate": {"min": 20, "max": 40, "unit": "/s"}}, **more})


@pytest.mark.long
def test_the_search_does_not_depend_on_the_workers(tmp_path: Path) -> None:
    found = [search(large(), tmp_path / str(workers), workers) for workers in (0, 2)]
    assert not found[0].whole
    assert len(found[0].tried) == 18
    assert found[0].tried == found[1].tried
    assert len({json.dumps(dict(one.settings)) for one in found[0].tried}) == 18, "nothing is tried twice"
    sweeps = [(tmp_path / str(workers) / "simulations" / "results.parquet").read_bytes() for workers in (0, 2)]
    assert sweeps[0] == sweeps[1]


@pytest.mark.long
def test_another_seed_tries_others(tmp_path: Path) -> None:
    one, other = (search(large(seed=seed), tmp_path / str(seed)) for seed in (0, 1))
    assert {str(t.settings) for t in one.tried} != {str(t.settings) for t in other.tried}


@pytest.mark.long
def test_short_simulations_first(tmp_path: Path) -> None:
    found = search(large(fidelity={"set": {"workload.requests": 15}, "keep": 0.3}), tmp_path)
    long = [one for one in found.tried if one.long]
    assert 1 <= len(long) <= 8
    assert {id(one) for one in found.front} <= {id(one) for one in long}
    lengths = open_sweep(tmp_path / "simulations").frame()["requests.total"].value_counts().to_dict()
    assert lengths.pop(15) == 18
    assert lengths.pop(60) == len(long)
    assert all(requests > 60 for requests in lengths)   # made longer until they settle
    assert all(one.row["settling.settled"] for one in long)


def test_what_cannot_be_simulated_is_counted(tmp_path: Path) -> None:
    data = space()
    data["space"]["clients.0.scheduler.max_num_seqs"] = {"choices": [16, 0]}
    found = search(data, tmp_path)
    refused = [one for one in found.tried if one.refused]
    assert len(refused) == 4
    assert "max_num_seqs" in refused[0].refused
    data["space"]["clients.0.scheduler.max_num_seqs"] = {"choices": [0]}
    with pytest.raises(InputError, match=r"no settings can be simulated.*max_num_seqs"):
        search(data, tmp_path / "none")


@pytest.mark.thorough
def test_a_killed_search_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(large()))
    call = [sys.executable, "-m", "hermes", "optimize", str(path), "--workers", "0", "-o"]
    subprocess.run([*call, str(tmp_path / "whole")], check=True, capture_output=True, timeout=120)
    driver = subprocess.Popen([*call, str(tmp_path / "killed")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    database = tmp_path / "killed" / "simulations" / "sweep.sqlite"
    until = time.monotonic() + 60
    while not database.is_file() and time.monotonic() < until and driver.poll() is None:
        time.sleep(0.01)
    time.sleep(0.5)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    assert not (tmp_path / "killed" / "front.json").exists()
    subprocess.run([*call, str(tmp_path / "killed")], check=True, capture_output=True, timeout=120)
    for name in ("front.json", "simulations/results.parquet", "best-0.yaml"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.long
def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(space()))
    done = CliRunner().invoke(app(), ["optimize", str(path), "-o", str(tmp_path / "out"), "--workers", "0"])
    assert done.exit_code == 0, done.output
    assert "12 settings, all that there are" in " ".join(done.output.split())
    front = json.loads((tmp_path / "out" / "front.json").read_text())["front"]
    best = simulate(tmp_path / "out" / "best-0.yaml").summary
    assert best["latency"]["ttft_s"]["p99"] == front[0]["objectives"]["latency.ttft_s.p99"]
    assert (tmp_path / "out" / "front.png").stat().st_size > 5000
    strict = space(constraints={"latency.ttft_s.p99": {"at_most": 1e-6}})
    path.write_text(yaml.safe_dump(strict))
    again = CliRunner().invoke(app(), ["optimize", str(path), "-o", str(tmp_path / "o"), "--workers", "0"])
    assert again.exit_code == 1


KILLER = """
import os, signal
from pathlib import Path
from hermes.explore.sweep import jobs

def killed(job, built, run=jobs._run):
    mark = Path({mark!r})
    if '"count": 2' in job.document and not ({once} and mark.exists()):
        mark.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return run(job, built)

jobs._run = killed
"""


@pytest.mark.long
@pytest.mark.parametrize("once", [True, False], ids=["killed once", "killed always"])
def test_a_killed_worker_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, once: bool) -> None:
    data = space(space={"clients.0.count": {"min": 1, "max": 3, "integer": True}})
    (tmp_path / "a_killer.py").write_text(KILLER.format(mark=str(tmp_path / "mark"), once=once))
    monkeypatch.syspath_prepend(str(tmp_path))   # workers search what this process does
    monkeypatch.setattr("hermes.explore.executors.make_executor",
                        lambda name, workers, modules, address: of_workers(2, ["a_killer"]))
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    done = CliRunner().invoke(app(), ["optimize", str(path), "-o", str(tmp_path / "out"), "--workers", "2"])
    said = " ".join(done.output.split())
    written = json.loads((tmp_path / "out" / "front.json").read_text())
    if once:
        assert done.exit_code == 0, said
        whole = search(data, tmp_path / "whole")
        assert written == plain(whole)
        assert ", 0 cannot be simulated, 0 failed" in said
        return
    assert done.exit_code == 1
    assert "front, incomplete" in said
    assert "0 cannot be simulated, 1 failed" in said
    assert "failed clients.0.count=2: the process was ended by SIGKILL (out of memory?)" in said
    assert (written["failed"], written["refused"]) == (1, 0)
    assert [one["failed"] for one in written["all"] if "failed" in one] == [
        "the process was ended by SIGKILL (out of memory?)"]


def test_a_search_without_a_result_is_an_error(tmp_path: Path) -> None:
    class Dying(InProcess):
        def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
            return (Outcome(job.key, "failed", "the process died") if job.task == "run" else perform(job)
                    for job in jobs)

    with pytest.raises(HermesError, match="no simulation has a result; the first failed: the process died"):
        optimize(load_space(space()), tmp_path, Dying())


@pytest.mark.parametrize(("change", "says"), [
    ({"objectives": {"latency.ttft.p99": "minimize"}}, "latency.ttft_s.p99"),
    ({"objectives": {"latency.ttft_s.p99": "smallest"}}, "objectives.latency"),
    ({"space": {"clients.0.count": {"min": 3}}}, "give min and max"),
    ({"space": {"clients.0.count": {"choices": [1], "min": 1}}}, "give choices, or min and max"),
    ({"space": {"clients.0.count": {"min": 0, "max": 3, "log": True}}}, "above 0"),
    ({"constraints": {"devices": {}}}, "at_most or at_least"),
    ({"scenario": "quickstar"}, "scenario"),
])
def test_mistakes_name_their_place(tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any],
                                   says: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump({**space(), **change}))
    assert main(["optimize", str(path), "-o", str(tmp_path / "o"), "--workers", "0"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_fronts(points: list[tuple[int, int]]) -> None:
    tried = [Tried({"i": i}, (float(a), float(b))) for i, (a, b) in enumerate(points)]
    found = fronts(tried, (1, -1))
    assert sorted(one.settings["i"] for front in found for one in front) == list(range(len(points)))
    for number, front in enumerate(found):
        for one in front:
            beaten = [other for other in tried if other.values != one.values and other.values[0] <= one.values[0]
                      and other.values[1] >= one.values[1]]
            inside = [other for other in beaten if any(other is each for each in front)]
            assert not inside
            assert number == 0 or beaten


def test_settings_that_did_not_settle_are_not_within_constraints(tmp_path: Path) -> None:
    """Constraints need a verdict: a queue that grows has none, whatever the latencies of a short run say."""
    row = {"status": "ok", "latency.ttft_s.p99": 0.1, "cost.total_dollars": 1.0, "settling.settled": False,
           "settling.needed_s": 100.0, "settling.why": "too short to settle", "headline.stable": None}
    tried = Tried({}, (1.0,), (-1.0,), unsettled="too short to settle", row=row)
    assert not tried.feasible
    assert Tried({}, (1.0,), (-1.0,), row=row).feasible
