"""`measure: ivf`: measure the overlap on a real index, and choose the model that predicts it best.

Every configuration of a family is fitted to one cell of each rewrite's curve (as many clusters prefetched as probed, a
sixteenth of all) and predicts the others. If its spread is fitted too, it also takes the cell with four times as many
prefetched clusters, which shows how unequally the rewrites of one kind move their queries. The best configuration has
the least mean error over the cells that it did not see. Cells come with standard errors over the queries, the limit of
any prediction.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from hermes.calibration.collect.ivf_overlap import IvfData, OverlapIndex
from hermes.config import ConfigModel
from hermes.config.validation import load
from hermes.config.yaml_writer import to_yaml
from hermes.errors import InputError
from hermes.plugins.telerag.overlap import (
    Curve,
    fit_bias,
    fit_strength,
    fit_strength_and_spread,
    make_family,
    overlap_curve,
)
from hermes.plugins.telerag.overlap.curves import shared
from hermes.plugins.telerag.overlap.sizes import Ints

__all__ = ["CONFIGURATIONS", "IvfOverlap", "load_overlap", "measure_overlap", "save_overlap"]

CONFIGURATIONS: tuple[tuple[str, dict[str, float], bool], ...] = (
    ("gaussian", {}, False), ("gaussian", {"spread": 0.5}, False), ("gaussian", {}, True),
    ("noise", {}, False), ("noise", {"spread": 0.5}, False), ("noise", {}, True), ("redraw", {}, False),
    ("moved", {"dimensions": 8}, False), ("moved", {"dimensions": 8}, True),
    ("moved", {"dimensions": 32}, False), ("moved", {"dimensions": 32}, True),
)
"""Family, shape, and whether the spread of the strengths is fitted too."""
_QUERIES = 512         # drawn for a curve of the model: its standard error is below half a point
_SHARES = (64, 32, 16, 8, 4)
_FITTED, _WIDER = (2, 1), (4, 1)   # cells of a curve: (budget, nprobe)
_REPETITIONS = 10


class Prediction(ConfigModel):
    """Prediction of one rewrite by a configuration: points of overlap, mean and worst error over the cells it did not
    see."""

    rewrite: str
    strength: float | None
    """None if no strength reaches the fitted cell."""
    spread: float | None
    """Spread of the strengths, given or fitted."""
    mean_error: float | None
    worst_error: float | None
    worst_cell: list[int] | None
    """Prefetched clusters and nprobe of the worst."""
    worst_noise: float | None
    """Standard error of the measurement there, points."""


class Candidate(ConfigModel):
    """A family with its shape, and the errors of its predictions."""

    family: str
    shape: dict[str, float]
    spread_fitted: bool
    bias: float
    mean_error: float
    worst_error: float
    predictions: list[Prediction]


class Measured(ConfigModel):
    """Overlap of one rewrite, rows: prefetched clusters, columns: nprobe."""

    rewrite: str
    overlap: list[list[float]]
    standard_error: list[list[float]]


class IvfOverlap(ConfigModel):
    """Measurements of one index."""

    format: Literal["hermes-ivf-overlap/2"] = "hermes-ivf-overlap/2"
    index: dict[str, Any]
    """Vectors, dim, clusters, seed, source, and seconds to build it."""
    size_sigma: Annotated[float, Field(ge=0)]
    """Standard deviation of the logarithms of the cluster sizes."""
    probed_over_mean: dict[str, float]
    """Mean size of the probed clusters over that of all, by nprobe."""
    budgets: list[int]
    nprobes: list[int]
    measured: list[Measured]
    candidates: list[Candidate]
    """Best first."""
    scans: list[dict[str, Any]]
    """Bytes/s of exact scans by faiss."""
    merges: list[dict[str, Any]]
    """Seconds to pick the best of so many candidates."""
    accelerator: dict[str, Any] | None
    """Copy and scan rates of a GPU, and a loop like HyDE's on it; None without a GPU."""
    environment: dict[str, Any]


