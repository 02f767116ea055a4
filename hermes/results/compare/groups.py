"""Two runs side by side by band, class and tenant of a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hermes.results.figures.catalogue import LATENCIES
from hermes.results.figures.tenants import shown_groupings

__all__ = ["GroupRow", "compare_groups"]

_STATS = tuple((metric, stat) for metric in ("ttft", "e2e", "waited") for stat in ("p50", "p99"))
_COUNTS = ("completed", "shed", "expired", "revoked")


class GroupRow(NamedTuple):
    """A figure of a group of requests in two runs. seconds: Whether it is a time, not a number."""

    group: str
    figure: str
    ours: float | None
    reference: float | None
    seconds: bool


def compare_groups(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[GroupRow]:
    """Return the rows of the groups that both summaries have, and Jain's indices; no row for equal counts."""
    ours, theirs = first.get("gateway", {}), second.get("gateway", {})
    rows = []
    for name in shown_groupings(ours):
        mine, other = ours.get(name, {}), theirs.get(name, {})
        both = [which for which in mine if which in other]
        for which in both if len(both) > 1 else ():
            group = f"{name} {which or '(none)'}"
            rows += [GroupRow(group, count, mine[which][count], other[which][count], False)
                     for count in _COUNTS if mine[which][count] != other[which][count]]
            rows += [GroupRow(group, f"{LATENCIES[metric]} {stat}", a[stat], b[stat], True)
                     for metric, stat in _STATS
                     for a, b in ([side[which][f"{metric}_s"] for side in (mine, other)],) if a["count"] or b["count"]]
    if "jain" in ours and "jain" in theirs:
        rows += [GroupRow("tenants", f"Jain's index, {name.replace('_', ' ')}", value, theirs["jain"][name], False)
                 for name, value in ours["jain"].items()]
    return rows
