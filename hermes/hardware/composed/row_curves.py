"""Element-wise operators and the sampler of one model, read off a card's own tables (`rows/...`).

Shipped tables have none of them: there the roofline prices element-wise operators, and the sampler's sort is assumed.
Their time depends on the rows of a step and the width of a row. Times are nanoseconds.
"""

from __future__ import annotations

import numpy as np

from hermes.arrays import FloatArray, exp, log
from hermes.hardware.composed.kernel_tables import KernelTables, RowTable
from hermes.hardware.descriptions.models import ModelDescription
from hermes.hardware.fitted.operator_curves import rising

__all__ = ["elementwise_times", "row_times"]


def row_times(table: RowTable, rows: FloatArray, width: float) -> FloatArray:
    """Nanoseconds over numbers of rows (ascending); never falls.

    Between measured numbers of rows on a line in the logarithms, beyond the last in proportion. A width that was not
    measured takes the time of the nearest one in proportion to the width.
    """
    column = int(np.abs(log(table.width / width)).argmin())
    ns = table.ns[:, column]
    known = ~np.isnan(ns)
    measured, times = table.rows[known], ns[known] * width / table.width[column]
    found = exp(np.interp(log(rows), log(measured), log(times)))
    return rising(found * np.maximum(rows / measured[-1], 1.0))


def elementwise_times(
    kernels: KernelTables, dtype: str, model: ModelDescription, tp: int, rows: FloatArray,
) -> FloatArray | None:
    """Nanoseconds of all element-wise operators of a step, all layers; None where norm, rotation or activation was not
    measured.

    A residual sum that was not measured is part of the norm's kernel, as engines fuse them. None for mixtures of
    experts and latent attention too, whose operators have other widths.
    """
    if model.num_experts or model.mla is not None:
        return None
    hidden, heads = model.hidden_size, model.num_heads / tp + max(model.num_kv_heads / tp, 1.0)
    parts = [("norm", model.norms_per_layer, hidden), ("rotary", 1, heads * model.head_dim),
             ("activation", 1, model.intermediate_size / tp)]
    optional = [("residual", 2, hidden), *([("qk_norm", 1, heads * model.head_dim)] if model.qk_norm else [])]
    total = np.zeros(len(rows))
    for name, times, width in [*parts, *optional]:
        table = kernels.rows(name, dtype)
        if table is not None:
            total += times * model.num_layers * row_times(table, rows, width)
        elif name in ("norm", "rotary", "activation"):
            return None
    for name, times in (("embedding", 1), ("norm", int(model.final_norm))):
        table = kernels.rows(name, dtype)
        if table is not None:
            total += times * row_times(table, rows, hidden)
    return total
