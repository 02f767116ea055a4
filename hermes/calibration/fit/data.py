"""Data of a fit: features, times and configurations of measured steps; the noise of repeated steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from hermes.arrays import BoolArray, FloatArray
from hermes.calibration.comparison import compare_times, group_weights
from hermes.calibration.steps import STATS, STEP, phase_of
from hermes.core.noise import Spread, spread
from hermes.hardware.fitted.profile import Noise
from hermes.hardware.fitted.terms import feature_columns

__all__ = ["PHASES", "FitRows", "Mask", "label", "neighbour_error", "noise_of", "repeats"]

PHASES = ("prefill", "decode", "mixed")
MOST_LISTED = 10
FEWEST = 30
ALIKE = 0.2

Mask = BoolArray


@dataclass(frozen=True)
class FitRows:
    """Rows a fit may use; all arrays of shape (rows,).

    `columns` holds the `StepStats` fields and their sums (`hermes.hardware.fitted.terms.FEATURES`), `seconds` the
    measured time of the whole step, of which `overhead_s` is the engine's constant part that no phase contains.
    """

    columns: Mapping[str, FloatArray]
    seconds: FloatArray
    overhead_s: float
    configuration: npt.NDArray[np.str_]
    phase: npt.NDArray[np.str_]

    @classmethod
    def of(cls, rows: pd.DataFrame, overhead_s: float) -> FitRows:
        """Convert rows in the format of `hermes.calibration.steps`."""
        return cls(
            columns=feature_columns({name: rows[name].to_numpy() for name in STATS}),
            seconds=rows["time_s"].to_numpy(np.float64), overhead_s=overhead_s,
            configuration=rows["configuration"].to_numpy(np.str_), phase=phase_of(rows),
        )

    def __len__(self) -> int:
        return len(self.seconds)

    def where(self, rows: npt.NDArray[Any]) -> FitRows:
        """Return a part of the rows, by mask or index."""
        return FitRows(
            {name: values[rows] for name, values in self.columns.items()}, self.seconds[rows], self.overhead_s,
            self.configuration[rows], self.phase[rows],
        )

    @cached_property
    def matrix(self) -> FloatArray:
        """Return the statistics in the order of `STATS`, shape (rows, 8)."""
        return np.column_stack([self.columns[name] for name in STATS])

    @cached_property
    def configurations(self) -> int:
        """Number of rows."""
        return len(np.unique(self.configuration))

    @cached_property
    def different_steps(self) -> int:
        """Number of different batches."""
        return len(np.unique(self.matrix, axis=0))

    @cached_property
    def weights(self) -> FloatArray:
        """Return one over the rows of the same configuration, so that every configuration counts the same."""
        return group_weights(self.configuration)

    def mape(self, predicted: FloatArray) -> float:
        """Return the mean absolute relative error of predictions for these rows; every configuration counts once."""
        return compare_times(predicted, self.seconds, self.weights).mape


def repeats(rows: pd.DataFrame) -> list[tuple[str, Spread]]:
    """Return (description, spread of its times) for every different step, in order of first appearance."""
    grouped = rows.groupby(STEP, sort=False, dropna=False)["time_s"]
    return [(label(key), spread(times)) for key, times in grouped]


def label(key: tuple[object, ...]) -> str:
    """Describe a step by its configuration and its largest statistics."""
    stats = dict(zip(STATS, key[1:], strict=True))
    shown = ("prefill_tokens", "prefill_past", "decode_seqs", "decode_ctx")
    return f"{key[0]} ({', '.join(f'{name} {stats[name]}' for name in shown if stats[name])})"


def neighbour_error(rows: pd.DataFrame) -> float | None:
    """Return the error of predicting a step by the mean of the steps before and after it; None for fewer than `FEWEST`.

    Counts triples of one configuration in sequence, with equal tokens and sequences, and with contexts and attention
    pairs within `ALIKE`. Without repetitions this measures the noise, a lower bound for any fit. A mean absolute
    relative error.
    """
    ordered = rows.sort_values("sequence", kind="stable")
    key = pd.factorize(pd.MultiIndex.from_frame(ordered[["configuration", "prefill_tokens", "decode_seqs"]]))[0]
    sequence, time_s = ordered["sequence"].to_numpy(), ordered["time_s"].to_numpy()
    alike = (key[:-2] == key[1:-1]) & (key[2:] == key[1:-1]) & (sequence[2:] == sequence[:-2] + 2)
    for name in ("prefill_attn", "decode_ctx"):
        values = ordered[name].to_numpy()
        change = np.abs(np.diff(values)) <= ALIKE * values[1:]
        alike &= change[1:] & change[:-1]
    if alike.sum() < FEWEST:
        return None
    return float(np.mean(np.abs((time_s[:-2] + time_s[2:]) / 2 / time_s[1:-1] - 1)[alike]))


def noise_of(rows: pd.DataFrame) -> Noise | None:
    """Return statistics over the repeated steps of some rows; None without repetitions."""
    found = repeats(rows)
    repeated = [(name, entry) for name, entry in found if entry.samples > 1]
    if not repeated:
        return None
    bad = sorted((e for e in repeated if e[1].verdict in ("flaky", "rejected")), key=lambda e: -e[1].cv)
    classes = Counter(str(entry.verdict) for _, entry in found)
    return Noise(
        median_cv=float(np.median([entry.cv for _, entry in repeated])),
        max_cv=max(entry.cv for _, entry in repeated),
        median_ci95=float(np.median([entry.ci95 / entry.mean for _, entry in repeated])),
        classes={name: classes[name] for name in ("excellent", "good", "flaky", "rejected", "single") if classes[name]},
        flaky=[f"{name}: CV {entry.cv:.0%}, {entry.verdict}" for name, entry in bad[:MOST_LISTED]],
    )
