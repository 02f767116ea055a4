"""The overhead that each model would need for the paper's sums."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from hermes.clients.overhead import load_overhead
from hermes.study import Point, Table

from .points import IBS, MISTRAL, PROFILE, model_mix
from .tables import PAPER, PAPER_MODELS, Rows, ratio, served

__all__ = ["NEAR", "WANTED", "Cell", "Needed", "needed_table", "solve"]

Cell = tuple[str, int]   # model, percent embeddings
WANTED: dict[Cell, float] = {
    **{(MISTRAL, percent): paper[IBS][2] for percent, paper in PAPER.items()},
    **{(model, percent): paper[IBS][2] for model, sums in PAPER_MODELS.items() for percent, paper in sums.items()},
}
NEAR, ROUNDS = 0.01, 12   # share of the paper's sum within which a factor is found; most simulations of one cell


class Needed(NamedTuple):
    """What a cell needs for the paper's sum.

    factor: On Mistral-7B's fitted overheads; None where no overhead gives that sum. without: the sum without any.
    """

    factor: float | None
    without: float


def solve(sums: Callable[[dict[Cell, float]], dict[Cell, float]], wanted: dict[Cell, float],
          ) -> dict[Cell, list[tuple[float, float]]]:
    """Return what was tried for each cell: (factor on the overheads, sum), the sum nearest to the wanted one last.

    A cell whose sum is below the wanted one without any overhead is tried there, and no further. The time per request
    grows with the overhead, so the next factor is where a line through the inverse sums on either side has the wanted
    one.

    Args:
        sums: Returns the sums of cells, each at its factor.
    """
    without = sums(dict.fromkeys(wanted, 0.0))
    tried = {cell: [(0.0, total)] for cell, total in without.items()}
    factors = {cell: 1.0 for cell, total in without.items() if total > wanted[cell]}
    for _ in range(ROUNDS):
        if not factors:
            break
        for cell, total in sums(factors).items():
            tried[cell].append((factors[cell], total))
            if abs(total / wanted[cell] - 1) <= NEAR:
                del factors[cell]
            else:
                factors[cell] = _next(tried[cell], wanted[cell])
    return {cell: sorted(found, key=lambda one: -abs(one[1] - wanted[cell])) for cell, found in tried.items()}


def _next(tried: list[tuple[float, float]], wanted: float) -> float:
    low, more = max(one for one in tried if one[1] > wanted)
    above = [one for one in tried if one[0] > low]
    if not above:
        return 2 * low
    high, less = min(above)
    return low + (high - low) * (1 / wanted - 1 / more) / (1 / less - 1 / more)


def needed_table(simulate: Callable[[list[Point]], Rows], folder: Path, mode: str, options: dict[str, Any],
                 ) -> tuple[Table, dict[Cell, Needed]]:
    """Return the table, and what each cell needs for Orthrus's sum to be the paper's.

    Args:
        simulate: Simulates points.
        mode: Reading of the overhead.
        options: Of the engines.
    """
    def sums(factors: dict[Cell, float]) -> dict[Cell, float]:
        made = {cell: model_mix(folder, cell[0], IBS, cell[1], mode=mode, factor=factor, **options)
                for cell, factor in factors.items()}
        rows = simulate(list(made.values()))
        return {cell: served(rows[point.label])[2] for cell, point in made.items()}

    fitted = getattr(load_overhead(PROFILE), mode)
    as_fitted = sums(dict.fromkeys(WANTED, 1.0))
    needed: dict[Cell, Needed] = {}
    lines = []
    for cell, tried in solve(sums, WANTED).items():
        factor, total = tried[-1]
        known = abs(total / WANTED[cell] - 1) <= NEAR
        needed[cell] = Needed(factor if known else None, dict(tried)[0.0])
        lines.append({
            "model": cell[0], "embed:gen": ratio(cell[1]), "paper": WANTED[cell], "as fitted": as_fitted[cell],
            "no overhead": needed[cell].without, "factor": needed[cell].factor,
            "ms per embedding": 1e3 * factor * fitted.embed if known else None,
            "ms per generation": 1e3 * factor * fitted.generate if known else None,
            "sum there": total if known else None,
            "outcome": "found" if known else "none, even without" if total < WANTED[cell] else "not found",
        })
    digits = {column: 2 for column in lines[0] if column not in ("model", "embed:gen", "outcome")}
    return Table("needed", f"Overhead that each model would need for the paper's sums ({mode})", pd.DataFrame(lines),
                 f"A factor on Mistral-7B's two fitted overheads, within {NEAR:.0%} of the paper's sum. None is low "
                 "enough where the sum without any overhead is below the paper's.", digits), needed
