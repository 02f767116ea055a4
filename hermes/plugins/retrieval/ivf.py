"""`measure: ivf`: overlap of rewritten queries on a real index, and the model that predicts it best.

Every configuration of a family is fitted to one cell of each rewrite's curve (as many clusters prefetched as probed, a
sixteenth of all) and predicts the others. If its spread is fitted too, it also takes the cell with four times as many
prefetched clusters, which shows how unequally the rewrites of one kind move their queries. The best configuration has
the least mean error over the cells that it did not see. Cells come with standard errors over the queries, the limit of
any prediction.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from hermes.arrays import IntArray
from hermes.calibration.measurements import Measured as Session
from hermes.calibration.measurements import (
    Measurement,
    Part,
    PointPlan,
    Section,
    Shown,
    again,
    existing,
    read_records,
    write_text,
)
from hermes.config import ConfigModel, load, to_yaml
from hermes.core.noise import spread
from hermes.errors import InputError
from hermes.plugins.telerag.overlap import (
    Curve,
    fit_bias,
    fit_strength,
    fit_strength_and_spread,
    make_family,
    overlap_curve,
)

__all__ = ["CONFIGURATIONS", "IvfMeasurement", "IvfOverlap", "IvfPlan", "load_overlap", "overlap_of"]

CONFIGURATIONS: tuple[tuple[str, dict[str, float], bool], ...] = (
    ("gaussian", {}, False), ("gaussian", {"spread": 0.5}, False), ("gaussian", {}, True),
    ("noise", {}, False), ("noise", {"spread": 0.5}, False), ("noise", {}, True), ("redraw", {}, False),
    ("moved", {"dimensions": 8}, False), ("moved", {"dimensions": 8}, True),
    ("moved", {"dimensions": 32}, False), ("moved", {"dimensions": 32}, True),
)
"""Family, shape, and whether the spread of the strengths is fitted too."""
_QUERIES = 512         # drawn for a curve of the model: its standard error is below half a point
_FITTED, _WIDER = (2, 1), (4, 1)   # cells of a curve: (budget, nprobe)
_BUDGETS, _NPROBES = (64, 32, 16, 8, 4), (32, 16, 8)   # clusters over those prefetched, and over those probed


class IvfPlan(PointPlan):
    """The overlap, and times of scans and merges."""

    row_columns: ClassVar[dict[str, str]] = {"repetition": "int64", "time_s": "float64", "bytes": "int64"}

    engine: Literal["ivf"] = "ivf"
    collector: str = "hermes.plugins.retrieval.ivf_collector"
    clock: Literal["wall"] = "wall"
    warmup_s: float = 0.0
    settings: dict[str, Any]


class Prediction(ConfigModel):
    """Prediction of one rewrite by a configuration: points of overlap, mean and worst error over the cells it did not
    see."""

    rewrite: str
    strength: float | None = None
    """None if no strength reaches the fitted cell."""
    spread: float | None = None
    """Spread of the strengths, given or fitted."""
    mean_error: float | None = None
    worst_error: float | None = None
    worst_cell: list[int] | None = None
    """Prefetched clusters and nprobe of the worst."""
    worst_noise: float | None = None
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
    environment: dict[str, Any]


def overlap_of(journal: Path) -> IvfOverlap:
    """Fit the models to a journal's curves. Raises `InputError` for a journal that was cut off before them."""
    plan, records = read_records(journal, IvfPlan)
    rows = {record["point"]: record for record in records.points}
    counted = rows.get("overlap", {}).get("work")
    if counted is None:
        raise InputError("a journal with the overlap measured", file=str(journal))
    points = {point["name"]: point for point in plan.points}
    budgets, nprobes = points["overlap"]["budgets"], points["overlap"]["nprobes"]
    clusters = np.array(counted["sizes"], dtype=np.int64)
    sizes, filled = clusters * 4 * counted["dim"], np.log(clusters[clusters > 0])
    curves = {name: Curve(tuple(budgets), tuple(nprobes), np.array(one["overlap"]), np.array(one["error"]))
              for name, one in counted["curves"].items()}
    probed = counted["probed"][_FITTED[1]] * 4 * counted["dim"]
    candidates = [_candidate(Configuration(*one), sizes, probed, curves) for one in CONFIGURATIONS]
    settings = plan.settings
    found: dict[str, list[dict[str, Any]]] = {"scan": [], "merge": []}
    for name, point in points.items():
        if point["kind"] in found and rows.get(name, {}).get("rows"):
            times = spread(row.get("bytes", row["time_s"]) / row["time_s"] if point["kind"] == "scan" else row["time_s"]
                           for row in rows[name]["rows"])
            found[point["kind"]].append({
                "mean": times.mean, "cv": round(times.cv, 4), "ci95": times.ci95, "class": times.verdict,
                "samples": times.samples,
                **{key: point[key] for key in ("threads", "nprobe", "candidates", "top_k") if key in point}})
    return IvfOverlap(
        index={"vectors": counted["vectors"], "dim": counted["dim"], "clusters": len(clusters),
               "seed": settings["seed"], "queries": counted["queries"], "source": Path(settings["rewrites_file"]).name
               or "generated clustered embeddings", "build_s": round(counted["build_s"], 1),
               "empty_clusters": int((clusters == 0).sum())},
        size_sigma=round(float(filled.std()), 4),
        probed_over_mean={str(nprobe): round(mean / float(clusters.mean()), 4)
                          for nprobe, mean in zip(nprobes, counted["probed"], strict=True)},
        budgets=budgets, nprobes=nprobes,
        measured=[Measured(rewrite=name, overlap=np.round(c.overlap, 4).tolist(),
                           standard_error=np.round(c.error, 4).tolist()) for name, c in curves.items()],
        candidates=sorted(candidates, key=lambda c: c.mean_error), scans=found["scan"], merges=found["merge"],
        environment=records.environment,
    )


