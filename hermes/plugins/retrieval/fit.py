"""Fit of a retrieval profile to measured searches.

Per kind of index, there is one observation per index, effort, batch and number of threads (the median of its
repetitions). The fit is non-negative least squares on relative errors, with equal weight for every configuration (index
and effort). If the coarse search was measured alone, its times are fitted along: its multiply-adds have the same price
in both. Of the feature sets, smallest first, it takes the first within half a percentage point of the best held-out
error.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from hermes.arrays import BoolArray, FloatArray, IntArray
from hermes.calibration.comparison import compare_times, group_weights
from hermes.calibration.fit.estimators import held_out, solve
from hermes.core.noise import t_quantile, tally
from hermes.errors import InputError, Verbatim
from hermes.plugins.retrieval.searches import MeasuredSearches
from hermes.services.retrieval_costs import (
    CANDIDATES,
    COARSE_FEATURES,
    Bm25,
    GraphExponents,
    HnswGraph,
    InvertedLists,
    RetrievalIndex,
    features,
)
from hermes.services.retrieval_profile import (
    CorpusExponent,
    CostTerm,
    RecallFigure,
    RetrievalModel,
    RetrievalProfile,
    RetrievalProvenance,
    SearchError,
    StageTerms,
)

__all__ = ["fit_retrieval", "index_of"]


_TOLERANCE = 0.005
_FOLDS = 24                # groups are held out one at a time up to so many, else in so many folds
_ROUNDS = 4                # of the search for exponents
_EFFORT_POWERS, _LINK_POWERS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0), (0.0, 0.25, 0.5, 1.0)
_SIZE_POWERS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
_UNITS = {"scan_bytes": "B/s", "coarse_macs": "MAC/s", "lut_macs": "MAC/s", "distance_macs": "MAC/s",
          "postings": "postings/s", "documents": "documents/s", "distances": "distances/s", "codes": "codes/s"}


@dataclass(frozen=True)
class _Points:
    """Observations of one kind: feature columns, seconds, and how they are grouped; shape (points,) each."""

    columns: dict[str, FloatArray]
    seconds: FloatArray
    coarse_s: FloatArray
    configurations: npt.NDArray[np.object_]
    indices: npt.NDArray[np.object_]
    threads: IntArray


def index_of(row: dict[str, Any]) -> RetrievalIndex:
    """Return the index of a row of measured searches."""
    kind = row["kind"]
    if kind == "bm25":
        return Bm25(vectors=int(row["vectors"]))
    if kind == "hnsw":
        return HnswGraph(vectors=int(row["vectors"]), dim=int(row["dim"]), hnsw_m=int(row["hnsw_m"]),
                         library=row["library"])
    return InvertedLists(kind=kind, vectors=int(row["vectors"]), dim=int(row["dim"]), nlist=int(row["nlist"]),
                         pq_m=int(row["pq_m"]) or None)


def _table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per point: medians of the times, other columns unchanged."""
    keys = ["configuration", "batch", "threads", "top_k"]
    grouped = rows.groupby(keys, sort=False)
    table = grouped.first()
    table["time_s"], table["coarse_s"] = grouped["time_s"].median(), grouped["coarse_s"].median()
    return table.reset_index()


def _points(table: pd.DataFrame, exponents: GraphExponents | None) -> _Points:
    found = []
    for row in table.to_dict("records"):
        name = "postings" if row["kind"] == "bm25" else "codes"
        found.append(features(index_of({str(k): v for k, v in row.items()}), int(row["effort"]), int(row["batch"]),
                              int(row["threads"]), {name: float(row["work"])}, exponents))
    columns = {name: np.array([one[name] for one in found], dtype=np.float64) for name in found[0]}
    return _Points(
        columns, table["time_s"].to_numpy(np.float64), table["coarse_s"].to_numpy(np.float64),
        table["configuration"].to_numpy(object), table["index"].to_numpy(object), table["threads"].to_numpy(np.int64),
    )


