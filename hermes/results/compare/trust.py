"""Two runs whose step times come from different sources: on what they cannot be ranked.

Step times of one source are off in the same direction in both runs, so that a difference in scheduling or load stands.
Of different sources (another layout, card or precision) each may be off by itself. Where the times of one of them are a
guess, a difference counts only if the ranges of both do not overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["cannot_rank"]

COUNTS = 0.05   # share of the time of steps from which on a source counts
_JUDGED = (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "E2E"))


def cannot_rank(rows: Sequence[Any], ours: Mapping[str, Any], theirs: Mapping[str, Any], names: tuple[str, str]) -> str:
    """Return a sentence about the latencies at p99 on which two runs cannot be ranked, or "".

    rows: `CompareRow`s of the latencies
    ours, theirs: summaries; those without `sources` (stored by an older version) rank as they do
    """
    sides = [list(side.get("sources") or ()) for side in (ours, theirs)]
    if not all(sides) or _of(sides[0]) == _of(sides[1]) or all(
            one["class"] != "guess" for side in sides for one in side):
        return ""
    ends = [(min(one["low"] for one in side), max(one["high"] for one in side)) for side in sides]
    found = [label for metric, label in _JUDGED for row in rows
             if (row.metric, row.stat) == (metric, "p99") and row.ours_s and row.reference_s
             and _overlap(row.ours_s, ends[0], row.reference_s, ends[1])]
    if not found:
        return ""
    texts = [f"{name} {_class(side)}, {100 * (low - 1):+.0f} to {100 * (high - 1):+.0f}%"
             for name, side, (low, high) in zip(names, sides, ends, strict=True)]
    return (f"cannot be ranked on {', '.join(f'{label} p99' for label in found)}: step times come from different "
            f"sources, and their ranges overlap ({'; '.join(texts)})")


def _of(groups: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the sources that count."""
    return {part["source"] for group in groups for part in group["parts"] if part["share"] >= COUNTS}


def _class(groups: Sequence[Mapping[str, Any]]) -> str:
    kinds = {group["class"] for group in groups}
    return next((kind for kind in ("guess", "near") if kind in kinds), "measured")


def _overlap(one: float, ends: tuple[float, float], other: float, others: tuple[float, float]) -> bool:
    return one * ends[0] <= other * others[1] and other * others[0] <= one * ends[1]
