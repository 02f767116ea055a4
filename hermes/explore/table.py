"""Table of a sweep: one row per point, with the figures that decide between configurations.

Rates are those of the steady state if a point has one (`headline` in docs/reference/results.md), else of the whole run,
with a star. If the queue grows, the table says so instead of a number.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hermes.explore.objective import own_missed
from hermes.results.layout import WIDTH, shortened

if TYPE_CHECKING:
    from hermes.explore.sweep_results import SweepResults

__all__ = ["point_table"]

SHOWN = 40
SHORTEST = 12
# (group, head, column of the results, factor)
FIGURES: tuple[tuple[str, str, str, float], ...] = (
    ("rate, /s", "offered", "headline.offered_per_s", 1.0), ("rate, /s", "served", "headline.served_per_s", 1.0),
    ("TTFT, ms", "p50", "latency.ttft_s.p50", 1e3), ("TTFT, ms", "p99", "latency.ttft_s.p99", 1e3),
    ("TPOT, ms", "p50", "latency.tpot_s.p50", 1e3), ("TPOT, ms", "p99", "latency.tpot_s.p99", 1e3),
    ("good", "/s", "headline.goodput_per_s", 1.0), ("de-", "vices", "devices", 1.0),
    ("$/M", "answer", "headline.per_million_answer_tokens_dollars", 1.0),
)
NOTED = ("F1", "mean", "notes.f1.mean", 1.0)
"""Shown where a point has it."""
Figures = tuple[tuple[str, str, str, float], ...]
_PER_TOKEN = ("headline.served_per_s", "headline.goodput_per_s", "headline.per_million_answer_tokens_dollars")


def point_table(results: SweepResults, shown: int = SHOWN) -> str:
    """Return the first points as text of at most 80 columns."""
    points = results.manifest["points"]
    names = list(dict.fromkeys(name for point in points for name in point["settings"]))
    several = len({point["seed"] for point in points}) > 1
    outcomes = [results.outcome(number) for number in range(len(points[:shown]))]
    figures = FIGURES + ((NOTED,) if any(outcome and NOTED[2] in outcome for outcome in outcomes) else ())
    labels, rows = [], []
    for number, point in enumerate(points[:shown]):
        values = [str(point["settings"].get(name, "-")) for name in names] + ([str(point["seed"])] if several else [])
        labels.append(", ".join(values) or str(number))
        rows.append(_cells(outcomes[number], figures))
    head = ", ".join([*names, *(["seed"] if several else [])]) or "point"
    lines = _laid_out(head, labels, rows, figures)
    if any("*" in cell for row in rows for cell in row):
        lines.append("* of the whole run, warm-up and drain included: too short for a steady state")
    if any("+" in cell for row in rows for cell in row):
        lines.append("+ did not settle: arrivals for less than 5 x E2E p99; no verdict on the SLO")
    for label, outcome in zip(labels, outcomes, strict=True):
        lines += [line for text in own_missed(outcome or {})
                  for line in textwrap.wrap(f"{label} misses: {text}", WIDTH, subsequent_indent="  ")]
    if len(points) > shown:
        lines.append(f"and {len(points) - shown:,} more: hermes.open_sweep({str(results.path)!r}).frame()")
    return "\n".join(lines) + "\n"


def _cells(outcome: Mapping[str, Any] | None, figures: Figures) -> list[str]:
    if outcome is None:
        return ["waiting", *["-"] * (len(figures) - 1)]
    if outcome["status"] != "ok":
        return ["failed", *["-"] * (len(figures) - 1)]
    cells = []
    for _, _, column, factor in figures:
        value = outcome.get(column)
        if outcome.get("headline.stable") is False and column in _PER_TOKEN:
            cells.append("grows" if column == "headline.served_per_s" else "-")
        else:
            whole = column == "headline.served_per_s" and outcome.get("headline.window") == "whole"
            unsettled = column == "headline.goodput_per_s" and outcome.get("settling.settled") is False
            cells.append("-" if value is None else _number(value * factor) + "*" * whole + "+" * unsettled)
    return cells


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _laid_out(head: str, labels: list[str], rows: list[list[str]], figures: Figures) -> list[str]:
    """Lay out lines of equal columns under two lines of heads."""
    widths = [max(len(cell) for cell in column) for column in
              zip(*rows, [head for _, head, _, _ in figures], strict=True)]
    for index, (group, _, _, _) in enumerate(figures):   # over one column, or over two
        span = [i for i, other in enumerate(figures) if other[0] == group]
        if index == span[0]:
            widths[index] += max(0, len(group) - sum(widths[i] for i in span) - 2 * (len(span) - 1))
    longest = max(len(text) for text in (head, *labels))
    gap = 2 if longest + sum(widths) + 2 * len(widths) <= WIDTH else 1
    first = min(longest, max(SHORTEST, WIDTH - sum(widths) - gap * len(widths)))
    space = " " * gap
    above = " " * first
    for index, (group, _, _, _) in enumerate(figures):
        span = [i for i, other in enumerate(figures) if other[0] == group]
        if index == span[0]:
            above += space + group.rjust(sum(widths[i] for i in span) + gap * (len(span) - 1))
    body = [[shortened(head, first), *(name for _, name, _, _ in figures)]]
    body += [[shortened(label, first), *cells] for label, cells in zip(labels, rows, strict=True)]
    return [above.rstrip(), *(
        row[0].ljust(first) + "".join(space + cell.rjust(width) for cell, width in zip(row[1:], widths, strict=True))
        for row in body)]