def _solve(names: Sequence[str], points: _Points, use: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Fit (seconds per unit of `names`, seconds per unit of COARSE_FEATURES in the coarse stage) on `use`.

    The coarse rows have their own call, query and probe costs; the price of a multiply-add is common.
    """
    staged = use & np.isfinite(points.coarse_s)
    features = np.column_stack([points.columns[name][use] for name in names])
    seconds, weights = points.seconds[use], group_weights(points.configurations[use])
    width = len(names)
    if staged.any() and "coarse_macs" in names:
        coarse = np.column_stack([points.columns[name][staged] for name in COARSE_FEATURES])
        own = np.zeros((len(coarse), width))
        own[:, names.index("coarse_macs")] = coarse[:, -1]
        features = np.vstack([np.hstack([features, np.zeros((len(features), 3))]), np.hstack([own, coarse[:, :3]])])
        seconds = np.append(seconds, points.coarse_s[staged])
        weights = np.append(weights, group_weights(points.configurations[staged]))
    found = solve(features, seconds, weights)
    stage = np.append(found[width:], found[names.index("coarse_macs")]) if len(found) > width else np.zeros(0)
    return found[:width], stage


def _predict(names: Sequence[str], coefficients: FloatArray, points: _Points) -> FloatArray:
    return np.asarray(sum(c * points.columns[n] for n, c in zip(names, coefficients, strict=True)), dtype=np.float64)


def _held_out(names: Sequence[str], points: _Points, groups: npt.NDArray[np.object_]) -> FloatArray:
    """Predict every point by fits without its group, seconds."""
    _, index = np.unique(groups.astype(np.str_), return_inverse=True)

    def predict(fitted: IntArray, held: IntArray) -> FloatArray:
        use = np.zeros(len(index), dtype=bool)
        use[fitted] = True
        return np.asarray(_predict(names, _solve(names, points, use)[0], points)[held])

    return held_out(predict, index % _FOLDS)


def _mape(predicted: FloatArray, points: _Points, use: BoolArray | None = None) -> float:
    mask = np.ones(len(predicted), dtype=bool) if use is None else use
    return compare_times(predicted[mask], points.seconds[mask], group_weights(points.configurations[mask])).mape


@dataclass(frozen=True)
class _Choice:
    """A feature set, exponents if the kind has them, and its held-out error."""

    names: tuple[str, ...]
    exponents: GraphExponents | None
    points: _Points
    score: float

    def label(self) -> str:
        powers = self.exponents
        text = " + ".join(self.names)
        return text if powers is None else (
            f"{text}, ef^{powers.effort:g} M^{powers.links:g} N^{powers.vectors:g}")


def _choose(kind: str, table: pd.DataFrame) -> tuple[_Choice, dict[str, float]]:
    """Return the choice with fewest features within the tolerance, and the held-out errors of all by their labels."""
    exponents = _exponents(table) if kind == "hnsw" else None
    points = _points(table, exponents)
    found = [
        _Choice(names, exponents, points, _mape(_held_out(names, points, points.configurations), points))
        for names in CANDIDATES[kind]
        if all(points.columns[name].any() for name in names)  # e.g. nothing shared with one thread
    ]
    best = min(choice.score for choice in found)
    chosen = next(choice for choice in found if choice.score <= best + _TOLERANCE)
    return chosen, {choice.label(): choice.score for choice in found}


def _exponents(table: pd.DataFrame) -> GraphExponents:
    """Return the exponents of the varied quantities with the best held-out error, searched in turn until none
    changes."""
    tried = {"effort": _EFFORT_POWERS, "links": _LINK_POWERS, "vectors": _SIZE_POWERS}
    columns = {"effort": "effort", "links": "hnsw_m", "vectors": "vectors"}
    best = GraphExponents(effort=1.0 if table["effort"].nunique() < 2 else 0.7, links=0.5, vectors=0.0)
    names = CANDIDATES["hnsw"][1]
    scores: dict[GraphExponents, float] = {}
    for _ in range(_ROUNDS):
        before = best
        for field, values in tried.items():
            if table[columns[field]].nunique() > 1:
                options = [best.model_copy(update={field: value}) for value in values]
                for option in options:
                    if option not in scores:
                        points = _points(table, option)
                        scores[option] = _mape(_held_out(names, points, points.configurations), points)
                best = min(options, key=lambda option: scores[option])
        if best == before:
            break
    return best


def _rate(name: str, seconds: float) -> str:
    if name not in _UNITS or seconds <= 0:
        return ""
    value = 1 / seconds
    factor, prefix = next(((f, p) for f, p in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if value >= f), (1.0, ""))
    return f"{value / factor:.3g} {prefix}{_UNITS[name]}"


def _terms(names: Sequence[str], coefficients: FloatArray) -> list[CostTerm]:
    return [CostTerm(per=name, seconds=float(value), rate=_rate(name, float(value)))
            for name, value in zip(names, coefficients, strict=True) if value > 0]


def _error(names: tuple[str, ...], points: _Points, coefficients: FloatArray, scores: dict[str, float]) -> SearchError:
    unseen = _held_out(names, points, points.configurations)
    count = len(set(points.configurations.tolist()))
    several = len(set(points.indices.tolist())) > 2
    return SearchError(
        method=f"{min(_FOLDS, count)} folds over {count} configurations",
        mape=_mape(unseen, points), worst=float(np.abs(unseen / points.seconds - 1).max()),
        in_sample_mape=_mape(_predict(names, coefficients, points), points),
        unseen_index_mape=_mape(_held_out(names, points, points.indices), points) if several else None,
        by_threads={str(n): _mape(unseen, points, points.threads == n) for n in sorted(set(points.threads.tolist()))},
        candidates=scores,
    )


def _stage(points: _Points, stage: FloatArray) -> StageTerms | None:
    if not len(stage) or not stage.any():
        return None
    known = np.isfinite(points.coarse_s)
    predicted = _predict(COARSE_FEATURES, stage, points)[known]
    return StageTerms(terms=_terms(COARSE_FEATURES, stage),
                      mape=float(np.abs(predicted / points.coarse_s[known] - 1).mean()))


def _exponent(table: pd.DataFrame) -> CorpusExponent | None:
    """Return the slope of log time against log vectors, everything else equal (a level of its own for every
    setting)."""
    keys = ["dim", "hnsw_m", "ef_construction", "effort", "batch", "threads", "top_k"]
    xs: list[float] = []
    ys: list[float] = []
    settings = 0
    for _, group in table.groupby(keys, sort=False):
        if group["vectors"].nunique() > 1:
            x, y = np.log(group["vectors"].to_numpy(float)), np.log(group["time_s"].to_numpy(float))
            xs += (x - x.mean()).tolist()
            ys += (y - y.mean()).tolist()
            settings += 1
    free = len(xs) - settings - 1
    if free < 1:
        return None
    x, y = np.array(xs), np.array(ys)
    slope = float(x @ y / (x @ x))
    half = t_quantile(free + 1) * math.sqrt(float(((y - slope * x) ** 2).sum()) / free / float(x @ x))
    return CorpusExponent(mean=slope, low=slope - half, high=slope + half, pairs=settings)


def _model(kind: str, rows: pd.DataFrame, noise: Sequence[str]) -> RetrievalModel:
    table = _table(rows)
    chosen, scores = _choose(kind, table)
    names, points = chosen.names, chosen.points
    everything = np.ones(len(points.seconds), dtype=bool)
    coefficients, stage = _solve(names, points, everything)
    ranges = {name: [float(points.columns[name].min()), float(points.columns[name].max())]
              for name in names if name != "call"}
    ranges["threads"] = [float(points.threads.min()), float(points.threads.max())]
    share = table["work"] / (table["effort"] * table["vectors"])
    ivf = kind.startswith("ivf")
    bias = float((share * table["nlist"]).median()) if ivf else None
    return RetrievalModel(
        library=str(table["library"].iloc[0]), terms=_terms(names, coefficients), exponents=chosen.exponents,
        coarse=_stage(points, stage),
        range=ranges, size_bias=bias, postings_share=float(share.mean()) if kind == "bm25" else None,
        points=len(table), noise=tally(noise), error=_error(names, points, coefficients, scores),
        corpus_exponent=_exponent(table) if kind == "hnsw" else None,
        recall=[] if kind == "bm25" else [
            RecallFigure(index=str(row["index"]), effort=int(row["effort"]), top_k=int(row["top_k"]),
                         recall=round(float(row["recall"]), 4))
            for row in table.drop_duplicates(["index", "effort", "top_k"]).to_dict("records")],
    )


def fit_retrieval(searches: MeasuredSearches, name: str, command: str = "",
                  date: datetime.date | str | None = None) -> RetrievalProfile:
    """Fit every kind of index in the searches. Raises `InputError` without usable searches."""
    usable, everything = searches.usable(), searches.rows
    if usable.empty:
        raise InputError("rows that a fit may use", Verbatim("none"), file=searches.header.name)
    header, notes, models = searches.header, [], {}
    for kind in CANDIDATES:
        rows, found = usable[usable["kind"] == kind], everything[everything["kind"] == kind]
        if rows["configuration"].nunique() > 2:
            points = found.drop_duplicates(["configuration", "batch", "threads", "top_k"])
            models[kind] = _model(kind, rows, points["noise"].tolist())
        elif len(found):
            notes.append(f"{kind}: no model: fewer than three configurations were measured and not excluded")
    if not models:
        raise InputError("at least three configurations of a kind of index", Verbatim("; ".join(notes)),
                         file=header.name)
    return RetrievalProfile.model_validate({
        "format": "hermes-retrieval-profile/1", "name": name, "models": models,
        "provenance": RetrievalProvenance(
            hardware=header.hardware, cores=header.environment.get("cores"), libraries=header.libraries,
            source=header.source, sha256=header.sha256, date=date or header.date, fitted_by=command,
            notes=[*notes, *header.notes, "recall is that of the data it was measured on, and of no other"],
        ),
    })
