"""What measured steps cannot tell: features that never vary, that move together, phases that were not measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hermes.calibration.fit_atoms import told_apart
from hermes.calibration.fit_phases import BlockFit
from hermes.calibration.fit_rows import FitRows
from hermes.calibration.steps import STATS, MeasuredSteps

__all__ = ["collinear", "excluded_lines", "limits_of"]

COLLINEAR = 0.98
"""Features whose variation the others explain to this part (R^2) cannot be told apart outside the data."""


def excluded_lines(steps: MeasuredSteps) -> list[str]:
    """What the source left out, and the rows it marked, counted by reason."""
    counts = steps.rows.loc[steps.rows["excluded"] != "", "excluded"].value_counts().sort_index()
    return [*steps.header.excluded, *(f"{reason}: {count} rows" for reason, count in counts.items())]


def collinear(rows: FitRows, phases: Sequence[str]) -> list[tuple[str, float, str]]:
    """Features that follow from the others in these rows: (feature, R^2, the one it follows most closely)."""
    used = [name for name in told_apart(rows, phases)[0] if name in STATS]  # sums follow from their parts
    table = np.column_stack([rows.columns[name] / rows.columns[name].std() for name in used]) if used else None
    if table is None or len(used) < 2 or len(rows) <= len(used) + 1:
        return []
    correlation = np.corrcoef(table, rowvar=False) - 2 * np.eye(len(used))
    out = []
    for i, name in enumerate(used):
        explained = _r2(np.delete(table, i, axis=1), table[:, i])
        if explained > COLLINEAR:
            out.append((name, explained, used[int(np.argmax(correlation[i]))]))
    return out


def _r2(others: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> float:
    matrix = np.column_stack([np.ones(len(values)), others])
    residual = values - matrix @ np.linalg.lstsq(matrix, values, rcond=None)[0]
    return float(1 - residual.var() / values.var())


def limits_of(blocks: Sequence[BlockFit], rows: FitRows, overhead_s: float) -> list[str]:
    """One line for each thing the data cannot tell."""
    out = []
    for block in blocks:
        what = ", ".join(block.phases)
        _, reasons = told_apart(block.rows, block.phases)
        if reasons:
            listed = "; ".join(f"{name} {reason}" for name, reason in reasons.items())
            out.append(f"{what}: without effect of their own: {listed}")
        for name, explained, other in collinear(block.rows, block.phases):
            out.append(
                f"{what}: {name} follows from the other features (R^2 {explained:.3f}, most of all {other}); "
                "prices along one of them alone, outside the data, are a guess"
            )
        missing = [phase for phase in block.phases if not np.any(block.rows.phase == phase)]
        if missing:
            out.append(f"{', '.join(missing)}: not measured; priced by the polynomial of the other phases")
    if not np.any(rows.phase == "mixed") and not any("mixed" in block.phases for block in blocks):
        out.append("mixed: no step with prefill and decode was measured; such steps are composed (see hardware models)")
    if overhead_s == 0:
        out.append("overhead: the engine's own time per step is not told apart; it is in the constants of the phases")
    return out
