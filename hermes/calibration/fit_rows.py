"""What a fit sees of measured steps: columns of features, times, configurations, and who is held out with whom."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from hermes.calibration.steps import STATS, phase_of
from hermes.hardware.base import FloatArray
from hermes.hardware.terms import feature_columns

__all__ = ["FitRows", "Mask", "folds", "mape"]

Labels = npt.NDArray[np.str_]
Mask = npt.NDArray[np.bool_]
IntVector = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FitRows:
    """Rows a fit may use; all arrays of shape (rows,).

    `columns` holds the `StepStats` fields and their sums (`hermes.hardware.terms.FEATURES`), `seconds` the measured
    time of the whole step, of which `overhead_s` is the engine's constant part that no phase contains.
    """

    columns: Mapping[str, FloatArray]
    seconds: FloatArray
    overhead_s: float
    configuration: Labels
    phase: Labels

    @classmethod
    def of(cls, rows: pd.DataFrame, overhead_s: float) -> FitRows:
        """From rows in the format of `hermes.calibration.steps`."""
        return cls(
            columns=feature_columns({name: rows[name].to_numpy() for name in STATS}),
            seconds=rows["time_s"].to_numpy(np.float64), overhead_s=overhead_s,
            configuration=rows["configuration"].to_numpy(np.str_), phase=phase_of(rows),
        )

    def __len__(self) -> int:
        return len(self.seconds)

    def where(self, mask: Mask) -> FitRows:
        """A part of the rows."""
        return FitRows(
            {name: values[mask] for name, values in self.columns.items()}, self.seconds[mask], self.overhead_s,
            self.configuration[mask], self.phase[mask],
        )

    @cached_property
    def configurations(self) -> int:
        """How many there are."""
        return len(np.unique(self.configuration))

    @cached_property
    def different_steps(self) -> int:
        """How many different batches there are."""
        return len(np.unique(np.column_stack([self.columns[name] for name in STATS]), axis=0))

    def weights(self) -> FloatArray:
        """One over the rows of the same configuration: every configuration counts the same."""
        _, index, count = np.unique(self.configuration, return_inverse=True, return_counts=True)
        return np.asarray(1.0 / count[index], dtype=np.float64)


def folds(configuration: Labels, most: int) -> IntVector:
    """The fold of each row, shape (rows,): whole configurations, spread over at most `most` folds of equal size.

    The assignment depends on the names alone (their hashes), not on the order of the rows or a random seed.
    """
    names = np.unique(configuration)
    order = sorted(range(len(names)), key=lambda i: hashlib.sha256(str(names[i]).encode()).digest())
    fold = np.empty(len(names), dtype=np.int64)
    fold[order] = np.arange(len(names)) % most
    return np.asarray(fold[np.searchsorted(names, configuration)])


def mape(predicted: FloatArray, rows: FitRows) -> float:
    """Mean absolute relative error, a fraction; every configuration counts once."""
    weights = rows.weights()
    return float(np.sum(weights * np.abs(predicted / rows.seconds - 1)) / np.sum(weights))
