"""The compiled build leaves the same bytes behind as pure Python: `make test-compiled`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "compiled"
sys.path.append(str(HERE.parent / "core"))

from random_scenarios import FAMILIES  # noqa: E402
from test_same_bytes import some_scenarios  # noqa: E402

from hermes.errors import InputError  # noqa: E402
from hermes.scenario import builtin_scenarios, load_scenario  # noqa: E402

pytestmark = pytest.mark.compiled
Job = tuple[dict[str, Any] | str, list[str]]


def hashes(package: Path, jobs: list[Job], folder: Path) -> tuple[bool, list[str]]:
    """Return whether a build is compiled, and the hash of each record that it leaves."""
    path = folder / "jobs.json"
    path.write_text(json.dumps(jobs))
    done = subprocess.run(
        [sys.executable, str(HERE / "hash_build.py"), str(path)], capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": str(package)}, check=False,
    )
    assert not done.returncode, done.stderr
    compiled, found = json.loads(done.stdout)
    return compiled, found


def differing(jobs: list[Job], folder: Path) -> list[Job]:
    """Return the jobs whose records differ between the builds."""
    pure, ours = hashes(ROOT, jobs, folder)
    compiled, theirs = hashes(BUILD, jobs, folder)
    assert (pure, compiled) == (False, True), "build it: make compiled"
    assert len(set(ours)) > len(ours) // 2, "the hash tells records apart"
    return [job for job, a, b in zip(jobs, ours, theirs, strict=True) if a != b]


def short(name: str) -> Job:
    """A built-in scenario, made short."""
    workloads = len(load_scenario(name).workload)
    for what in ("requests=80", "duration=5 s"):
        for way in ([f"workload.{i}.{what}" for i in range(workloads)], [f"workload.{what}"]):
            try:
                load_scenario(name, overrides=way)
            except InputError:
                continue
            return name, way
    raise AssertionError(f"{name} cannot be made short")


@pytest.mark.feature("Results, sweeps, studies", (
    "`make compiled`: the kernel compiled with mypyc, the same to the byte"))
def test_random_scenarios(tmp_path: Path) -> None:
    per_family = 25
    jobs: list[Job] = [(scenario, []) for scenario in some_scenarios(per_family)]
    assert len(jobs) == per_family * len(FAMILIES)
    assert not differing(jobs, tmp_path)


def test_built_in_scenarios(tmp_path: Path) -> None:
    assert not differing([short(name) for name in builtin_scenarios()], tmp_path)


def test_single_steps(tmp_path: Path) -> None:
    jobs: list[Job] = [({**scenario, "stepping": "every_step"}, []) for scenario in some_scenarios(5)]
    assert not differing(jobs, tmp_path)


def test_files_of_a_run(tmp_path: Path) -> None:
    builds, files = [], []
    for package in (ROOT, BUILD):
        out = tmp_path / str(len(builds))
        command = [sys.executable, "-m", "hermes", "run", "quickstart", "-o", str(out), "--trace"]
        subprocess.run(command, check=True, capture_output=True, cwd=tmp_path,
                       env={**os.environ, "PYTHONPATH": str(package)})
        files.append({path.name: path.read_bytes() for path in out.iterdir() if path.name != "summary.json"})
        summary = json.loads((out / "summary.json").read_text())
        builds.append(summary["run"].pop("environment")["build"])
        files[-1]["summary.json"] = json.dumps(summary).encode()
    assert builds == ["pure", "compiled"]
    assert files[0] == files[1]


def test_the_build_is_of_these_sources() -> None:
    ours = {path.relative_to(ROOT): path.read_bytes() for path in (ROOT / "hermes").rglob("*.py")}
    theirs = {path.relative_to(BUILD): path.read_bytes() for path in (BUILD / "hermes").rglob("*.py")}
    assert ours == theirs, "build it: make compiled"
