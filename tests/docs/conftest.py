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

from hermes.cli import main

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))   # generated_pages


# a command with arguments that bash takes as they are; where its output goes; what happens if it fails
_ONLY_HERMES = re.compile(
    r"(?P<command>hermes(?: (?:[\w./:=,+-]+|'[^']*'))*)(?: > (?P<file>[\w./-]+))?"
    r"(?: \|\| (?P<else>true|echo \"exit code \$\?\"))?"
)


def _in_this_process(script: str, folder: Path) -> tuple[int, str]:
    """What bash does with a script of lines that match `_ONLY_HERMES`."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder), contextlib.redirect_stderr(printed):
        patch.setenv("COLUMNS", "120")
        patch.setenv("NO_COLOR", "1")
        for line in script.splitlines():
            found = _ONLY_HERMES.fullmatch(line)
            assert found is not None
            with contextlib.ExitStack() as stack:
                file = stack.enter_context(open(found["file"], "w")) if found["file"] else printed
                stack.enter_context(contextlib.redirect_stdout(file))
                code = main(shlex.split(found["command"])[1:])
            if code and not found["else"]:
                return code, printed.getvalue()
            if code and found["else"] != "true":
                print(f"exit code {code}", file=printed)
    return 0, printed.getvalue()


@pytest.fixture
def bash(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[int, str]]:
    """Runs a script in `tmp_path`, with `hermes` and this Python on the path: (exit code, what it printed).

    Scripts of nothing but `hermes` commands run in this process: a new one imports for more than a second. Bash runs
    those with pipes, variables or other programs, and sweeps: their points depend on the plug-ins of the process, and
    other tests register some in this one.
    """
    programs = tmp_path_factory.mktemp("bin")
    for name, arguments in (("hermes", " -m hermes.cli"), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        program.chmod(0o755)
    path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PATH": path, "PYTHONPATH": python_path, "COLUMNS": "120", "NO_COLOR": "1"}

    def run(script: str) -> tuple[int, str]:
        lines = script.splitlines()
        if all(_ONLY_HERMES.fullmatch(line) and not line.startswith("hermes sweep") for line in lines):
            return _in_this_process(script, tmp_path)
        done = subprocess.run(
            ["bash", "-e", "-c", script], cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=600,
        )
        return done.returncode, done.stdout

    return run