def measure_overlap(data: IvfData, source: str, nlist: int, *, threads: int, seed: int, speed: bool,
                    say: Callable[[str], None] = print) -> IvfOverlap:
    """Build, rank, compare, fit. Raises `InputError` for an index that is too small."""
    if not 16 <= nlist <= len(data.vectors) // 16:
        raise InputError(f"between 16 and a sixteenth of the {len(data.vectors)} vectors", nlist, field="--nlist")
    say(f"building {nlist} clusters over {len(data.vectors):,} vectors")
    index = OverlapIndex(data, nlist, threads, seed)
    sizes = index.sizes * 4 * data.vectors.shape[1]
    budgets, nprobes = [max(1, nlist // s) for s in _SHARES], [max(1, nlist // s) for s in (32, 16, 8)]
    before = index.ranking(data.queries)
    curves = {name: shared(before, index.ranking(vectors), budgets, nprobes) for name, vectors in index.rewrites()}
    say(f"{len(curves)} rewrites of {len(data.queries)} queries measured; fitting")
    probed = float(sizes[before[:, : nprobes[1]]].mean())
    candidates = [_candidate(Configuration(*one), sizes, probed, curves) for one in CONFIGURATIONS]
    filled = np.log(index.sizes[index.sizes > 0])
    counts = sorted({1, threads})
    return IvfOverlap(
        index={"vectors": len(data.vectors), "dim": data.vectors.shape[1], "clusters": nlist, "seed": seed,
               "queries": len(data.queries), "source": source, "build_s": round(index.build_s, 1),
               "empty_clusters": int((index.sizes == 0).sum())},
        size_sigma=round(float(filled.std()), 4),
        probed_over_mean={str(p): round(float(index.sizes[before[:, :p]].mean() / index.sizes.mean()), 4)
                          for p in nprobes},
        budgets=budgets, nprobes=nprobes,
        measured=[Measured(rewrite=name, overlap=np.round(c.overlap, 4).tolist(),
                           standard_error=np.round(c.error, 4).tolist()) for name, c in curves.items()],
        candidates=sorted(candidates, key=lambda c: c.mean_error),
        scans=[index.scan_speed(nprobes[1], t, _REPETITIONS) for t in counts] if speed else [],
        merges=[index.merge_time(n, 3, _REPETITIONS) for n in (10_000, 100_000, 1_000_000)] if speed else [],
        accelerator=None, environment=index.environment(),
    )


class Configuration(NamedTuple):
    """Fit one of `CONFIGURATIONS`."""

    family: str
    shape: dict[str, float]
    spread_fitted: bool


def _candidate(config: Configuration, sizes: Ints, probed: float, curves: dict[str, Curve]) -> Candidate:
    nprobe = next(iter(curves.values())).nprobes[_FITTED[1]]
    bias = fit_bias(make_family(config.family, **config.shape), sizes, probed, nprobe, queries=_QUERIES)
    found = [_predict(config, bias, sizes, rewrite, curve) for rewrite, curve in curves.items()]
    means = [p.mean_error for p in found if p.mean_error is not None]
    worst = [p.worst_error for p in found if p.worst_error is not None]
    return Candidate(
        family=config.family, shape=config.shape, spread_fitted=config.spread_fitted, bias=round(bias, 5),
        predictions=found, mean_error=round(float(np.mean(means)), 3) if means else 100.0,
        worst_error=max(worst, default=100.0),
    )


def _fit(config: Configuration, bias: float, sizes: Ints, curve: Curve) -> tuple[float, float]:
    """Return (strength, spread) from one cell or two."""
    target, nprobe = float(curve.overlap[_FITTED]), curve.nprobes[_FITTED[1]]
    budget, wider = (curve.budgets[cell[0]] for cell in (_FITTED, _WIDER))
    if config.spread_fitted:
        cells = (budget, target), (wider, float(curve.overlap[_WIDER]))
        return fit_strength_and_spread(config.family, config.shape, cells, nprobe, bias, sizes, queries=_QUERIES)
    family = make_family(config.family, **config.shape)
    return fit_strength(family, target, bias, sizes, budget, nprobe, queries=_QUERIES), family.spread


def _predict(config: Configuration, bias: float, sizes: Ints, rewrite: str, curve: Curve) -> Prediction:
    """Fit, and predict the cells that were not fitted."""
    try:
        strength, spread = _fit(config, bias, sizes, curve)
    except InputError:
        return Prediction(rewrite=rewrite, strength=None, spread=None, mean_error=None, worst_error=None,
                          worst_cell=None, worst_noise=None)
    family = make_family(config.family, **{**config.shape, "spread": spread})
    drawn = overlap_curve(family, strength, bias, sizes, curve.budgets, curve.nprobes, queries=_QUERIES)
    error = 100 * np.abs(drawn.overlap - curve.overlap)
    error[_FITTED] = np.nan
    if config.spread_fitted:
        error[_WIDER] = np.nan
    row, column = np.unravel_index(int(np.nanargmax(error)), error.shape)
    return Prediction(
        rewrite=rewrite, strength=round(strength, 5), spread=round(spread, 3),
        mean_error=round(float(np.nanmean(error)), 3), worst_error=round(float(error[row, column]), 3),
        worst_cell=[curve.budgets[row], curve.nprobes[column]],
        worst_noise=round(100 * float(curve.error[row, column]), 3),
    )


def load_overlap(path: Path) -> IvfOverlap:
    """Load a file of this format. Raises `InputError` naming the file and the field."""
    return load(IvfOverlap, path, str(path))


def save_overlap(found: IvfOverlap, path: Path) -> None:
    """Write the measurement as YAML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_yaml(found.model_dump(mode="json")), encoding="utf-8")
