"""Run the tests of docs/reference/answers-checks.md on an older commit, and print which of them fail there.

    python scripts/answers_before.py fd7665c [--only binds]

Makes a worktree of that commit in a temporary folder, copies the tests and scripts of today over it, runs each named
file, and removes the worktree. One line a row of the page: how many of its tests fail there, then the others by name:

- fail: the old program gives another answer, ends with an error, or does not end
- lack: the test needs a name, key or field of the new program; a stub that fails stands for what cannot be imported
- pass: a regression guard

This file is also the pytest plug-in that makes the stubs and ends tests after a minute.
"""

from __future__ import annotations

import argparse
import builtins
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

HERE = Path(__file__).resolve().parents[1]
PAGE = HERE / "docs/reference/answers-checks.md"
TEST_S, FILE_S = 60, 300
MEMORY_BYTES = 4_000_000_000
_LACKS = re.compile("the old commit lacks|KeyError|AttributeError: '(?!types)|unexpected keyword|"
                    "expected one of the keys")


class Lacking:
    """A name that the old commit does not have."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _fail(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"the old commit lacks {self._name}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Lacking(f"{self._name}.{name}")

    __call__ = __getitem__ = __truediv__ = __enter__ = __len__ = _fail

    def __iter__(self) -> Iterator[object]:
        return iter([self])


def pytest_configure() -> None:
    """Let test modules import what is not there."""
    original = builtins.__import__

    def lenient(name: str, globals: Mapping[str, Any] | None = None, locals: Mapping[str, Any] | None = None,
                fromlist: Sequence[str] | None = (), level: int = 0) -> Any:
        try:
            module = original(name, globals, locals, fromlist, level)
        except ModuleNotFoundError:
            if not _of_a_test(globals) or not name.startswith("hermes"):
                raise
            return SimpleNamespace(**{wanted: Lacking(f"{name}.{wanted}") for wanted in fromlist or ()})
        if not (fromlist and _of_a_test(globals) and name.startswith("hermes")):
            return module
        found: dict[str, Any] = {}
        for wanted in fromlist:
            try:
                exec(f"from {name} import {wanted}", found)
            except ImportError:
                found[wanted] = Lacking(f"{name}.{wanted}")
        return SimpleNamespace(**found)

    builtins.__import__ = lenient  # type: ignore[assignment]


def _of_a_test(globals: Mapping[str, Any] | None) -> bool:
    return "/tests/" in str((globals or {}).get("__file__"))


class TooLong(BaseException):
    """Not an `Exception`: the code under test may catch those."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """End a test after `TEST_S` seconds: what the old commit does not bound, it may do for ever."""
    def late(*_: object) -> NoReturn:
        raise TooLong(f"longer than {TEST_S} s")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, TEST_S, 5)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def rows() -> list[tuple[str, list[str]]]:
    """(claim, named tests) of each row of the page."""
    found = []
    for line in PAGE.read_text().splitlines():
        match = re.match(r"\| (\d+ .*?) \| (.*) \|$", line)
        if match is None:
            continue
        named: list[str] = []
        for test in re.findall(r"`([^`]+)`", match[2]):
            named.append(named[-1].split("::")[0] + test if test.startswith("::") else test)
        found.append((match[1], [test for test in named if test.startswith("tests/")]))
    return found


def outcomes(tree: Path, named: Sequence[str], verbose: bool) -> dict[str, str]:
    """Outcome of each of these tests, run in `tree`: fail, lack or pass."""
    found: dict[str, str] = {}
    while True:
        text, ended = _ran(tree, named, found)
        found |= dict.fromkeys(re.findall(r"^(tests/\S+::.*?) PASSED", text, re.M), "pass")
        for test, why in re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - (.*))?$", text, re.M):
            if "MemoryError" in why and [test] != named:   # another test may have taken the memory
                found |= outcomes(tree, [test], verbose)
                continue
            found[test] = "lack" if _LACKS.search(why) else "fail"
            if verbose:
                print(f"{test}: {why}", flush=True)
        if ended:
            return found
        started = re.findall(r"^(tests/\S+::.*?) (?!PASSED|FAILED|ERROR)", text, re.M)
        if not started or started[-1] in found:
            raise SystemExit(f"{named} did not end:\n{text[-2000:]}")
        found[started[-1]] = "fail"
        if verbose:
            print(f"{started[-1]}: does not end", flush=True)


def _ran(tree: Path, named: Sequence[str], without: Iterable[str]) -> tuple[str, bool]:
    """Return what pytest prints, and whether it ended within `FILE_S` seconds."""
    environment = os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{Path(__file__).parent}", "COLUMNS": "400"}
    command = [sys.executable, "-m", "pytest", "-vv", "-rfE", "--tb=no", "-p", "no:xdist", "-p", "no:cacheprovider",
               "-p", Path(__file__).stem, *named, *(f"--deselect={test}" for test in without)]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, cwd=tree, env=environment, stdout=output, stderr=subprocess.STDOUT,
                                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES,) * 2))
        try:
            process.wait(FILE_S)
            ended = True
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended = False
        output.seek(0)
        return output.read(), ended


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("commit")
    parser.add_argument("--only", default="", help="rows that name this text")
    parser.add_argument("-v", "--verbose", action="store_true", help="the last line of each failure")
    options = parser.parse_args()
    chosen = [row for row in rows() if options.only in " ".join((row[0], *row[1]))]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", tree, options.commit], cwd=HERE, check=True)
        try:
            shutil.rmtree(tree / "tests")
            for copied in ("tests", "scripts"):
                shutil.copytree(HERE / copied, tree / copied, dirs_exist_ok=True,
                                ignore=shutil.ignore_patterns("__pycache__", ".hypothesis"))
            by_file: dict[str, set[str]] = {}
            for _, named in chosen:
                for test in named:
                    by_file.setdefault(test.split("::")[0], set()).add(test)
            found: dict[str, str] = {}
            for file, tests in by_file.items():
                found |= outcomes(tree, [file] if file in tests else sorted(tests), options.verbose)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=HERE, check=True)
    for claim, named in chosen:
        of_row = {test: how for test, how in found.items()
                  if any(test == name or test.startswith((f"{name}::", f"{name}[")) for name in named)}
        print(", ".join(f"{n} {how}" for how, n in sorted(Counter(of_row.values()).items())) or "none ran", "|", claim)
        for test, how in of_row.items():
            if how != "fail":
                print(f"    {how}: {test}")
        for name in named:
            if not any(test == name or test.startswith((f"{name}::", f"{name}[")) for test in found):
                print(f"    left out (long): {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
