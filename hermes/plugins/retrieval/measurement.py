"""`measure: retrieval`: search times of indices, and the cost model fitted to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from hermes.calibration.measurements import (
    FitOptions,
    Measured,
    Measurement,
    Part,
    PointPlan,
    Section,
    Shown,
    again,
    existing,
)
from hermes.config import validate
from hermes.errors import InputError, Verbatim
from hermes.plugins.retrieval.searches import (
    REPETITION_S,
    Count,
    Effort,
    Kind,
    MeasuredSearches,
    RetrievalPlan,
    Threads,
    Vectors,
    load_searches,
    pack_searches,
    save_searches,
)
from hermes.services.retrieval_profile import RetrievalProfile, save_retrieval_profile

__all__ = ["Retrieval", "memory_bytes"]

_FLOPS = 30e9              # rate of one core building an index: for the estimates only
_SCAN_BYTES = 8e9
_DISTANCE_S = 60e-9        # one distance of a graph search at 128 dimensions
_PER_LIST = 39             # vectors per list below which faiss finds its training poor


class Retrieval(Measurement):
    """Search times of vector and word indices; empty lists mean the defaults of the kind."""

    engines: ClassVar[tuple[str, ...]] = ("retrieval",)
    format: ClassVar[str] = "hermes-retrieval/1"

    measure: Literal["retrieval"] = "retrieval"
    kinds: Annotated[list[Kind], Field(min_length=1)] = [
        "ivf-flat", "ivf-pq", "hnsw", "bm25"]
    """ivf-flat, ivf-pq, ivf-pq-fs (4-bit codes), hnsw, bm25."""
    vectors: Annotated[list[Vectors], Field(min_length=1)] = [50_000, 200_000]
    """Sizes of the corpus: vectors, or documents for BM25."""
    dims: list[Annotated[int, Field(ge=2, le=65_536)]] = [128, 768]
    """Dimensions."""
    nlists: list[Effort] = []
    """IVF: lists; empty: the powers of two next to sqrt(vectors) and to four times that."""
    pq_m: list[Annotated[int, Field(ge=1, le=4096)]] = []
    """Bytes (ivf-pq) or half bytes (ivf-pq-fs) of a code; empty: dim / 8."""
    hnsw_m: list[Annotated[int, Field(ge=2, le=512)]] = [16, 32]
    """HNSW: links per vector."""
    ef_construction: Count = 100
    """HNSW: candidates while building."""
    nprobes: list[Effort] = [1, 4, 16, 64]
    """IVF: lists probed."""
    ef_searches: list[Count] = [16, 64, 256]
    """HNSW: candidates while searching."""
    query_tokens: list[Annotated[int, Field(ge=1, le=1000)]] = [2, 8, 32]
    """BM25: words of a query."""
    batches: Annotated[list[Count], Field(min_length=1)] = [1, 8, 64]
    """Queries of a call."""
    threads: Annotated[list[Threads], Field(min_length=1)] = [1]
    top_k: Annotated[int, Field(ge=1, le=10_000)] = 10
    """Neighbours to find."""
    repetitions: Annotated[int, Field(ge=2, le=1000)] = 5
    """Measurements of every point."""
    queries: Count = 512
    """Different queries."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Of the generated data."""
    build_threads: Threads = 1
    """Threads that build."""
    vectors_file: str = ""
    """Embeddings in place of generated ones: .npy, float, shape (rows, dim)."""
    texts_file: str = ""
    """Documents for BM25, one a line."""
    clock: Literal["wall", "cpu"] = "wall"
    """cpu: CPU time of searches with one thread."""
    output: str = "retrieval.yaml"
    """Measured searches; plan and journal beside it."""
    profile: str = ""
    """File of the fitted cost model; empty: print it only."""

    @model_validator(mode="after")
    def _enough(self) -> Retrieval:
        if self.top_k > min(self.vectors):
            raise InputError(f"at most the corpus of {min(self.vectors)}", self.top_k, field="top_k")
        return self

    def plan(self, base_dir: Path, python: str | None = None) -> RetrievalPlan:
        """Return the plan. Raises `InputError` naming the key."""
        files = {name: existing(base_dir, getattr(self, name), name) for name in ("vectors_file", "texts_file")}
        grid = self.model_copy(update=files)
        points: list[dict[str, Any]] = []
        for level, index in enumerate(_indices(grid)):
            build_s = _build_s(index, grid.build_threads)
            for effort in _efforts(index, grid):
                for batch in grid.batches:
                    for threads in grid.threads:
                        point = {
                            "name": f"{index['name']} {effort} b={batch} t={threads} k={grid.top_k}", "level": level,
                            "index": index, "effort": effort, "batch": batch, "threads": threads, "top_k": grid.top_k,
                            "repetitions": grid.repetitions,
                        }
                        estimate = grid.repetitions * max(REPETITION_S, _search_s(point) * batch / min(batch, threads))
                        points.append({**point, "estimate_s": 1.3 * estimate + build_s})
                        build_s = 0.0
        return validate(RetrievalPlan, {
            "clock": grid.clock, "seed": grid.seed, "queries": grid.queries, "build_threads": grid.build_threads,
            "vectors_file": grid.vectors_file, "texts_file": grid.texts_file, "points": points,
        })

    def show_plan(self, plan: PointPlan) -> Shown:
        """Return the indices with their points, and the memory."""
        assert isinstance(plan, RetrievalPlan)
        memory = memory_bytes(plan)
        groups: dict[str, list[dict[str, Any]]] = {}
        for point in plan.points:
            groups.setdefault(f"{point['index']['name']} ({point['index']['library']})", []).append(point)
        rows = [[name, len(found), round(sum(p["estimate_s"] for p in found), 1)] for name, found in groups.items()]
        return Shown({"points": plan.points, "memory_bytes": memory, "estimate_s": round(plan.estimate_s, 1)}, [
            Section("", ["index", "points", "estimate (s)"], rows),
            f"{len(plan.points)} points, memory about {memory / 2**30:.1f} GiB, time about {plan.estimate_s:.0f} s "
            "(rough; corrected while measuring)",
        ])

    def conclude(self, done: Measured, output: Path, base_dir: Path, command: str) -> Shown:
        """Write the searches, and the cost model to the plan's `profile`."""
        return self.pack(done.journal, output, command=command, measured=done,
                         profile=base_dir / self.profile if self.profile else None)

    @classmethod
    def pack(cls, journal: Path, output: Path, *, command: str = "", clock: str | None = None,
             measured: Measured | None = None, profile: Path | None = None) -> Shown:
        """Write measured searches, and the cost model to `profile`. Raises `InputError`."""
        save_searches(pack_searches(journal, output.stem, command), output)
        return _fitted(load_searches(output), profile, (profile or output).stem, command, [output, profile], measured)

    @classmethod
    def fit(cls, file: Path, options: FitOptions) -> Shown:
        """Fit the cost model of searches. Raises `InputError`."""
        return _fitted(load_searches(file), options.output, options.name or (options.output or file).stem,
                       options.command, [options.output], None)


