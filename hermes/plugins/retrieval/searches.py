"""Searches: the plan of their measurement, and the format of measured ones (`hermes-retrieval/1`).

As with measured steps (`hermes.calibration.steps`), `NAME.yaml` holds the source of the searches and `NAME.parquet`
beside it a row per repetition. Contended repetitions and noisy points are kept, with the reason in `excluded`.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from hermes.calibration.collect.counters import LIMIT, contended
from hermes.calibration.measurements import MeasuredHeader, MeasuredTable, PointPlan, read_records
from hermes.config import ConfigModel
from hermes.core.noise import classify, spread, tally
from hermes.errors import InputError, Verbatim

__all__ = [
    "COLUMNS", "REPETITION_S", "MeasuredSearches", "RetrievalPlan", "SearchesHeader", "load_searches", "pack_searches",
    "save_searches",
]

REPETITION_S = 0.005   # short, to fit between the time slices of other processes

Kind = Literal["ivf-flat", "ivf-pq", "ivf-pq-fs", "hnsw", "bm25"]
Vectors = Annotated[int, Field(ge=100, le=2**31)]
Effort = Annotated[int, Field(ge=1, le=2**24)]
Count = Annotated[int, Field(ge=1, le=2**20)]
Threads = Annotated[int, Field(ge=1, le=1024)]


class SearchIndex(ConfigModel):
    """An index that is built and searched."""

    name: str
    kind: Kind
    library: str
    vectors: Vectors
    dim: Annotated[int, Field(ge=2, le=65_536)] | None = None
    nlist: Effort | None = None
    pq_m: Annotated[int, Field(ge=1, le=4096)] | None = None
    hnsw_m: Annotated[int, Field(ge=2, le=512)] | None = None
    ef_construction: Count | None = None


class SearchPoint(ConfigModel):
    """One index, effort, batch size and number of threads."""

    name: str
    level: int
    estimate_s: Annotated[float, Field(ge=0)] = 0.0
    index: SearchIndex
    effort: Effort
    batch: Count
    threads: Threads
    top_k: Count
    repetitions: Annotated[int, Field(ge=2, le=1000)]


class RetrievalPlan(PointPlan):
    """Searches by index, effort, batch and threads; one level per index, so that an index is built once."""

    row_columns: ClassVar[dict[str, str]] = {
        "repetition": "int64", **dict.fromkeys(("time_s", "wall_s", "cpu_time_s", "waited_s", "coarse_s"), "float64"),
    }
    record_fields: ClassVar[tuple[str, ...]] = ("cv", "library", "recall", "work", "peak_rss_bytes")
    point: ClassVar[type[ConfigModel] | None] = SearchPoint

    engine: Literal["retrieval"] = "retrieval"
    collector: str = "hermes.plugins.retrieval.collector"
    clock: Literal["wall", "cpu"] = "wall"
    warmup_s: float = 0.0
    repetition_s: Annotated[float, Field(gt=0)] = REPETITION_S
    seed: int
    queries: Count
    build_threads: Threads
    vectors_file: str
    texts_file: str


COLUMNS: dict[str, str] = {
    "kind": "string",            # ivf-flat, ivf-pq, ivf-pq-fs, hnsw, bm25
    "library": "string",
    "index": "string",           # one name per index that was built
    "vectors": "int64",          # or documents
    "dim": "int64",              # 0: does not apply to this kind; the same for the next four
    "nlist": "int64",
    "pq_m": "int64",
    "hnsw_m": "int64",
    "ef_construction": "int64",
    "effort": "int64",           # lists probed (IVF), efSearch (HNSW), words of a query (BM25)
    "top_k": "int64",
    "batch": "int64",            # queries of a call
    "threads": "int64",          # that the library was given
    "time_s": "float64",         # of the call, by the header's clock
    "coarse_s": "float64",       # of the search for the lists to probe, alone; NaN where not measured
    "wall_s": "float64",         # wall clock of the call
    "cpu_time_s": "float64",     # CPU time of the call, all threads
    "waited_s": "float64",       # part of time_s that its threads waited for a core; 0 where time_s is CPU time
    "work": "float64",           # codes scanned (IVF) or postings (BM25) per query, mean; NaN for HNSW
    "recall": "float64",         # share of the exact top_k that is found, mean over the queries
    "peak_rss_bytes": "int64",   # of the collector so far
    "configuration": "string",   # index and effort: held out together
    "repetition": "int64",
    "sequence": "int64",
    "noise": "string",           # class of the point's repetitions
    "excluded": "string",        # reason against using the row in a fit
}
"""Columns of the Parquet file."""


class SearchesHeader(MeasuredHeader):
    """Source of measured searches; `hardware` is the CPU."""

    format: Literal["hermes-retrieval/1"] = "hermes-retrieval/1"
    libraries: dict[str, str]
    """Versions."""
    data: dict[str, Any] = Field(default_factory=dict)
    """Data searched: seed and sizes of generated data, or the user's file."""
    indices: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Observations of each index: seconds to build, sizes of its lists."""


_CLOCKS = {"wall": "wall clock", "cpu": "CPU clock of searches with one thread, wall clock of others"}


class MeasuredSearches(MeasuredTable[SearchesHeader]):
    """A header and its rows (columns as in `COLUMNS`)."""

    header_class: ClassVar[type[Any]] = SearchesHeader
    columns: ClassVar[Mapping[str, str]] = COLUMNS


load_searches, save_searches = MeasuredSearches.load, MeasuredSearches.save


def pack_searches(journal: Path, name: str, command: str = "", date: datetime.date | None = None) -> MeasuredSearches:
    """Return the rows of a journal, complete or cut off. Raises `InputError` for other files."""
    plan, recorded = read_records(journal, RetrievalPlan)
    environment, found = recorded.environment, recorded.points
    points = {point["name"]: point for point in plan.points}
    rows = [row for record in recorded.best_attempts() for row in _rows_of(points[record["point"]], record)]
    if not rows:
        raise InputError("at least one point that was measured", Verbatim("none"), file=str(journal))
    table = pd.DataFrame(rows)
    table["sequence"] = np.arange(len(table))
    verdicts = table.drop_duplicates(["configuration", "batch", "threads", "top_k"])["noise"]
    built = {points[record["point"]]["index"]["name"]: record["index"] for record in found if "index" in record}
    cores = environment.get("cores")
    return MeasuredSearches(
        SearchesHeader(
            name=name, hardware=environment.get("cpu", ""), libraries=environment.get("libraries", {}),
            date=date or datetime.date.today(), clock=_CLOCKS[plan.clock], collected_by=command,
            source=plan.vectors_file or plan.texts_file or "generated clustered embeddings and Zipf texts",
            data={key: getattr(plan, key) for key in ("seed", "queries", "vectors_file", "texts_file")},
            indices=built, environment=environment,
            excluded=sorted({f"{r['point']}: {r['failed']}" for r in found if "failed" in r}),
            notes=[
                f"noise of the points: {tally(verdicts)}",
                f"repetitions that waited for a core for more than {LIMIT:.0%} of their time are excluded; of a point "
                "measured twice the attempt with more repetitions left, and then the steadier one, is kept",
                f"{cores} cores: nothing is known of more threads",
            ],
        ),
        MeasuredSearches.tidy(table, str(journal)),
    )


def _rows_of(point: dict[str, Any], record: dict[str, Any]) -> list[dict[str, Any]]:
    index = point["index"]
    steady = [row["time_s"] for row in record["rows"] if not contended(row)]
    verdict = spread(steady).verdict if steady else "rejected"
    common = {
        "kind": index["kind"], "library": record["library"], "index": index["name"], "vectors": index["vectors"],
        **{key: index.get(key, 0) for key in ("dim", "nlist", "pq_m", "hnsw_m", "ef_construction")},
        "effort": point["effort"], "top_k": point["top_k"], "batch": point["batch"], "threads": point["threads"],
        "work": next(iter(record["work"].values()), math.nan), "recall": record["recall"],
        "peak_rss_bytes": record["peak_rss_bytes"], "configuration": f"{index['name']} effort={point['effort']}",
        "noise": verdict,
    }
    reason = "repetitions vary too much (rejected)" if steady and verdict == classify(math.inf) else ""
    return [
        {**common, **row, "coarse_s": row.get("coarse_s", math.nan),
         "excluded": "contended: its threads waited for a core" if contended(row) else reason}
        for row in record["rows"]
    ]
