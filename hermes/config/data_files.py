"""Files that ship with the product: fitted profiles, built-in workloads and scenarios.

In a checkout they are the top-level folders; in an installed wheel the same folders lie under `hermes/_data`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TypeVar

__all__ = ["Kept", "files_noted", "kept", "kept_within", "note_file", "resource_dir"]

T = TypeVar("T")
Kept = dict[Hashable, tuple[object, list[Path]]]   # what something is built of -> it, and the files that it read
MOST_KEPT = 64

_PACKAGE = Path(__file__).resolve().parents[1]
_NOTED: ContextVar[dict[Path, None] | None] = ContextVar("files read", default=None)
_KEPT: ContextVar[Kept | None] = ContextVar("kept", default=None)


@contextmanager
def files_noted() -> Iterator[dict[Path, None]]:
    """Collect the data files that are read within the block: an outcome depends on them besides its scenario."""
    noted: dict[Path, None] = {}
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)


def note_file(path: str | Path) -> None:
    """Note a data file that is read. A plug-in calls it for a file that it reads without
    `hermes.config.yaml_document`."""
    noted = _NOTED.get()
    if noted is not None:
        noted[Path(path)] = None


@cache
def resource_dir(folder: str) -> Path:
    """Return the folder `hw_profiles`, `traces` or `scenarios` that ships with this installation."""
    packaged = _PACKAGE / "_data" / folder
    return packaged if packaged.is_dir() else _PACKAGE.parent / folder


@contextmanager
def kept_within(found: Kept) -> Iterator[None]:
    """Share within the block what is built of files that ship alone (`kept`), with what `found` has: simulations of one
    search have the same hardware models, and fill the same tables of step times. An outer block has its own."""
    outer = _KEPT.get()
    token = _KEPT.set(found if outer is None else outer)
    try:
        yield
    finally:
        _KEPT.reset(token)


def kept(key: Hashable, build: Callable[[], T]) -> T:
    """Return what `build` returns, which must be a function of `key` and files, and is not changed afterwards. Within
    `kept_within` it is built once, unless it read a file that does not ship: that may change."""
    found = _KEPT.get()
    if found is None:
        return build()
    if key in found:
        built, files = found[key]
    else:
        with files_noted() as read:
            built, files = build(), list(read)
        if all(path.is_relative_to(resource_dir("hw_profiles")) for path in files):
            if len(found) >= MOST_KEPT:
                found.clear()
            found[key] = built, files
    for path in files:
        note_file(path)
    return built   # type: ignore[return-value]
