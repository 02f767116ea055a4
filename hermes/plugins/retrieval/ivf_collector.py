"""Collector of an inverted file for lookahead retrieval: cluster sizes, overlap of rewrites, scan and merge speed.

It builds a faiss IVF index over embeddings. Queries are rewritten in several ways, and every centroid is ranked for a
query and for its rewrite, which gives the overlap for any number of prefetched clusters and any nprobe. Generated
rewrites:

    drift    towards a vector drawn from the corpus (another subject)
    passage  towards one of the query's ten nearest vectors (a passage that answers it, as HyDE writes)
    noise    in a random direction
    mixed    as `noise`, by an amount that differs from query to query (log-normal, sigma 0.7)

Real ones come from a file of embeddings (scripts/sentence_embeddings.py). Imports: numpy and faiss.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hermes.arrays import IntArray
from hermes.calibration.collect.session import Collector, CollectorError, machine, main
from hermes.plugins.retrieval.indices import Embeddings, IvfIndex, embeddings, unit

__all__ = ["IvfEngine", "OverlapIndex", "of_file"]

Floats = npt.NDArray[np.float32]
AMOUNTS = {"drift": (0.1, 0.2, 0.35), "passage": (0.3, 0.6, 0.9), "noise": (0.4,), "mixed": (0.4,)}
_NEAREST = 10


def of_file(path: Path) -> Embeddings:
    """Read arrays `vectors`, `queries` and `rewrite_NAME` of an .npz file. Raises `ValueError` for an invalid one."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            found = {name: np.asarray(stored[name], dtype=np.float32) for name in stored.files}
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not an .npz file of numbers ({error})") from None
    if not {"vectors", "queries"} <= set(found):
        raise ValueError(f"{path}: needs arrays `vectors` and `queries`")
    rewrites = {name.removeprefix("rewrite_"): unit(array) for name, array in found.items() if "rewrite_" in name}
    wrong = [n for n, a in rewrites.items() if a.shape != found["queries"].shape]
    if wrong or found["vectors"].shape[1] != found["queries"].shape[1]:
        raise ValueError(f"{path}: vectors, queries and rewrites of one width, a rewrite of each kind per query")
    return Embeddings(unit(found["vectors"]), unit(found["queries"]), rewrites)


class OverlapIndex(IvfIndex):
    """An IVF-flat index of faiss by inner product, and its measurements."""

    def __init__(self, data: Embeddings, nlist: int, threads: int, seed: int) -> None:
        began = time.perf_counter()
        super().__init__(data, {"kind": "ivf-flat", "nlist": nlist}, threads, seed)
        self.build_s = time.perf_counter() - began
        self.data, self.seed, self.nlist = data, seed, nlist
        self.centroids = np.asarray(self.index.quantizer.reconstruct_n(0, nlist))

    def ranking(self, queries: Floats) -> IntArray:
        """Return clusters from near to far, shape (queries, clusters)."""
        return np.argsort(-(queries @ self.centroids.T), axis=1, kind="stable")

    def rewrites(self) -> Iterator[tuple[str, Floats]]:
        """Yield (name, a rewrite of each query): those of the data, else generated ones of several amounts."""
        if self.data.rewrites:
            yield from self.data.rewrites.items()
            return
        queries, vectors = self.data.queries, self.data.vectors
        rng = np.random.default_rng([self.seed, 1])
        count, dim = queries.shape
        self.index.nprobe = min(64, self.nlist)
        near = self.index.search(queries, _NEAREST)[1][np.arange(count), rng.integers(_NEAREST, size=count)]
        noise = unit(rng.standard_normal((count, dim)).astype(np.float32))
        other = vectors[rng.integers(len(vectors), size=count)]
        unequal = rng.lognormal(-0.245, 0.7, (count, 1)).astype(np.float32)
        for kind, amounts in AMOUNTS.items():
            for s in amounts:
                if kind in ("drift", "passage"):
                    target = other if kind == "drift" else vectors[near]
                    yield f"{kind} {s:g}", unit((1 - s) * queries + s * target)
                else:
                    yield f"{kind} {s:g}", unit(queries + s * noise * (unequal if kind == "mixed" else 1))

    def scan(self, point: dict[str, Any]) -> list[dict[str, Any]]:
        """Return seconds and bytes of scans, one query after the other, lists shared by the threads."""
        faiss, queries = self.faiss, self.data.queries
        faiss.omp_set_num_threads(point["threads"])
        # one query: its lists are dealt to the threads (faiss' parallel_mode 1)
        self.index.nprobe, self.index.parallel_mode = point["nprobe"], 1
        lists = self.index.quantizer.search(queries, point["nprobe"])[1]
        num_bytes = self.sizes[lists].sum(axis=1) * 4 * queries.shape[1]
        rows = []
        for repetition in range(point["repetitions"] + 1):
            chosen = np.arange(repetition * 16, repetition * 16 + 16) % len(queries)
            began = time.perf_counter()
            for i in chosen:
                self.index.search(queries[i : i + 1], point["top_k"])
            rows.append({"time_s": time.perf_counter() - began, "bytes": int(num_bytes[chosen].sum())})
        return rows[1:]   # the first warms up

    def merge(self, point: dict[str, Any]) -> list[dict[str, Any]]:
        """Return seconds to pick the best `top_k` of so many distances."""
        distances = np.random.default_rng([self.seed, 2]).random((32, point["candidates"]), dtype=np.float32)
        rows = []
        for _ in range(point["repetitions"] + 1):
            began = time.perf_counter()
            for row in distances:
                best = np.argpartition(row, point["top_k"])[:point["top_k"]]
                best[np.argsort(row[best])]
            rows.append({"time_s": (time.perf_counter() - began) / len(distances)})
        return rows[1:]