class Configuration(NamedTuple):
    """Fit one of `CONFIGURATIONS`."""

    family: str
    shape: dict[str, float]
    spread_fitted: bool


def _candidate(config: Configuration, sizes: IntArray, probed: float, curves: dict[str, Curve]) -> Candidate:
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


def _fit(config: Configuration, bias: float, sizes: IntArray, curve: Curve) -> tuple[float, float]:
    """Return (strength, spread) from one cell or two."""
    target, nprobe = float(curve.overlap[_FITTED]), curve.nprobes[_FITTED[1]]
    budget, wider = (curve.budgets[cell[0]] for cell in (_FITTED, _WIDER))
    if config.spread_fitted:
        cells = (budget, target), (wider, float(curve.overlap[_WIDER]))
        return fit_strength_and_spread(config.family, config.shape, cells, nprobe, bias, sizes, queries=_QUERIES)
    family = make_family(config.family, **config.shape)
    return fit_strength(family, target, bias, sizes, budget, nprobe, queries=_QUERIES), family.spread


def _predict(config: Configuration, bias: float, sizes: IntArray, rewrite: str, curve: Curve) -> Prediction:
    """Fit, and predict the cells that were not fitted."""
    try:
        strength, spread = _fit(config, bias, sizes, curve)
    except InputError:
        return Prediction(rewrite=rewrite)
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


