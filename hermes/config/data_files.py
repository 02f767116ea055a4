"""Files that ship with the product: fitted profiles, built-in workloads and scenarios.

In a checkout they are the top-level folders; in an installed wheel the same folders lie under `hermes/_data`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

__all__ = ["files_noted", "note_file", "resource_dir"]

_PACKAGE = Path(__file__).resolve().parents[1]
_NOTED: ContextVar[dict[Path, None] | None] = ContextVar("files read", default=None)


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
