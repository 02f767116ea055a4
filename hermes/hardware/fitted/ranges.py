"""Count the steps of runs outside the range that a model was measured on, in closed form over all runs at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hermes.arrays import FloatArray, IntArray
from hermes.hardware.fitted.terms import feature_columns

__all__ = ["steps_outside"]

Ranges = Mapping[str, Sequence[float]]


def steps_outside(ranges: Ranges, columns: Mapping[str, IntArray | FloatArray], num_steps: IntArray) -> IntArray:
    """Return, per run, the steps in which a feature of `ranges` is outside its [lowest, highest]; shape (runs,).

    A feature is `start + j * slope` in step j: slope is decode_seqs for decode_ctx, 1 for decode_ctx_max, 0 for the
    rest. So the steps inside all ranges are one interval of j, the intersection of one interval per feature.
    """
    values = feature_columns(columns)
    first = np.zeros(len(num_steps))
    last = np.asarray(num_steps, dtype=np.float64) - 1
    slopes = {"decode_ctx": values["decode_seqs"], "decode_ctx_max": np.minimum(values["decode_seqs"], 1.0)}
    for name, (low, high) in ranges.items():
        start = values[name]
        slope = slopes.get(name, np.zeros(len(num_steps)))
        moves = slope > 0
        divisor = np.where(moves, slope, 1.0)
        inside = (start >= low) & (start <= high)
        first = np.maximum(first, np.where(moves, np.ceil((low - start) / divisor), np.where(inside, 0.0, np.inf)))
        last = np.minimum(last, np.where(moves, np.floor((high - start) / divisor), last))
    kept = np.maximum(last - first + 1, 0.0)
    return np.asarray(num_steps, dtype=np.int64) - kept.astype(np.int64)