class IvfEngine(Collector):
    """One index and what is measured of it."""

    def __init__(self, plan: dict[str, Any]) -> None:
        """Raises `CollectorError` for data that does not fit, or without faiss."""
        super().__init__(plan)
        settings = plan["settings"]
        try:
            data = of_file(Path(settings["rewrites_file"])) if settings["rewrites_file"] else embeddings(
                settings["vectors"], settings["dim"], settings["queries"], settings["seed"])
            if not 16 <= settings["nlist"] <= len(data.vectors) // 16:
                raise CollectorError(f"nlist: expected between 16 and a sixteenth of the {len(data.vectors)} vectors, "
                                     f"found {settings['nlist']}")
            self.index = OverlapIndex(data, settings["nlist"], settings["threads"], settings["seed"])
        except ValueError as error:
            raise CollectorError(f"rewrites_file: {error}") from None
        except ImportError:
            raise CollectorError("faiss is not installed: pip install 'hermes-sim[retrieval]'") from None

    def environment(self) -> dict[str, Any]:
        """Return machine and library."""
        return machine() | {"faiss": str(importlib.import_module("faiss").__version__)}

    def measure(self, point: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return rows of scans or merges; of the overlap no rows, but what was counted (`work`)."""
        if point["kind"] == "overlap":
            return [], {"work": self._overlap(point)}
        rows = (self.index.scan if point["kind"] == "scan" else self.index.merge)(point)
        return [{"repetition": n, **row} for n, row in enumerate(rows)], {}

    def _overlap(self, point: dict[str, Any]) -> dict[str, Any]:
        from hermes.plugins.telerag.overlap.curves import shared

        index, data = self.index, self.index.data
        before = index.ranking(data.queries)
        curves = {name: shared(before, index.ranking(vectors), point["budgets"], point["nprobes"])
                  for name, vectors in index.rewrites()}
        return {
            "vectors": len(data.vectors), "dim": data.vectors.shape[1], "queries": len(data.queries),
            "build_s": index.build_s, "sizes": index.sizes.tolist(),
            "probed": [float(index.sizes[before[:, :nprobe]].mean()) for nprobe in point["nprobes"]],
            "curves": {name: {"overlap": curve.overlap.tolist(), "error": curve.error.tolist()}
                       for name, curve in curves.items()},
        }


if __name__ == "__main__":
    sys.exit(main(IvfEngine))
