"""One figure of an accuracy table: measured, predicted, and what the best other simulator predicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hermes.hardware.trust import Trust

__all__ = ["STATISTICS", "Case", "Figures", "Row", "rows_of", "statistics"]

STATISTICS = {"mean": None, "p50": 50.0, "p90": 90.0, "p99": 99.0}
Figures = Mapping[tuple[str, str], float]
"""(metric, statistic) -> value; seconds, or the unit that the metric's name ends in."""


class Case(NamedTuple):
    """One server and one load of a reference set.

    trust: class and range of the prediction's step times; None where it is no prediction of times.
    """

    set: str
    case: str
    engine: str
    card: str
    model: str
    trust: Trust | None = None


class Row(NamedTuple):
    """One figure of a case. `peer` is the error of the best other simulator with a published prediction, or None."""

    case: Case
    metric: str
    stat: str
    measured: float
    predicted: float
    peer: float | None = None

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.measured - 1.0


def statistics(columns: Mapping[str, Iterable[float]]) -> dict[tuple[str, str], float]:
    """Mean and percentiles of each column; rows that are not finite are left out."""
    out: dict[tuple[str, str], float] = {}
    for metric, values in columns.items():
        array: npt.NDArray[np.float64] = np.asarray(list(values), dtype=np.float64)
        array = array[np.isfinite(array)]
        for stat, share in STATISTICS.items():
            if len(array):
                out[metric, stat] = float(array.mean() if share is None else np.percentile(array, share))
    return out


def rows_of(case: Case, measured: Figures, predicted: Figures, peers: Figures | None = None) -> Iterator[Row]:
    """A row for each measured figure that was predicted."""
    for key, value in measured.items():
        if key in predicted and value > 0:
            yield Row(case, *key, value, predicted[key], None if peers is None else peers.get(key))
