"""Measured data of other projects, which the checkout does not contain: below $HERMES_OUTSIDE, or ../shared.

    AZURE = OUTSIDE / "data" / "azure"

    @pytest.mark.outside("data/azure")     # skipped, with the reason, where that is not there
    def test_a_profile_is_its_trace() -> None: ...

    folder = outside("data/azure")         # the same within a test
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["OUTSIDE", "outside"]

OUTSIDE = Path(os.environ.get("HERMES_OUTSIDE") or Path(__file__).resolve().parents[2] / "shared")


def outside(name: str) -> Path:
    """Return a file or folder of data that is not part of the project, or skip the test."""
    path = OUTSIDE / name
    if not path.exists():
        pytest.skip(f"data from outside the checkout is not at {path} (see tests/outside.py)")
    return path