class IvfMeasurement(Measurement):
    """One index for lookahead retrieval: cluster sizes, overlap of rewritten queries, scans."""

    engines: ClassVar[tuple[str, ...]] = ("ivf",)

    measure: Literal["ivf"] = "ivf"
    vectors: Annotated[int, Field(ge=100, le=2**31)] = 2_000_000
    dim: Annotated[int, Field(ge=2, le=65_536)] = 64
    """Dimensions."""
    nlist: Annotated[int, Field(ge=1, le=2**24)] = 4096
    """Clusters."""
    queries: Annotated[int, Field(ge=1, le=2**20)] = 512
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    seed: Annotated[int, Field(ge=0)] = 0
    rewrites_file: str = ""
    """Vectors, queries and rewrites to use in place of generated ones (.npz)."""
    speed: bool = True
    """Measure times of scans and merges too."""
    output: str = "overlap.yaml"

    def plan(self, base_dir: Path, python: str | None = None) -> IvfPlan:
        """Return the plan: the overlap, then scans and merges. Raises `InputError` naming the key."""
        budgets, nprobes = ([max(1, self.nlist // share) for share in shares] for shares in (_BUDGETS, _NPROBES))
        points: list[dict[str, Any]] = [{"name": "overlap", "kind": "overlap", "budgets": budgets, "nprobes": nprobes}]
        if self.speed:
            more = {"top_k": 3, "repetitions": 10, "level": 1}
            points += [{"name": f"scan t={n}", "kind": "scan", "threads": n, "nprobe": nprobes[1], **more}
                       for n in sorted({1, self.threads})]
            points += [{"name": f"merge {n}", "kind": "merge", "candidates": n, **more}
                       for n in (10_000, 100_000, 1_000_000)]
        settings = self.model_dump(exclude={"measure", "output", "rewrites_file", "speed"})
        settings["rewrites_file"] = existing(base_dir, self.rewrites_file, "rewrites_file")
        return IvfPlan(settings=settings, points=points)

    @classmethod
    def pack(cls, journal: Path, output: Path, *, command: str = "", clock: str | None = None,
             measured: Session | None = None) -> Shown:
        """Write the overlap and the models that predict it. Raises `InputError`."""
        found = overlap_of(journal)
        data = found.model_dump(mode="json")
        write_text(output, to_yaml(data))
        return Shown(data, [*_overlap(found), *again(measured), f"written to {output}"])


def _overlap(found: IvfOverlap) -> list[Part]:
    index = found.index
    return [
        f"{index['vectors']:,} vectors of {index['dim']} dimensions in {index['clusters']} clusters "
        f"({index['source']}); sigma of log sizes {found.size_sigma:.3f}; probed / mean size "
        + ", ".join(f"{ratio:.3f} at nprobe {p}" for p, ratio in found.probed_over_mean.items()),
        Section(f"overlap in percent, nprobe {found.nprobes[1]}, by clusters prefetched",
              ["rewrite", *map(str, found.budgets)],
              [[m.rewrite, *(f"{100 * row[1]:.1f}" for row in m.overlap)] for m in found.measured]),
        Section("models fitted to one cell of each rewrite (two: spread fitted): points of error on the others",
              ["family", "shape", "spread", "mean", "worst", "at (prefetched, nprobe)", "noise there", "fitted"],
              [_candidate_row(c) for c in found.candidates]),
        *(f"scan, {scan['threads']} thread(s): {scan['mean'] / 1e9:.2f} GB/s (cv {scan['cv']:.1%}, {scan['class']})"
          for scan in found.scans),
        *(f"best {merge['top_k']} of {merge['candidates']:,}: {1e6 * merge['mean']:,.0f} us (cv {merge['cv']:.1%}, "
          f"{merge['class']})" for merge in found.merges),
    ]


def _candidate_row(found: Candidate) -> list[Any]:
    worst = max((p for p in found.predictions if p.worst_error is not None), key=lambda p: p.worst_error or 0.0,
                default=None)
    return [
        found.family, " ".join(f"{k}={v:g}" for k, v in found.shape.items() if k != "spread") or "-",
        "fitted" if found.spread_fitted else f"{found.shape.get('spread', 0):g}", found.mean_error, found.worst_error,
        "-" if worst is None else f"{worst.rewrite} {worst.worst_cell}", "-" if worst is None else worst.worst_noise,
        f"{sum(p.strength is not None for p in found.predictions)} of {len(found.predictions)}",
    ]
