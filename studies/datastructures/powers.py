"""Power law of graph searches: time against corpus, links and candidates, with confidence intervals.

log t = c + a log N + b log M + e log efSearch, by ordinary least squares over the medians of the measured points, with
95% intervals of each exponent. Points of one index are searches of one graph, and have related errors. The interval is
the wider of two: errors independent between indices only (Liang and Zeger, Biometrika 73, 1986; t with one degree less
than there are indices), and independent points, since few indices may agree by chance. A power law summarises the
measured points; it may not hold beyond them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hermes.core.noise import t_quantile
from hermes.errors import InputError, Verbatim
from hermes.plugins.retrieval.searches import MeasuredSearches

__all__ = ["Power", "PowerLaw", "power_law"]

Floats = npt.NDArray[np.float64]

_COLUMNS = {"vectors": "N", "hnsw_m": "M", "effort": "efSearch"}


@dataclass(frozen=True)
class Power:
    """One exponent with its 95% interval, and the values it was measured at."""

    exponent: float
    low: float
    high: float
    values: tuple[int, ...]


@dataclass(frozen=True)
class PowerLaw:
    """Fitted power law.

    Attributes:
        powers: By N, M and efSearch, those that were varied.
        residual: Relative standard deviation of the residuals.
    """

    powers: dict[str, Power]
    points: int
    residual: float


def power_law(searches: MeasuredSearches, dim: int | None = None, batch: int = 1) -> PowerLaw:
    """Fit the searches of graphs with so many dimensions (all, if None: times are only compared within one dimension)
    and queries a call. Raises `InputError` for too few points."""
    rows = searches.usable()
    rows = rows[(rows["kind"] == "hnsw") & (rows["batch"] == batch)]
    if dim is not None:
        rows = rows[rows["dim"] == dim]
    table = rows.groupby(["vectors", "dim", "hnsw_m", "effort"], as_index=False)["time_s"].median()
    varied = [name for name in _COLUMNS if table[name].nunique() > 1]
    dims = sorted(table["dim"].unique())
    free = len(table) - len(varied) - len(dims)
    if free < 1 or not varied:
        raise InputError("more points of graph searches than exponents", Verbatim(f"{len(table)} points"))
    levels = [(table["dim"] == value).to_numpy(float) for value in dims]
    x = np.column_stack([*(np.log(table[name].to_numpy(float)) for name in varied), *levels])
    y = np.log(table["time_s"].to_numpy(float))
    found, *_ = np.linalg.lstsq(x, y, rcond=None)
    left = y - x @ found
    variance = float(left @ left) / free
    inverse = np.linalg.inv(x.T @ x)
    reach = t_quantile(free + 1) * np.sqrt(variance * np.diag(inverse))
    index = np.asarray(table.groupby(["vectors", "dim", "hnsw_m"]).ngroup(), dtype=np.int64)
    reach = np.maximum(reach, _clustered_reach(x, left, index, inverse))
    powers = {
        _COLUMNS[name]: Power(float(found[i]), float(found[i] - reach[i]), float(found[i] + reach[i]),
                              tuple(int(value) for value in sorted(table[name].unique())))
        for i, name in enumerate(varied)
    }
    return PowerLaw(powers, len(table), float(np.sqrt(variance)))


def _clustered_reach(x: Floats, left: Floats, index: npt.NDArray[np.int64], inverse: Floats) -> Floats:
    """Return half widths for errors that are related within an index; 0 if there are too few indices to tell.

    Args:
        x: Design, shape (points, columns).
        left: Residuals, shape (points,).
        index: Index of each point.
        inverse: Inverse of x'x.
    """
    points, columns = x.shape
    groups = np.unique(index)
    if len(groups) <= columns:
        return np.zeros(columns)
    scores = np.array([x[index == group].T @ left[index == group] for group in groups])
    scale = len(groups) / (len(groups) - 1) * (points - 1) / (points - columns)   # small-sample correction, as in Stata
    covariance = scale * inverse @ (scores.T @ scores) @ inverse
    return np.asarray(t_quantile(len(groups)) * np.sqrt(np.diag(covariance)))
