"""Table of a sweep: one row per point, with the figures that decide between configurations.

Rates are those of the steady state if a point has one (`headline` in docs/reference/results.md), else of the whole run,
with a star. Latencies are always of all requests. If the queue grows, the table says so instead of a number.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from hermes.explore.objective import Row, grows, own_missed
from hermes.explore.sweep.best import GOOD, Mean, Setting, best_of
from hermes.results.figures.catalogue import FIGURES
from hermes.results.layout import WIDTH, short_number, shortened

if TYPE_CHECKING:
    from hermes.explore.sweep.results import SweepResults

__all__ = ["point_table"]

SHOWN = 40
SHORTEST = 12
# two lines of heads that fit on a terminal, the figure's place, factor
COLUMNS: tuple[tuple[str, str, str, float], ...] = (
    ("rate, /s", "offered", "headline.offered_per_s", 1.0), ("rate, /s", "served", "headline.served_per_s", 1.0),
    ("TTFT, ms", "p50", "latency.ttft_s.p50", 1e3), ("TTFT, ms", "p99", "latency.ttft_s.p99", 1e3),
    ("TPOT, ms", "p50", "latency.tpot_s.p50", 1e3), ("TPOT, ms", "p99", "latency.tpot_s.p99", 1e3),
    ("good", "/s", "headline.goodput_per_s", 1.0), ("de-", "vices", "devices", 1.0),
    ("$/M", "answer", "headline.per_million_answer_tokens_dollars", 1.0),
)
SOMETIMES = (("hits", "%", "cache.hit_rate", 100.0), ("F1", "mean", "notes.f1.mean", 1.0))
"""Shown where a point has them."""
Figures = tuple[tuple[str, str, str, float], ...]
_PER_TOKEN = ("headline.served_per_s", "headline.goodput_per_s", "headline.per_million_answer_tokens_dollars")


def point_table(results: SweepResults, shown: int = SHOWN) -> str:
    """Return the first settings as text of at most 80 columns: means where they have several seeds."""
    points = results.manifest["points"]
    names = list(dict.fromkeys(name for point in points for name in point["settings"]))
    groups: dict[str, list[int]] = {}   # label -> numbers of the points
    for number, point in enumerate(points):
        label = ", ".join(str(point["settings"].get(name, "-")) for name in names) or "all"
        groups.setdefault(label, []).append(number)
    if len(groups) == len(points) and len({point["seed"] for point in points}) > 1:   # seeds of cases
        groups = {f"{label}, {points[found[0]]['seed']}": found for label, found in groups.items()}
        names = [*names, "seed"]
    left = len(groups) - shown
    groups = dict(list(groups.items())[:shown])
    outcomes = {label: [results.outcome(number) for number in numbers] for label, numbers in groups.items()}
    settings = [Setting(label, {points[number]["seed"]: outcome for number, outcome in zip(
        groups[label], found, strict=True) if outcome is not None and outcome["status"] == "ok"})
        for label, found in outcomes.items()]
    seeds = max(map(len, groups.values()), default=1) > 1
    every = [row for one in settings for row in one.rows.values()]
    figures = COLUMNS + tuple(one for one in SOMETIMES if any(row.get(one[2]) for row in every))
    rows = [_cells(_together(found), figures) for found in outcomes.values()]
    head = ", ".join(names) or "point"
    lines = _laid_out(head, list(groups), rows, figures)
    if any("*" in cell for row in rows for cell in row):
        why = _why_whole(chain.from_iterable(outcomes.values()))
        lines += textwrap.wrap(f"* of the whole run, warm-up and drain included: {why}", WIDTH)
    if any("+" in cell for row in rows for cell in row):
        lines.append("+ did not settle: arrivals for less than 5 x E2E p99; no verdict on the SLO")
    if seeds:
        lines += ["", *_over_seeds(head, settings)]
    for label, found in outcomes.items():
        texts = dict.fromkeys(text for outcome in found for text in own_missed(outcome or {}))
        lines += [line for text in texts
                  for line in textwrap.wrap(f"{label} misses: {text}", WIDTH, subsequent_indent="  ")]
    if left > 0:
        lines.append(f"and {left:,} more: hermes.open_sweep({str(results.path)!r}).frame()")
    return "\n".join(lines) + "\n"


def _why_whole(outcomes: Iterable[Row | None]) -> str:
    """Return why the rates of some points are of the whole run."""
    found = [str(outcome["headline.why"]) for outcome in outcomes
             if outcome is not None and outcome.get("headline.window") == "whole" and not grows(outcome)]
    return "; ".join(dict.fromkeys("too short for a steady state" if why.startswith("too short") else
                                   "requests lost outside the steady state" if " lost " in why else why
                                   for why in found))


def _together(outcomes: Sequence[Row | None]) -> Row | None:
    """Return the outcome of a setting: of several seeds the means, and what holds for any of them."""
    if len(outcomes) == 1:
        return outcomes[0]
    done = [one for one in outcomes if one is not None]
    wrong = next((one for one in done if one["status"] != "ok"), None)
    if wrong is not None or not done:
        return wrong
    keys = dict.fromkeys(column for _, _, column, _ in (*COLUMNS, *SOMETIMES))
    means = {key: statistics.fmean(one[key] for one in done) for key in keys
             if all(type(one.get(key)) in (int, float) for one in done)}
    said = {key: next((one[key] for one in done if one.get(key) == value), None) for key, value in (
        ("headline.window", "whole"), ("settling.settled", False))}
    return {**means, **said, "headline.stable": not any(map(grows, done)), "status": "ok"}


def _over_seeds(head: str, settings: Sequence[Setting]) -> list[str]:
    """Return a line per setting: number of seeds, means with 95% intervals, and the paired difference to the best."""
    best = best_of(settings)
    good = GOOD if any(one.mean(GOOD) is not None for one in settings) else "headline.served_per_s"
    columns = ((FIGURES[good].head, good, 1.0), *(
        (f"{FIGURES[path].name}, ms", path, 1e3) for path in ("latency.ttft_s.p99", "latency.tpot_s.p99")))
    rows = []
    for one in settings:
        far = best.differences.get(one.label)
        mark = "best" if one.label == best.label else "" if far is None or far.half is None else (
            f"{far.value:+.1%} +-{far.half:.1%}" + ("~" if one.label in best.within_noise else ""))
        cells = [_interval(one.figure(column), factor) for _, column, factor in columns]
        rows.append([str(len(one.rows)), *cells, mark])
    heads = ["n", *(name for name, _, _ in columns), "to the best"]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    first = min(max(len(text) for text in (head, *(one.label for one in settings))),
                max(SHORTEST, WIDTH - sum(widths) - 2 * len(widths)))
    lines = [shortened(label, first).ljust(first) + "".join(f"  {cell:>{width}}" for cell, width in zip(
        cells, widths, strict=True)) for label, cells in zip([head, *(one.label for one in settings)], [heads, *rows],
                                                             strict=True)]
    lines = ["means over the seeds, with 95% intervals:", *(line.rstrip() for line in lines)]
    if best.label is not None:
        lines += textwrap.wrap(f"best: {best.seen}", WIDTH, subsequent_indent="  ")
    if best.within_noise:
        lines.append("~ within noise of the best: the interval of the difference, paired by seed, holds 0")
    return lines


def _interval(figure: Mean | None, factor: float) -> str:
    if figure is None:
        return "-"
    return short_number(figure.value * factor) + ("" if figure.half is None else f" +-{figure.half * factor:.2g}")


def _cells(outcome: Row | None, figures: Figures) -> list[str]:
    if outcome is None:
        return ["waiting", *["-"] * (len(figures) - 1)]
    if outcome["status"] != "ok":
        return ["failed", *["-"] * (len(figures) - 1)]
    cells = []
    for _, _, column, factor in figures:
        value = outcome.get(column)
        if grows(outcome) and column in _PER_TOKEN:
            cells.append("grows" if column == "headline.served_per_s" else "-")
        else:
            whole = column == "headline.served_per_s" and outcome.get("headline.window") == "whole"
            unsettled = column == "headline.goodput_per_s" and outcome.get("settling.settled") is False
            cells.append("-" if value is None else short_number(value * factor) + "*" * whole + "+" * unsettled)
    return cells


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
