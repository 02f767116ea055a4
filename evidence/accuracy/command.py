"""The command `hermes accuracy`: predictions compared with every reference set of a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evidence.accuracy.table import (
    LEFT_OUT,
    SETS,
    Bars,
    cells_of,
    coverage,
    lines,
    measure,
    missed,
    outside,
)
from hermes.cli.output import Answer
from hermes.config.files import read_json
from hermes.config.validation import load
from hermes.errors import InputError, suggest
from hermes.results.layout import Part, Section, labelled
from hermes.units import counted

__all__ = ["accuracy"]

RISE = 0.02
SHOWN = ("count", "mean", "p99")


def accuracy(data: Path, only: Sequence[str], bars: Path | None, against: Path | None, *, verbose: bool) -> Answer:
    """Return the tables of errors and ranges. Arguments are the command's options (`hermes/cli/evidence.py`)."""
    for name in only:
        if name not in SETS:
            raise InputError(f"one of {', '.join(SETS)}", name, field="--only", suggestion=suggest(name, SETS))
    if not data.is_dir():
        raise InputError("a folder with reference sets", str(data), field="--data")
    wanted = load(Bars, bars) if bars else None
    before = _medians(read_json(against), against) if against else {}
    by_set, absent = {}, []
    for name in dict.fromkeys(only or SETS):
        found = measure(data, name)
        if found is None:
            absent.append(f"{name}: {SETS[name].absent(data)}")
        by_set[name] = found or []
    rows = [row for found in by_set.values() for row in found]
    cells = cells_of(by_set) if not only else []   # ranges of one set alone rest on nothing
    covered = [one for left_out in LEFT_OUT for one in coverage(cells, left_out)]
    if wanted and only:   # bars of sets that were not asked for say nothing
        asked = {row.case.set for row in rows}
        wanted = wanted.model_copy(update={"bars": [bar for bar in wanted.bars if bar.set in asked]})
    table = lines(rows)
    wrong = missed(wanted, rows) + (outside(wanted, covered) if covered else []) if wanted else []
    risen = [(line, before[line.key]) for line in table if line.median > before.get(line.key, 1e9) + RISE]
    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f}"

    shown = {line.key for line in table}
    stated = {name: SETS[name].given for name in by_set if by_set[name]}
    parts: list[Part] = [Section(
        "", ["set", "engine", "card", "model", "metric", "", "cases", "median %", "worst %", "best peer %"],
        [[*line.key, line.cases, percent(line.median), f"{100 * line.worst:+.1f}", percent(line.peer)]
         for line in table if verbose or line.stat in SHOWN or not shown & {(*line.key[:5], stat) for stat in SHOWN}])]
    if covered:
        parts.append(Section(
            "Ranges of results, found without what is scored",
            ["left out", "", "class", "results", "cells", "range %", "inside %"],
            [[one.left_out, one.value, one.kind, one.family, one.cells,
              f"{100 * one.low - 100:+.0f} to {100 * one.high - 100:+.0f}", percent(one.inside)]
             for one in covered if verbose or one.family == one.value == "all"]))
    if stated:
        parts += ["What the scenarios of a set give besides the model, the card and the load:",
                  labelled(list(stated.items()))]
    parts += [f"left out: {text}" for text in absent]
    parts += [f"missed: {json.dumps(miss)}" for miss in wrong]
    parts += [f"risen: {' '.join(line.key)}: {percent(old)} to {percent(line.median)}%" for line, old in risen]
    parts += [f"{counted(len(wanted.bars), 'bar')}, {len(wrong)} missed"] if wanted else []
    answer = {
        "lines": [{"about": line.key, "cases": line.cases, "median": line.median, "worst": line.worst,
                   "peer": line.peer} for line in table],
        "ranges": [one._asdict() for one in covered], "given": stated, "left_out": absent,
        "missed": wrong, "risen": [line.key for line, _ in risen]}
    return Answer(answer, parts, int(bool(wrong or risen)))


def _medians(found: Any, file: Path) -> dict[tuple[str, ...], float]:
    """Return the median error of each line of an earlier output."""
    try:
        return {tuple(line["about"]): float(line["median"]) for line in found["lines"]}
    except (KeyError, TypeError, ValueError, OverflowError):
        raise InputError("what `hermes accuracy --json` printed", file=str(file)) from None
