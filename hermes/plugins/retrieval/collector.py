"""Measure searches: `python -m hermes.plugins.retrieval.collector PLAN.json JOURNAL.jsonl`.

A point is one index, one effort (lists probed, efSearch, words of a query), one batch size and one number of threads.
Its rows are repetitions; each is the mean over as many calls as last 5 ms, walking through the queries, so that no two
calls in a row ask for the same; contended ones (`counters`) are marked and tried again. With them: the time of the
coarse search alone (IVF, one thread), wall and CPU time, and, per point, the work counted (codes scanned, postings),
recall against exact search, and peak memory.

By the plan's clock `cpu`, the time of a search with one thread is its CPU time: the same on an idle machine, and hardly
disturbed on a busy one. Searches with several threads are always timed by the wall clock.

An index is built when the first of its points is measured, and dropped when a point needs another one: plans keep the
points of an index together. Imports: standard library, numpy, and the library of the index.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hermes.calibration.collect.counters import contended, steady, waited_s
from hermes.calibration.collect.session import Collector, CollectorError, PointFailed, machine, main, noise_of
from hermes.core.noise import peak_rss_bytes
from hermes.plugins.retrieval.indices import (
    Index,
    build,
    embeddings,
    exact_neighbours,
    library_version,
    recall,
    texts,
)

__all__ = ["RetrievalEngine", "open_engine"]

LIBRARIES = ("faiss", "bm25s")
_RECALL_BATCH = 64
_ATTEMPTS = 4            # times the repetitions wanted: so often contended ones are tried again


class RetrievalEngine(Collector):
    """One index at a time, its data, and the exact answers."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__(plan)
        self._spec: dict[str, Any] | None = None
        self._index: Index | None = None
        self._built: dict[str, Any] = {}
        self._data: tuple[tuple[Any, ...], Any] | None = None
        self._exact: dict[tuple[Any, ...], Any] = {}
        self._recalls: dict[tuple[int, int], float] = {}

    def environment(self) -> dict[str, Any]:
        """Machine and libraries."""
        return machine() | {
            "libraries": {name: version for name in LIBRARIES if (version := library_version(name))}}

    def measure(self, point: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Rows of repetitions, and what is known of the point."""
        try:
            index = self._ready(point["index"])
            found = self._recall(index, point)
            rows = self._time(index, point)
        except (ValueError, RuntimeError, MemoryError) as error:
            raise PointFailed(" ".join(f"{type(error).__name__}: {error}".split())[:300]) from None
        cv, verdict = noise_of(steady(rows), "wall")
        more = {
            "cv": cv, "class": verdict, "contended": sum(contended(row) for row in rows),
            "library": index.library, "recall": found, "work": index.work(int(point["effort"])),
            "index": self._built, "peak_rss_bytes": peak_rss_bytes(),
        }
        return rows, more

    def _ready(self, spec: dict[str, Any]) -> Index:
        if self._index is not None and self._spec == spec:
            return self._index
        self._index, self._recalls = None, {}
        data = self._load(spec)
        efforts = sorted({int(p["effort"]) for p in self.plan["points"] if p["index"] == spec})
        began = time.perf_counter()
        self._index = build(data, spec, seed=self.plan["seed"], build_threads=self.plan["build_threads"],
                            queries=self.plan["queries"], efforts=efforts)
        self._spec = spec
        self._built = {"build_s": time.perf_counter() - began, **self._index.describe()}
        return self._index

    def _load(self, spec: dict[str, Any]) -> Any:
        plan = self.plan
        key = ("texts" if spec["kind"] == "bm25" else "vectors", spec["vectors"], spec.get("dim"))
        if self._data is None or self._data[0] != key:
            self._data = None  # before the next one is made: both might not fit
            self._exact = {}
            if key[0] == "texts":
                self._data = key, texts(spec["vectors"], plan["seed"], plan["texts_file"])
            else:
                self._data = key, embeddings(
                    spec["vectors"], spec["dim"], plan["queries"], plan["seed"], plan["vectors_file"])
        return self._data[1]

    def _recall(self, index: Index, point: dict[str, Any]) -> float:
        """Of the approximate indices; BM25 is exact."""
        if point["index"]["kind"] == "bm25":
            return 1.0
        top_k, effort = int(point["top_k"]), int(point["effort"])
        if (effort, top_k) not in self._recalls:
            assert self._data is not None
            if (top_k,) not in self._exact:
                self._exact[top_k,] = exact_neighbours(self._data[1], top_k)
            found = np.concatenate([
                index.search(first, min(_RECALL_BATCH, index.queries - first), effort, top_k, 1)
                for first in range(0, index.queries, _RECALL_BATCH)
            ])
            self._recalls[effort, top_k] = recall(found, self._exact[top_k,])
        return self._recalls[effort, top_k]

    def _time(self, index: Index, point: dict[str, Any]) -> list[dict[str, Any]]:
        batch, effort, threads = int(point["batch"]), int(point["effort"]), int(point["threads"])
        top_k, least_s = int(point["top_k"]), float(self.plan["repetition_s"])
        cpu_clock = self.plan["clock"] == "cpu" and threads == 1
        at = 0

        def search() -> None:
            nonlocal at
            index.search(at, batch, effort, top_k, threads)
            at += batch

        def coarse() -> None:
            nonlocal at
            index.coarse(at, batch, effort)
            at += batch

        search()
        staged = threads == 1 and index.coarse(0, batch, effort)
        rows: list[dict[str, Any]] = []
        wanted, good = int(point["repetitions"]), 0
        while good < wanted and len(rows) < _ATTEMPTS * wanted:
            row = {"repetition": len(rows), **_timed(search, least_s, cpu_clock)}
            if staged:
                stage = _timed(coarse, least_s / 4, cpu_clock)
                if not contended(stage):
                    row["coarse_s"] = stage["time_s"]
            rows.append(row)
            good += not contended(row)
        return rows


def _timed(call: Callable[[], None], least_s: float, cpu_clock: bool) -> dict[str, float]:
    """Means over calls that last `least_s` on the wall: seconds of a call (`time_s`), and by either clock.

    `waited_s` is the part of `time_s` that was spent waiting for a core: none by the CPU clock.
    """
    calls = 0
    waited, cpu, began = waited_s(), time.process_time(), time.perf_counter()
    while True:
        call()
        calls += 1
        wall = time.perf_counter() - began
        if wall >= least_s:
            break
    cpu, waited = time.process_time() - cpu, waited_s() - waited
    return {"time_s": (cpu if cpu_clock else wall) / calls, "wall_s": wall / calls, "cpu_time_s": cpu / calls,
            "waited_s": 0.0 if cpu_clock else waited / calls}


def open_engine(plan: dict[str, Any]) -> RetrievalEngine:
    """What the session calls. Raises `CollectorError` where a library is missing."""
    for library in sorted({point["index"]["library"] for point in plan["points"]}):
        if not library_version(library):
            raise CollectorError(f"{library} is not installed in {sys.executable}: pip install 'hermes-sim[retrieval]'")
    return RetrievalEngine(plan)


if __name__ == "__main__":
    sys.exit(main(open_engine))
