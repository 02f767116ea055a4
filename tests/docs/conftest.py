"""The command `hermes` of the Python that runs the tests, installed or not, for what documents run."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bash(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[int, str]]:
    """Runs bash in `tmp_path`, with `hermes` on the path: (exit code, what it printed)."""
    programs = tmp_path_factory.mktemp("bin")
    command = programs / "hermes"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hermes.cli "$@"\n')
    command.chmod(0o755)
    path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PATH": path, "PYTHONPATH": python_path, "COLUMNS": "120", "NO_COLOR": "1"}

    def run(script: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-e", "-c", script], cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=120,
        )
        return done.returncode, done.stdout

    return run
