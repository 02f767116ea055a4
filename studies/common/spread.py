"""The spread of a paper's figures over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hermes.study import Compared

__all__ = ["with_spread"]


def with_spread(found: Sequence[Compared], others: Sequence[Sequence[Compared]]) -> list[Compared]:
    """Return the figures with their lowest and highest over seeds. Words on which seeds disagree are not settled.

    Args:
        found: Figures of the first seed.
        others: The same figures of each other seed; a figure that a seed cannot change may be missing.
    """
    rows = []
    for one in found:
        same = [one, *(other for rows_of in others for other in rows_of if other.name == one.name)]
        numbers = [number for row in same for number in (row.here if isinstance(row.here, tuple) else (row.here,))
                   if isinstance(number, int | float)]
        spread = (min(numbers), max(numbers)) if len({row.here for row in same}) > 1 and numbers else None
        rows.append(replace(one, interval=spread, settled=len({row.agrees for row in same}) == 1))
    return rows
