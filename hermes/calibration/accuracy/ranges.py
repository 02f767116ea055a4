"""Whether the ranges of results hold: found on all reference sets but one, counted on that one.

A cell is one figure of one case whose prediction rests on step times with a class and a range. The power of its kind of
result (`hermes.hardware.result_ranges`) is found on the cells of the other folders of data, and the cell counts as
inside if what was measured lies in the range that follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hermes.calibration.accuracy.served import Row
from hermes.hardware.result_ranges import FAMILIES, LEAST, family_of, range_by_power
from hermes.hardware.trust import Kind, Trust

__all__ = ["CLASSES", "Cell", "Coverage", "cells_of", "coverage", "found_power"]

CLASSES: tuple[Kind, ...] = ("measured", "near", "guess")
WITHIN = {"times": 0.9, "times p99": 0.92, "ttft": 0.92, "ttft p99": 0.95}   # share of cells whose power is enough
SEVERAL = 3   # folders of data on which a power of one class is found; with fewer, on the cells of all classes
NO_TIME = ("identical steps", "watts", "joules per token")
SURVIVORS = "survivors"   # sets that hold only what was answered in time


class Cell(NamedTuple):
    """One figure. ratio: the measured time over the predicted one (of a rate: the other way round)."""

    folder: str
    steps: Trust
    family: str
    ratio: float

    @property
    def power(self) -> float:
        """The power of the steps' range that reaches what was measured."""
        end = self.steps.high if self.ratio > 1.0 else self.steps.low
        return math.log(self.ratio) / math.log(end)


class Coverage(NamedTuple):
    """Cells of one class of results, and of one kind or ("all") of every kind.

    low, high: factors, the median of their ranges' ends; inside: the share of cells in their range.
    """

    kind: Kind
    family: str
    cells: int
    low: float
    high: float
    inside: float


def cells_of(rows: Mapping[str, Iterable[Row]]) -> list[Cell]:
    """Return the cells of rows by the name of their folder. Left out: what is no time, what has no range (a queue that
    grows, another simulator's answers), and survivors."""
    found = []
    for folder, of in rows.items():
        for row in of:
            trust = row.case.trust
            if trust is None or row.metric in NO_TIME or SURVIVORS in row.case.set or row.predicted <= 0.0:
                continue
            ratio = row.measured / row.predicted
            rate = row.metric.endswith("/s")
            found.append(Cell(folder, trust, family_of(row.metric, row.stat), 1.0 / ratio if rate else ratio))
    return found


def found_power(cells: Sequence[Cell], kind: Kind, family: str) -> float:
    """Return the power that is enough for most cells of a kind of result on steps of a class; nan without any."""
    of_kind = [cell for cell in cells if cell.family == family]
    same = [cell for cell in of_kind if cell.steps.kind == kind]
    chosen = same if len({cell.folder for cell in same}) >= SEVERAL else of_kind
    if not chosen:
        return math.nan
    least = LEAST[kind] if family == "times" else 1.0
    return max(float(np.quantile([cell.power for cell in chosen], WITHIN[family])), least)


def coverage(cells: Sequence[Cell]) -> list[Coverage]:
    """Return how many cells lie in ranges that were found without their folder, by class of the result and kind."""
    folders = list(dict.fromkeys(cell.folder for cell in cells))
    powers = {
        (folder, kind, family): found_power([cell for cell in cells if cell.folder != folder], kind, family)
        for folder in folders for kind in CLASSES for family in FAMILIES}
    groups: dict[tuple[Kind, str], list[tuple[Trust, bool]]] = {}
    for cell in cells:
        power = powers[cell.folder, cell.steps.kind, cell.family]
        if math.isnan(power):
            continue
        ranged = range_by_power(cell.steps, cell.family, power)
        inside = ranged.low <= cell.ratio <= ranged.high
        for family in ("all", cell.family):
            groups.setdefault((ranged.kind, family), []).append((ranged, inside))
    return [
        Coverage(kind, family, len(of), float(np.median([one.low for one, _ in of])),
                 float(np.median([one.high for one, _ in of])), float(np.mean([inside for _, inside in of])))
        for kind in CLASSES for family in ("all", *FAMILIES) if (of := groups.get((kind, family)))]
