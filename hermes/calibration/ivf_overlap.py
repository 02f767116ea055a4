"""`hermes calibrate retrieval --ivf`: overlap measured on a real index, and the model chosen that predicts it.

Every configuration of a family is fitted to one cell of each rewrite's curve (as many clusters prefetched as probed, a
sixteenth of all) and predicts the others. The configuration with the least mean error over those is the one to use.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hermes.calibration.collect.ivf_overlap import IvfData, OverlapIndex
from hermes.calibration.collect.ivf_overlap_cuda import measure_cuda
from hermes.config import ConfigModel
from hermes.errors import InputError
from hermes.overlap import Family, fit_bias, fit_strength, make_family, overlap_curve
from hermes.overlap.curves import shared
from hermes.overlap.sizes import Ints
from hermes.validation import validate
from hermes.yamlfile import load_yaml

__all__ = ["CONFIGURATIONS", "IvfOverlap", "load_overlap", "measure_overlap", "save_overlap"]

CONFIGURATIONS: tuple[tuple[str, dict[str, float]], ...] = (
    ("gaussian", {}), ("gaussian", {"spread": 0.5}), ("noise", {}), ("noise", {"spread": 0.5}), ("redraw", {}),
    ("moved", {"dimensions": 8}), ("moved", {"dimensions": 32}),
)
_QUERIES = 32          # drawn for a curve of the model
_SHARES = (64, 32, 16, 8, 4)
_REPETITIONS = 10


class Prediction(ConfigModel):
    """What a configuration predicts of one rewrite: points of overlap, mean and worst over the cells it did not see."""

    rewrite: str
    strength: float | None
    """None where no strength reaches the fitted cell."""
    mean_error: float | None
    worst_error: float | None


class Candidate(ConfigModel):
    """A family with its shape, and how well it predicts."""

    family: str
    shape: dict[str, float]
    bias: float
    mean_error: float
    worst_error: float
    predictions: list[Prediction]


class Measured(ConfigModel):
    """Overlap of one rewrite, rows: prefetched clusters, columns: nprobe."""

    rewrite: str
    overlap: list[list[float]]


class IvfOverlap(ConfigModel):
    """What was measured on one index."""

    format: Literal["hermes-ivf-overlap/1"] = "hermes-ivf-overlap/1"
    index: dict[str, Any]
    """Vectors, dim, clusters, seed, source, how long it took to build."""
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
    cuda: dict[str, Any] | None
    """Copy and scan rates of a GPU; None where none is at hand."""
    environment: dict[str, Any]


def measure_overlap(data: IvfData, source: str, nlist: int, *, threads: int, seed: int, speed: bool,
                    say: Callable[[str], None] = print) -> IvfOverlap:
    """Build, rank, compare, fit. Raises `InputError` for an index too small to speak of."""
    if not 16 <= nlist <= len(data.vectors) // 16:
        raise InputError(f"between 16 and a sixteenth of the {len(data.vectors)} vectors", nlist, field="--nlist")
    say(f"building {nlist} clusters over {len(data.vectors):,} vectors")
    index = OverlapIndex(data, nlist, threads, seed)
    sizes = index.sizes * 4 * data.vectors.shape[1]
    budgets, nprobes = [max(1, nlist // s) for s in _SHARES], [max(1, nlist // s) for s in (32, 16, 8)]
    before = index.ranking(data.queries)
    curves = {name: shared(before, index.ranking(vectors), budgets, nprobes).overlap
              for name, vectors in index.rewrites()}
    say(f"{len(curves)} rewrites of {len(data.queries)} queries measured; fitting")
    probed = float(sizes[before[:, : nprobes[1]]].mean())
    candidates = [_candidate(name, shape, sizes, probed, curves, budgets, nprobes) for name, shape in CONFIGURATIONS]
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
        measured=[Measured(rewrite=name, overlap=np.round(c, 4).tolist()) for name, c in curves.items()],
        candidates=sorted(candidates, key=lambda c: c.mean_error),
        scans=[index.scan_speed(nprobes[1], t, _REPETITIONS) for t in counts] if speed else [],
        merges=[index.merge_time(n, 3, _REPETITIONS) for n in (10_000, 100_000, 1_000_000)] if speed else [],
        cuda=measure_cuda(seed, _REPETITIONS) if speed else None, environment=index.environment(),
    )


def _candidate(name: str, shape: dict[str, float], sizes: Ints, probed: float, curves: dict[str, Any],
               budgets: list[int], nprobes: list[int]) -> Candidate:
    family = make_family(name, **shape)
    bias = fit_bias(family, sizes, probed, nprobes[1], queries=_QUERIES)
    found = [_predict(family, bias, sizes, rewrite, curve, budgets, nprobes) for rewrite, curve in curves.items()]
    means = [p.mean_error for p in found if p.mean_error is not None]
    worst = [p.worst_error for p in found if p.worst_error is not None]
    return Candidate(
        family=name, shape=shape, bias=round(bias, 5), predictions=found,
        mean_error=round(float(np.mean(means)), 3) if means else 100.0, worst_error=max(worst, default=100.0),
    )


def _predict(family: Family, bias: float, sizes: Ints, rewrite: str, curve: Any, budgets: list[int],
             nprobes: list[int]) -> Prediction:
    """Fit the cell (nlist / 16, nlist / 16), predict the others."""
    try:
        strength = fit_strength(family, float(curve[2, 1]), bias, sizes, budgets[2], nprobes[1], queries=_QUERIES)
    except InputError:
        return Prediction(rewrite=rewrite, strength=None, mean_error=None, worst_error=None)
    drawn = overlap_curve(family, strength, bias, sizes, budgets, nprobes, queries=_QUERIES).overlap
    error = 100 * np.abs(drawn - curve)
    unseen = np.ones(error.shape, bool)
    unseen[2, 1] = False
    return Prediction(rewrite=rewrite, strength=round(strength, 5), mean_error=round(float(error[unseen].mean()), 3),
                      worst_error=round(float(error[unseen].max()), 3))


def load_overlap(path: Path) -> IvfOverlap:
    """A file of this form. Raises `InputError` naming the file and the field."""
    return validate(IvfOverlap, load_yaml(path), str(path))


def save_overlap(found: IvfOverlap, path: Path) -> None:
    """Write it as YAML."""
    import yaml

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(found.model_dump(mode="json"), sort_keys=False, width=120), encoding="utf-8")
