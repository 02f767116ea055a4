"""Run a command in this process, or in one of its own: exit code, output, and whether it came back in time."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["LIMIT_S", "Ran", "open_files", "run_apart", "run_here"]

LIMIT_S = 20
_TIMES = re.compile(r'"wall_s": [0-9.e-]+|in [0-9.]+ s')   # differ from run to run


class Hang(BaseException):
    """The command did not come back."""


@dataclass(frozen=True)
class Ran:
    """code: None where there was a traceback or a hang, which `err` tells."""

    code: int | None
    out: str
    err: str
    seconds: float = 0.0

    def without(self, folder: Path, more: str) -> Ran:
        """The same with the folder's name and times taken out and `more` added, to be compared."""
        out, err = (_TIMES.sub("", text.replace(str(folder), "HERE")) for text in (self.out, self.err))
        return Ran(self.code, out + more, err)


@contextlib.contextmanager
def _limit(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Hang(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_here(arguments: list[str], limit_s: int = LIMIT_S) -> Ran:
    """The command through the command line in this process."""
    from hermes.cli import main

    out, err = io.StringIO(), io.StringIO()
    started = time.perf_counter()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _limit(limit_s):
            code: int | None = main(arguments)
    except KeyboardInterrupt:
        raise
    except BaseException:
        code = None
        err.write(traceback.format_exc())
    return Ran(code, out.getvalue(), err.getvalue(), time.perf_counter() - started)


def run_apart(arguments: list[str], limit_s: int = LIMIT_S) -> Ran:
    """The same in a process of its own with 4 GiB of memory: for files without end, and those that block."""
    code = ("import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)); "
            "from hermes.cli import main; raise SystemExit(main())")
    try:
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=limit_s,
                              stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return Ran(None, "", f"no answer within {limit_s} s")
    return Ran(None if "Traceback" in done.stderr else done.returncode, done.stdout, done.stderr)


def open_files() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))
