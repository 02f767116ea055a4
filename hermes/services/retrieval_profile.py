"""Retrieval profiles: cost models of retrieval on a measured machine, YAML format `hermes-retrieval-profile/1`.

    profile = load_retrieval_profile("amd-epyc-2-cores")
    index = InvertedLists(kind="ivf-flat", vectors=1_000_000, dim=768, nlist=4096)
    profile.seconds(index, 64, batch=8, threads=4)

A model is a sum of a few physical features (`hermes.services.retrieval_costs`), each with its seconds. No coefficient
is negative, so that more work never takes less time. (One feature is not work: the scores that a BM25 query leaves at
zero, fewer with more words.)
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from hermes.config import ConfigModel, Name
from hermes.config.validation import load
from hermes.errors import InputError, suggest
from hermes.hardware.descriptions.files import find
from hermes.hardware.fitted.profile import dump_yaml
from hermes.services.retrieval_costs import (
    FEATURES,
    Bm25,
    GraphExponents,
    HnswGraph,
    InvertedLists,
    RetrievalIndex,
    RetrievalKind,
    features,
)
from hermes.sums import float_sum

__all__ = [
    "CorpusExponent", "CostTerm", "RecallFigure", "RetrievalModel", "RetrievalProfile", "RetrievalProvenance",
    "SearchError", "StageTerms", "load_retrieval_profile", "save_retrieval_profile",
]

FOLDER = "retrieval"
Fraction = Annotated[float, Field(ge=0)]


class CostTerm(ConfigModel):
    """Seconds of one unit of a feature."""

    per: str
    """A feature of `hermes.services.retrieval_costs`."""
    seconds: Annotated[float, Field(ge=0, le=1e3)]
    rate: str = ""
    """The inverse, for readers: units per second."""

    @field_validator("per")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in FEATURES:
            raise InputError(f"one of {', '.join(FEATURES)}", name, suggestion=suggest(name, FEATURES))
        return name


class SearchError(ConfigModel):
    """Errors of searches outside the fit, as fractions; every configuration counts once."""

    method: str
    mape: Fraction
    worst: Fraction
    in_sample_mape: Fraction
    unseen_index_mape: Fraction | None = None
    """Error of each index predicted by a fit without it: other sizes, dimensions and lists than the measured ones."""
    by_threads: dict[str, Fraction] = Field(default_factory=dict)
    """Held-out error by the number of threads."""
    candidates: dict[str, Fraction] = Field(default_factory=dict)
    """Held-out error of the feature sets that were tried."""


class StageTerms(ConfigModel):
    """The search for the lists to probe, measured alone."""

    terms: Annotated[list[CostTerm], Field(min_length=1)]
    mape: Fraction
    """In-sample error of the stage."""


class CorpusExponent(ConfigModel):
    """Growth of time with the corpus, like vectors ** mean, all else equal."""

    mean: float
    low: float
    high: float
    """95% interval."""
    pairs: Annotated[int, Field(ge=1)]
    """Settings measured at two sizes or more."""


class RecallFigure(ConfigModel):
    """Share of the exact answers that an index found, on the data of its measurement."""

    index: str
    effort: Annotated[int, Field(ge=1)]
    top_k: Annotated[int, Field(ge=1)]
    recall: Annotated[float, Field(ge=0, le=1)]


class RetrievalModel(ConfigModel):
    """The cost model of one kind of index."""

    library: str
    terms: Annotated[list[CostTerm], Field(min_length=1, max_length=16)]
    exponents: GraphExponents | None = None
    """HNSW: growth of the number of distance evaluations."""
    coarse: StageTerms | None = None
    range: dict[str, Annotated[list[float], Field(min_length=2, max_length=2)]]
    """Measured range per feature, and of `threads`."""
    size_bias: Annotated[float, Field(gt=0)] | None = None
    """IVF: codes in a probed list over the mean list size."""
    postings_share: Annotated[float, Field(gt=0)] | None = None
    """BM25: share of the documents that hold a word of a query."""
    points: Annotated[int, Field(ge=0)]
    noise: str
    """Classes of the points' repetitions."""
    error: SearchError
    corpus_exponent: CorpusExponent | None = None
    recall: list[RecallFigure] = Field(default_factory=list)

    def work(self, index: RetrievalIndex, effort: int) -> dict[str, float]:
        """Return the codes or postings that a query of this effort is expected to touch."""
        if isinstance(index, InvertedLists):
            bias = index.size_bias if index.size_bias is not None else self.size_bias or 1.0
            return {"codes": min(float(index.vectors), bias * effort * index.vectors / index.nlist)}
        if isinstance(index, Bm25):
            each = index.postings_per_token or (self.postings_share or 0.0) * index.vectors
            return {"postings": effort * min(each, float(index.vectors))}
        return {}


