"""Figures of a paper over several seeds: two ways to show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hermes.study import Compared

__all__ = ["over_seeds", "with_spread"]


def over_seeds(first: Sequence[Compared], *others: Sequence[Compared]) -> list[Compared]:
    """Return the figures of the first seed, each with its interval over all seeds.

    Args:
        first: Figures of the first seed. A row in words may have an `interval` of its own: the number that the words
            turn on, twice.
        others: Figures of the other seeds. Their verdicts on a row in words join its reason.
    """
    found = []
    for one in first:
        same = _same(one, others)
        numbers = [number for row in (one, *same)
                   for number in (_numbers(row) if isinstance(row.here, int | float) else row.interval or ())]
        why = one.why if one.agrees is None or not same else (
            f"{one.why}; other seed: {', '.join(row.verdict for row in same)}")
        interval = (min(numbers), max(numbers)) if same and numbers else None
        found.append(replace(one, why=why, interval=interval))
    return found


def with_spread(found: Sequence[Compared], others: Sequence[Sequence[Compared]]) -> list[Compared]:
    """Return the figures with their lowest and highest over seeds; a figure that all seeds share has no interval. Words
    on which seeds disagree are not settled.

    Args:
        found: Figures of the first seed.
        others: The same figures of each other seed; a figure that a seed cannot change may be missing.
    """
    rows = []
    for one in found:
        same = [one, *_same(one, others)]
        numbers = [number for row in same for number in _numbers(row)]
        spread = (min(numbers), max(numbers)) if len({row.here for row in same}) > 1 and numbers else None
        rows.append(replace(one, interval=spread, settled=one.settled and len({row.agrees for row in same}) == 1))
    return rows


def _same(one: Compared, others: Sequence[Sequence[Compared]]) -> list[Compared]:
    """Return the rows of other seeds for the same figure."""
    return [other for rows in others for other in rows if other.name == one.name]


def _numbers(row: Compared) -> list[float]:
    figures = row.here if isinstance(row.here, tuple) else (row.here,)
    return [float(number) for number in figures if isinstance(number, int | float)]
