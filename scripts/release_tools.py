"""Parts of release_check.py: processes with their CPU time, and the files of runs compared."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = "run.environment"
"""Key of summary.json that names build and versions: the only difference that two builds may show."""


class CheckError(Exception):
    """A check failed; the text says how."""


class OpenError(Exception):
    """A check could not be made; the text says why."""


@dataclass(frozen=True)
class Done:
    """An ended process, with its CPU time in s."""

    code: int
    out: str
    err: str
    cpu_s: float


def execute(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> Done:
    """Run a command; CPU seconds are its own and those of its children."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen([str(part) for part in command], stdout=out, stderr=err, env=env, cwd=cwd)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Done(process.returncode, *texts, used.ru_utime + used.ru_stime)


def must(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> Done:
    """Run a command that has to succeed."""
    done = execute(command, env=env, cwd=cwd)
    if done.code:
        said = [line for line in (done.err + done.out).splitlines() if line.strip()][-1:]
        raise CheckError(f"{' '.join(map(str, command))[-90:]}: exit {done.code}: {' '.join(said)}")
    return done


def size_of(path: Path) -> float:
    """Return the size of a file or folder in MB."""
    return sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file()) / 1e6


def written(folder: Path) -> dict[str, bytes]:
    """Return the files of a run, without the key of the summary that names the build."""
    found = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    with suppress(KeyError):
        summary = json.loads(found["summary.json"])
        section, _, key = LEFT_OUT.partition(".")
        summary[section].pop(key, None)
        found["summary.json"] = json.dumps(summary).encode()
    return found


def differences(ours: Mapping[str, bytes], theirs: Mapping[str, bytes]) -> str:
    """Name the files that differ."""
    return ", ".join(sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))[:5])
