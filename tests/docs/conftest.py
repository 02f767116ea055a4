"""The command `hermes` of the Python that runs the tests, installed or not, for what documents run."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


# a command with quoted arguments that bash takes as they are
_ONLY_HERMES = re.compile(r"hermes( ([\w./:=,+-]+|'[^']*'))*")


def _in_this_process(script: str, folder: Path) -> tuple[int, str]:
    from hermes.cli import main

    printed = io.StringIO()
    environment = {"COLUMNS": "120", "NO_COLOR": "1"}
    before = {name: os.environ.get(name) for name in environment}
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        os.environ.update(environment)
        try:
            for line in script.splitlines():
                code = main(shlex.split(line)[1:])
                if code:
                    return code, printed.getvalue()
        finally:
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    return 0, printed.getvalue()


@pytest.fixture
def bash(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[int, str]]:
    """Runs a script in `tmp_path`, with `hermes` on the path: (exit code, what it printed).

    Lines that are nothing but a `hermes` command run in this process: a new one imports for more than a second. The
    shell runs the scripts with anything of its own: pipes, redirections, variables, other programs.
    """
    programs = tmp_path_factory.mktemp("bin")
    command = programs / "hermes"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hermes.cli "$@"\n')
    command.chmod(0o755)
    path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PATH": path, "PYTHONPATH": python_path, "COLUMNS": "120", "NO_COLOR": "1"}

    def run(script: str) -> tuple[int, str]:
        if all(_ONLY_HERMES.fullmatch(line) for line in script.splitlines()):
            return _in_this_process(script, tmp_path)
        done = subprocess.run(
            ["bash", "-e", "-c", script], cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=120,
        )
        return done.returncode, done.stdout

    return run
