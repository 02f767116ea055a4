"""Draw a quarter of the cases of a test by the commit. `make test-all` runs all of them.

    @pytest.mark.drawn
    @pytest.mark.parametrize("part", range(12))   # three of twelve in `make test`
    def test_a_part(part): ...

`drawn(one_of=8)` draws an eighth, for cases that cost a second or more.

The draw depends on the commit and the test alone: all processes of a run draw the same cases, and `HERMES_TEST_DRAW`
set to what the header of a run shows repeats its draw.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

__all__ = ["changed_files", "not_drawn", "seed"]

ROOT = Path(__file__).resolve().parents[1]
_SEED = "HERMES_TEST_DRAW"
_ONE_OF = 4


def seed() -> str:
    """Return the seed of this run's draws: the commit, or a fixed one where there is no git."""
    if _SEED not in os.environ:
        os.environ[_SEED] = _git("rev-parse", "HEAD").strip() or "none"   # for the workers, too
    return os.environ[_SEED]


@cache
def changed_files() -> frozenset[str]:
    """Return the files that the last commit or the working tree changed, from the root of the checkout."""
    return frozenset(_git("diff", "--name-only", "HEAD~1").split())


def not_drawn(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the items marked `drawn` that are left out: of each test all but its share of cases, rounded up."""
    cases = defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker("drawn"):
            cases[item.nodeid.partition("[")[0], mark.kwargs.get("one_of", _ONE_OF)].append(item)
    left_out: set[pytest.Item] = set()
    for (test, one_of), found in cases.items():
        kept = random.Random(f"{seed()} {test}").sample(found, -(-len(found) // one_of))
        left_out |= set(found) - set(kept)
    return left_out


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):   # not a checkout, or one with a single commit
        return ""
