"""Figures of a paper over several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hermes.study import Compared

__all__ = ["over_seeds"]


def over_seeds(first: Sequence[Compared], *others: Sequence[Compared]) -> list[Compared]:
    """Return the figures of the first seed, each with its interval over all seeds.

    Args:
        first: Figures of the first seed. A row in words may have an `interval` of its own: the number that the words
            turn on, twice.
        others: Figures of the other seeds. Their verdicts on a row in words join its reason.
    """
    found = []
    for one in first:
        same = [other for rows in others for other in rows if other.name == one.name]
        numbers = [number for row in (one, *same) for number in _numbers(row)]
        why = one.why if one.agrees is None or not same else (
            f"{one.why}; other seed: {', '.join(row.verdict for row in same)}")
        interval = (min(numbers), max(numbers)) if same and numbers else None
        found.append(replace(one, why=why, interval=interval))
    return found


def _numbers(row: Compared) -> tuple[float, ...]:
    return (float(row.here),) if isinstance(row.here, int | float) else row.interval or ()
