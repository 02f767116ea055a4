"""A package that is missing or broken gives one line and exit code 2; an error in HERMES itself keeps its traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hermes.cli
from hermes.__main__ import main

ROOT = Path(__file__).resolve().parents[2]


def run(tmp_path: Path, *arguments: str, **hidden: str) -> subprocess.CompletedProcess[str]:
    shutil.copyfile(Path(__file__).with_name("hide_packages.py"), tmp_path / "sitecustomize.py")
    environment = {**os.environ, **hidden, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    return subprocess.run([sys.executable, "-m", "hermes", *arguments], capture_output=True, text=True, cwd=tmp_path,
                          env=environment, timeout=60, check=False)


@pytest.mark.drawn
@pytest.mark.parametrize("broken", ["", "the library does not load\nhere"])
@pytest.mark.parametrize("package", ["typer", "rich", "numpy", "yaml"])
def test_one_line_names_the_package(tmp_path: Path, package: str, broken: str) -> None:
    done = run(tmp_path, "run", "quickstart", "--set", "workload.requests=3", HIDDEN=package, BROKEN=broken)
    said = " ".join(broken.split()) or f"No module named {package!r}"
    assert done.stderr == (f"hermes: cannot import {package}: {said}; "
                           "install its packages again: pip install hermes-sim\n")
    assert (done.returncode, done.stdout) == (2, "")


def test_packages_that_a_run_does_without(tmp_path: Path) -> None:
    written = []
    for name, hidden in (("all", ""), ("few", "sklearn,scipy,matplotlib,networkx")):
        done = run(tmp_path, "run", "quickstart", "--set", "workload.requests=3", "-o", name, "-q", HIDDEN=hidden)
        assert done.returncode == 0, done.stderr
        written.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert written[0] == written[1]


@pytest.mark.parametrize("error", [
    ImportError("cannot import name 'x' from 'hermes.core'", name="hermes.core"),
    ModuleNotFoundError("No module named 'hermes.nosuch'", name="hermes.nosuch"),
    ModuleNotFoundError("No module named 'fcntl'", name="fcntl"),
])
def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, error: ImportError) -> None:
    def fail() -> int:
        raise error

    monkeypatch.setattr(hermes.cli, "main", fail)
    with pytest.raises(ImportError):
        main()
