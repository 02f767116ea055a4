"""Locks of files and folders, with flock and without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hermes import locks
from hermes.locks import lock

HOLD = ("import sys; from pathlib import Path; from hermes import locks; locks.HAS_FLOCK = {flock}\n"
        "held = locks.lock(Path({path!r})); print('held', flush=True); sys.stdin.read()")


@pytest.fixture(params=[True, False], ids=["flock", "no flock"], autouse=True)
def flock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(locks, "HAS_FLOCK", request.param)
    return bool(request.param)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_one_holds_a_lock_and_nothing_is_left_behind(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "one: ü"
    path.mkdir() if kind == "folder" else path.write_text("content")
    for _ in range(2):
        with lock(path):
            with pytest.raises(BlockingIOError):
                lock(path)
            with pytest.raises(BlockingIOError):
                lock(path.parent / "." / path.name)
    assert list(tmp_path.iterdir()) == [path]
    assert kind == "folder" or path.read_text() == "content"


def test_a_locked_file_is_written_and_renamed(tmp_path: Path) -> None:
    path, target = tmp_path / "half", tmp_path / "whole"
    path.touch()
    with lock(path):
        path.write_text("content")
        path.replace(target)
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_text() == "content"


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path, flock: bool) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    code = HOLD.format(flock=flock, path=str(path))
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError):
            lock(path)
        other.kill()
    assert flock or [file.name for file in tmp_path.iterdir()] != [path.name], "the killed process left its lock file"
    lock(path).close()
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_locked(tmp_path: Path, flock: bool) -> None:
    with pytest.raises(FileNotFoundError):
        lock(tmp_path / "missing")
    if not flock:
        with pytest.raises(OSError, match="unable to open database file"):
            lock(Path("/proc/version"))   # no file can be made beside it
