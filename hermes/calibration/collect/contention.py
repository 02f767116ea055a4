"""How long this process waited for a core: what else runs on the machine shows in no other clock as clearly.

Linux counts, per thread, the nanoseconds it was ready to run and did not (`schedstat`). A wall-clock measurement during
which that was more than `LIMIT` of the time is contended: kept, marked, and left out of statistics and fits. The rule
is fixed beforehand and the same for all collectors that use it. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["LIMIT", "contended", "steady", "waited_s"]

LIMIT = 0.05
"""Largest share of a measurement that its threads may have waited for a core."""


def waited_s() -> float:
    """Seconds all threads of this process have waited for a core so far; 0 where the system does not count them."""
    total = 0
    try:
        for task in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{task}/schedstat", encoding="ascii") as file:
                    total += int(file.read().split()[1])
            except (OSError, IndexError, ValueError):  # the thread has just ended
                continue
    except OSError:
        return 0.0
    return total / 1e9


def contended(row: Mapping[str, Any]) -> bool:
    """Whether a row (`time_s`, `waited_s`) was measured while the machine was busy with something else."""
    return bool(row.get("waited_s", 0.0) > LIMIT * row["time_s"])


def steady(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that were not contended; where fewer than two are, the rows that were, or all."""
    found = [row for row in rows if not contended(row)]
    return found if len(found) > 1 else [row for row in rows if contended(row)] or list(rows)