class RetrievalProvenance(ConfigModel):
    """Source of the numbers."""

    hardware: str
    cores: Annotated[int, Field(ge=1)] | None = None
    libraries: dict[str, str]
    source: str
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """Hash of the Parquet file of searches."""
    date: datetime.date | str
    fitted_by: str = ""
    notes: list[str] = Field(default_factory=list)


class RetrievalProfile(ConfigModel):
    """A `hermes-retrieval-profile/1` file."""

    format: Literal["hermes-retrieval-profile/1"]
    name: Name
    provenance: RetrievalProvenance
    models: Annotated[dict[RetrievalKind, RetrievalModel], Field(min_length=1)]

    def model(self, kind: str) -> RetrievalModel:
        """Return the model of a kind of index. `InputError` names the known kinds."""
        for name, model in self.models.items():
            if name == kind:
                return model
        raise InputError(f"an index that {self.name} was measured with: {', '.join(self.models)}", kind, field="kind")

    def seconds(
        self, index: RetrievalIndex, effort: int, batch: int = 1, threads: int = 1,
        work: Mapping[str, float] | None = None,
    ) -> float:
        """Return the seconds of one call that searches `batch` queries with `threads` threads.

        Args:
            effort: nprobe (IVF), efSearch (HNSW), words of a query (BM25).
            work: `codes` scanned or `postings` touched per query, if known better than on average.

        Raises `InputError` for an index that was not measured.
        """
        model = self.model(index.kind)
        found = self._features(model, index, effort, batch, threads, work)
        return float_sum(term.seconds * found[term.per] for term in model.terms)

    def coarse_seconds(self, index: InvertedLists, nprobe: int, batch: int = 1) -> float:
        """Return the seconds of the search for the lists to probe, with one thread; 0 if it was not measured."""
        model = self.model(index.kind)
        if model.coarse is None:
            return 0.0
        found = self._features(model, index, nprobe, batch, 1, None)
        return float_sum(term.seconds * found[term.per] for term in model.coarse.terms)

    def outside(
        self, index: RetrievalIndex, effort: int, batch: int = 1, threads: int = 1,
        work: Mapping[str, float] | None = None,
    ) -> list[str]:
        """Return the features (and `threads`) that leave the measured range: the time extrapolates along them."""
        model = self.model(index.kind)
        found = self._features(model, index, effort, batch, threads, work) | {"threads": float(threads)}
        return [name for name, (low, high) in model.range.items() if not low <= found[name] <= high]

    @staticmethod
    def _features(
        model: RetrievalModel, index: RetrievalIndex, effort: int, batch: int, threads: int,
        work: Mapping[str, float] | None,
    ) -> dict[str, float]:
        for field, value in (("effort", effort), ("batch", batch), ("threads", threads)):
            if value < 1:
                raise InputError("at least 1", value, field=field)
        if isinstance(index, HnswGraph) and index.library != model.library:
            raise InputError(f"a graph of {model.library}, which was measured", index.library, field="library")
        counted = model.work(index, effort) if work is None else work
        return features(index, effort, batch, threads, counted, model.exponents)


def load_retrieval_profile(name_or_path: str | Path, base_dir: Path | None = None) -> RetrievalProfile:
    """Load a shipped retrieval profile by name, or a file by path (relative to `base_dir`). Raises `InputError`."""
    path = find(name_or_path, base_dir, FOLDER, "a retrieval profile")
    return load(RetrievalProfile, path)


def save_retrieval_profile(profile: RetrievalProfile, path: Path) -> None:
    """Write a file that `load_retrieval_profile` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"Retrieval on {profile.provenance.hardware}: seconds of a call = sum of seconds x feature.",
             "Features are counted for the thread that has most queries of the batch:"]
    used: dict[str, Any] = {term.per: FEATURES[term.per] for model in profile.models.values() for term in model.terms}
    lines += [f"  {name}: {what}" for name, what in used.items()]
    dump_yaml(profile, path, "\n".join(lines))