def _indices(grid: Retrieval) -> list[dict[str, Any]]:
    """Return indices, small ones first; those of one data set together."""
    out: list[dict[str, Any]] = []
    for vectors in sorted(set(grid.vectors)):
        for dim in sorted(set(grid.dims)):
            for kind in grid.kinds:
                if kind != "bm25":
                    out += [{"kind": kind, "library": "faiss", "vectors": vectors, "dim": dim, **more}
                            for more in _builds(kind, vectors, dim, grid)]
        if "bm25" in grid.kinds:
            out.append({"kind": "bm25", "library": "bm25s", "vectors": vectors})
    if not out:
        raise InputError("at least one index that can be built", Verbatim("none"), field="dims")
    return [{"name": _name(index), **index} for index in out]


def _builds(kind: str, vectors: int, dim: int, grid: Retrieval) -> list[dict[str, Any]]:
    if kind == "hnsw":
        return [{"hnsw_m": m, "ef_construction": grid.ef_construction} for m in grid.hnsw_m]
    near = 2 ** round(math.log2(math.sqrt(vectors)))
    nlists = [n for n in grid.nlists or (near, 4 * near) if n <= (vectors if grid.nlists else vectors // _PER_LIST)]
    if not nlists:
        raise InputError(f"at most the {vectors} vectors", list(grid.nlists), field="nlists")
    if kind == "ivf-flat":
        return [{"nlist": nlist} for nlist in nlists]
    subspaces = grid.pq_m or (max(1, dim // 8),)
    for m in subspaces:
        if dim % m:
            raise InputError(f"divisors of the {dim} dimensions", m, field="pq_m")
    return [{"nlist": nlist, "pq_m": m} for nlist in nlists for m in subspaces]


def _name(index: dict[str, Any]) -> str:
    parts = [index["kind"], f"n={index['vectors']}"]
    parts += [f"{short}={index[key]}" for key, short in (
        ("dim", "d"), ("nlist", "lists"), ("pq_m", "m"), ("hnsw_m", "m"), ("ef_construction", "efc")) if key in index]
    return " ".join(parts)


def _efforts(index: dict[str, Any], grid: Retrieval) -> list[int]:
    if index["kind"] == "hnsw":
        return sorted({max(ef, grid.top_k) for ef in grid.ef_searches})
    if index["kind"] == "bm25":
        return sorted(set(grid.query_tokens))
    return sorted({min(nprobe, index["nlist"]) for nprobe in grid.nprobes})


def _build_s(index: dict[str, Any], threads: int) -> float:
    """Estimate roughly: data, training, adding."""
    n, dim = int(index["vectors"]), int(index.get("dim", 0))
    if index["kind"] == "bm25":
        return n * 150e-6
    if index["kind"] == "hnsw":
        return float(n * index["ef_construction"] * (index["hnsw_m"] / 16) * dim / 128 * 3 * _DISTANCE_S)
    train: int = min(n, 64 * int(index["nlist"]))
    flops = 2.0 * dim * int(index["nlist"]) * (10 * train + n)
    if "pq_m" in index:
        flops += 2 * dim * 256 * (10 * 16_384 + n) + 1.5e9 * float(index["pq_m"])
    return flops / (_FLOPS * threads)


def _search_s(point: dict[str, Any]) -> float:
    """Estimate roughly the seconds of one query."""
    index, effort = point["index"], point["effort"]
    n, dim = index["vectors"], index.get("dim", 0)
    if index["kind"] == "bm25":
        return float(20e-6 + n * 3e-9 + effort * n * 0.02 * 2e-9)
    if index["kind"] == "hnsw":
        return float(effort * index["hnsw_m"] * dim / 128 * _DISTANCE_S)
    code = {"ivf-flat": 4 * dim, "ivf-pq": 4 * index.get("pq_m", 0), "ivf-pq-fs": index.get("pq_m", 0) / 2}
    scanned = n * effort / index["nlist"] * code[index["kind"]]
    return float(10e-6 + 2 * dim * index["nlist"] / _FLOPS + scanned / _SCAN_BYTES)


def memory_bytes(plan: RetrievalPlan) -> int:
    """Return the largest memory of a point: vectors twice (data and index), codes, graph, the exact answers."""
    most = 0
    for index in {point["index"]["name"]: point["index"] for point in plan.points}.values():
        n, dim = index["vectors"], index.get("dim", 0)
        if index["kind"] == "bm25":
            need = n * 100 * (8 + 8 + 36)
        elif index["kind"] == "hnsw":
            need = n * (8 * dim + 8 * index["hnsw_m"] + 16)
        else:
            code = {"ivf-flat": 4 * dim}.get(index["kind"], index.get("pq_m", 0))
            need = n * (4 * dim + code + 8) + index["nlist"] * dim * 4
        most = max(most, need + plan.queries * (4 * dim + 32_768 * 16))
    return int(most) + 200 * 2**20


def _fitted(searches: MeasuredSearches, profile: Path | None, name: str, command: str, written: Sequence[Path | None],
            measured: Measured | None) -> Shown:
    """Fit, write the cost model to `profile`, and return it with its errors."""
    from hermes.plugins.retrieval.fit import fit_retrieval

    fitted = fit_retrieval(searches, name, command)
    if profile is not None:
        save_retrieval_profile(fitted, profile)
    return Shown({
        "rows": len(searches.rows), "usable": len(searches.usable()),
        "complete": measured is None or measured.complete, **fitted.model_dump(mode="json"),
    }, [
        *_tables(fitted), f"{len(searches.rows)} rows, {len(searches.usable())} usable",
        *(f"note: {note}" for note in (*searches.header.excluded, *searches.header.notes)), *again(measured),
        *(f"written to {path}" for path in written if path is not None),
    ])


def _tables(fitted: RetrievalProfile) -> list[Part]:
    rows = [
        [kind, model.library, model.points, 100 * model.error.mape, 100 * model.error.worst,
         "-" if model.error.unseen_index_mape is None else f"{100 * model.error.unseen_index_mape:.1f}", model.noise]
        for kind, model in fitted.models.items()
    ]
    costs = [[kind, term.per, 1e9 * term.seconds, term.rate]
             for kind, model in fitted.models.items() for term in model.terms]
    growth = [(kind, model.corpus_exponent) for kind, model in fitted.models.items() if model.corpus_exponent]
    return [
        Section("held-out errors in percent", ["index", "library", "points", "mean", "worst", "unseen index", "noise"],
              rows),
        Section("", ["index", "per", "ns", ""], costs),
        *(f"{kind}: time grows like vectors^{found.mean:.2f} (95% interval {found.low:.2f} to {found.high:.2f}, "
          f"{found.pairs} settings)" for kind, found in growth),
    ]
