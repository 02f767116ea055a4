"""Compare a run with several repetitions of an observation: means over them, and the noise of these means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core.noise import spread
from hermes.errors import InputError
from hermes.results.compare.observed import ObservedReport
from hermes.results.figures.catalogue import LATENCIES

if TYPE_CHECKING:
    from hermes.results.compare import CompareRow, CompareTable

__all__ = ["beyond_noise", "over_repetitions"]


def over_repetitions(tables: Sequence[CompareTable], report: ObservedReport, folder: Path) -> CompareTable:
    """Return one table of the comparisons with each repetition that counts (`report.counted()`), in their order.

    Raises `InputError` if the repetitions give different metrics.
    """
    rows = []
    for one, table in zip(report.counted(), tables, strict=True):
        if {row.metric for row in table.rows} != {row.metric for row in tables[0].rows}:
            raise InputError("the same columns of times as in the other repetitions", file=str(folder / one.file))
    for alike in zip(*(table.rows for table in tables), strict=True):
        ours, seen = alike[0].ours_s, [row.reference_s for row in alike if row.reference_s is not None]
        if len(seen) < max(2, len(tables)) or sum(seen) <= 0:
            rows.append(alike[0])
            continue
        found = spread(seen)
        error = None if ours is None else (ours - found.mean) / found.mean
        rows.append(replace(alike[0], reference_s=found.mean, error=error, noise_s=found.ci95))
    remarks = report.remarks()
    if len(tables) > 1 and tables[0].per_request:
        remarks.append(f"errors of single requests are those of attempt {report.counted()[0].number}")
    return replace(tables[0], rows=rows, repetitions=len(tables), remarks=remarks)


def beyond_noise(rows: Sequence[CompareRow], repetitions: int) -> str:
    """Return a line: on which figures the difference is larger than the noise of the repetitions."""
    beyond = [f"{LATENCIES[row.metric]} {row.stat}" for row in rows
              if row.difference_s is not None and row.noise_s is not None and abs(row.difference_s) > row.noise_s]
    return (f"beyond the noise of {repetitions} repetitions: {', '.join(beyond) or 'nothing'} (noise: 95% interval of "
            "the mean over them)")
