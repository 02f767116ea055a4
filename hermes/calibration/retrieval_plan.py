"""Which searches `hermes calibrate retrieval` measures: a plan for `hermes.calibration.collect.retrieval`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes.errors import InputError, Verbatim, suggest

__all__ = ["COLLECTOR", "KINDS", "Grid", "memory_bytes", "retrieval_plan"]

COLLECTOR = "hermes.calibration.collect.retrieval"
KINDS = ("ivf-flat", "ivf-pq", "ivf-pq-fs", "hnsw", "bm25")

_FLOPS = 30e9              # of one core building an index: for the estimates only
_SCAN_BYTES = 8e9
_DISTANCE_S = 60e-9        # one distance of a graph search at 128 dimensions
_REPETITION_S = 0.005    # short: between the turns of whatever else runs
_PER_LIST = 39            # vectors per list below which faiss finds its training poor


@dataclass(frozen=True)
class Grid:
    """What the user asked for; empty lists mean the defaults of the kind."""

    kinds: Sequence[str] = ("ivf-flat", "ivf-pq", "hnsw", "bm25")
    vectors: Sequence[int] = (50_000, 200_000)
    """Sizes of the corpus: vectors, or documents for BM25."""
    dims: Sequence[int] = (128, 768)
    nlists: Sequence[int] = ()
    """By default the powers of two next to sqrt(vectors) and to four times that."""
    pq_m: Sequence[int] = ()
    """Bytes (`ivf-pq`) or half bytes (`ivf-pq-fs`) of a code; by default dim / 8."""
    hnsw_m: Sequence[int] = (16, 32)
    ef_construction: int = 100
    nprobes: Sequence[int] = (1, 4, 16, 64)
    ef_searches: Sequence[int] = (16, 64, 256)
    query_tokens: Sequence[int] = (2, 8, 32)
    batches: Sequence[int] = (1, 8, 64)
    threads: Sequence[int] = (1,)
    top_k: int = 10
    repetitions: int = 5
    queries: int = 512
    seed: int = 0
    build_threads: int = 1
    vectors_file: str = ""
    texts_file: str = ""
    clock: str = "wall"
    """`wall`, or `cpu` for the CPU time of searches with one thread."""
    libraries: Sequence[str] = field(default=("faiss", "hnswlib", "bm25s"))
    """Those that the interpreter has."""


def retrieval_plan(grid: Grid) -> dict[str, Any]:
    """The plan: one level per index, so that an index is built once. Raises `InputError` naming the option."""
    _check(grid)
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
                    estimate = grid.repetitions * max(_REPETITION_S, _search_s(point) * batch / min(batch, threads))
                    points.append({**point, "estimate_s": 1.3 * estimate + build_s})
                    build_s = 0.0
    return {
        "format": "hermes-plan/1", "engine": "retrieval", "collector": COLLECTOR, "clock": grid.clock, "warmup_s": 0.0,
        "repetition_s": _REPETITION_S, "seed": grid.seed, "queries": grid.queries, "build_threads": grid.build_threads,
        "vectors_file": grid.vectors_file, "texts_file": grid.texts_file, "points": points,
    }


def _check(grid: Grid) -> None:
    for kind in grid.kinds:
        if kind not in KINDS:
            raise InputError(f"one of {', '.join(KINDS)}", kind, field="--index", suggestion=suggest(kind, KINDS))
    if grid.clock not in ("wall", "cpu"):
        raise InputError("wall or cpu", grid.clock, field="--clock")
    bounds = {
        "--vectors": (grid.vectors, 100, 2**31), "--dim": (grid.dims, 2, 65_536), "--nlist": (grid.nlists, 1, 2**24),
        "--pq-m": (grid.pq_m, 1, 4096), "--hnsw-m": (grid.hnsw_m, 2, 512), "--nprobe": (grid.nprobes, 1, 2**24),
        "--ef-search": (grid.ef_searches, 1, 2**20), "--query-tokens": (grid.query_tokens, 1, 1000),
        "--batch": (grid.batches, 1, 2**20), "--threads": (grid.threads, 1, 1024),
        "--ef-construction": ([grid.ef_construction], 1, 2**20), "--top-k": ([grid.top_k], 1, 10_000),
        "--repetitions": ([grid.repetitions], 2, 1000), "--queries": ([grid.queries], 1, 2**20),
        "--build-threads": ([grid.build_threads], 1, 1024), "--seed": ([grid.seed], 0, 2**31 - 1),
    }
    for option, (values, low, high) in bounds.items():
        for value in values:
            if not low <= value <= high:
                raise InputError(f"numbers between {low} and {high}", value, field=option)
    if not grid.kinds or not grid.vectors or not grid.batches or not grid.threads:
        raise InputError("at least one index, size, batch and number of threads", Verbatim("none"), field="--index")
    if grid.top_k > min(grid.vectors):
        raise InputError(f"at most the corpus of {min(grid.vectors)}", grid.top_k, field="--top-k")


def _library(kind: str, grid: Grid) -> str:
    if kind == "hnsw":
        return "hnswlib" if "hnswlib" in grid.libraries else "faiss"
    return "bm25s" if kind == "bm25" else "faiss"


def _indices(grid: Grid) -> list[dict[str, Any]]:
    """Small ones first; those of one data set together."""
    out: list[dict[str, Any]] = []
    for vectors in sorted(set(grid.vectors)):
        for dim in sorted(set(grid.dims)):
            for kind in grid.kinds:
                if kind != "bm25":
                    out += [{"kind": kind, "library": _library(kind, grid), "vectors": vectors, "dim": dim, **more}
                            for more in _builds(kind, vectors, dim, grid)]
        if "bm25" in grid.kinds:
            out.append({"kind": "bm25", "library": "bm25s", "vectors": vectors})
    if not out:
        raise InputError("at least one index that can be built", Verbatim("none"), field="--dim")
    return [{"name": _name(index), **index} for index in out]


def _builds(kind: str, vectors: int, dim: int, grid: Grid) -> list[dict[str, Any]]:
    if kind == "hnsw":
        return [{"hnsw_m": m, "ef_construction": grid.ef_construction} for m in grid.hnsw_m]
    near = 2 ** round(math.log2(math.sqrt(vectors)))
    nlists = [n for n in grid.nlists or (near, 4 * near) if n <= (vectors if grid.nlists else vectors // _PER_LIST)]
    if not nlists:
        raise InputError(f"at most the {vectors} vectors", list(grid.nlists), field="--nlist")
    if kind == "ivf-flat":
        return [{"nlist": nlist} for nlist in nlists]
    subspaces = grid.pq_m or (max(1, dim // 8),)
    for m in subspaces:
        if dim % m:
            raise InputError(f"divisors of the {dim} dimensions", m, field="--pq-m")
    return [{"nlist": nlist, "pq_m": m} for nlist in nlists for m in subspaces]


def _name(index: dict[str, Any]) -> str:
    parts = [index["kind"], f"n={index['vectors']}"]
    parts += [f"{short}={index[key]}" for key, short in (
        ("dim", "d"), ("nlist", "lists"), ("pq_m", "m"), ("hnsw_m", "m"), ("ef_construction", "efc")) if key in index]
    return " ".join(parts)


def _efforts(index: dict[str, Any], grid: Grid) -> list[int]:
    if index["kind"] == "hnsw":
        return sorted({max(ef, grid.top_k) for ef in grid.ef_searches})
    if index["kind"] == "bm25":
        return sorted(set(grid.query_tokens))
    return sorted({min(nprobe, index["nlist"]) for nprobe in grid.nprobes})


def _build_s(index: dict[str, Any], threads: int) -> float:
    """Rough: data, training, adding."""
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
    """Rough seconds of one query."""
    index, effort = point["index"], point["effort"]
    n, dim = index["vectors"], index.get("dim", 0)
    if index["kind"] == "bm25":
        return float(20e-6 + n * 3e-9 + effort * n * 0.02 * 2e-9)
    if index["kind"] == "hnsw":
        return float(effort * index["hnsw_m"] * dim / 128 * _DISTANCE_S)
    code = {"ivf-flat": 4 * dim, "ivf-pq": 4 * index.get("pq_m", 0), "ivf-pq-fs": index.get("pq_m", 0) / 2}
    scanned = n * effort / index["nlist"] * code[index["kind"]]
    return float(10e-6 + 2 * dim * index["nlist"] / _FLOPS + scanned / _SCAN_BYTES)


def memory_bytes(plan: dict[str, Any]) -> int:
    """The most memory a point of the plan needs: vectors twice (data and index), codes, graph, the exact answers."""
    most = 0
    for index in {point["index"]["name"]: point["index"] for point in plan["points"]}.values():
        n, dim = index["vectors"], index.get("dim", 0)
        if index["kind"] == "bm25":
            need = n * 100 * (8 + 8 + 36)
        elif index["kind"] == "hnsw":
            need = n * (8 * dim + 8 * index["hnsw_m"] + 16)
        else:
            code = {"ivf-flat": 4 * dim}.get(index["kind"], index.get("pq_m", 0))
            need = n * (4 * dim + code + 8) + index["nlist"] * dim * 4
        most = max(most, need + plan["queries"] * (4 * dim + 32_768 * 16))
    return int(most) + 200 * 2**20
