"""Files that ship with the product: fitted profiles, built-in workloads and scenarios.

In a checkout they are the top-level folders; in an installed wheel the same folders lie under `hermes/_data`.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["resource_dir"]

_PACKAGE = Path(__file__).resolve().parent


def resource_dir(folder: str) -> Path:
    """The folder `hw_profiles`, `traces` or `scenarios` that ships with this installation."""
    packaged = _PACKAGE / "_data" / folder
    return packaged if packaged.is_dir() else _PACKAGE.parent / folder
