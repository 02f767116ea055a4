"""Measured data of an index: the ranks of queries and their rewrites, and the bytes of its clusters.

Both are read through `hermes.config.tables`. Errors name file, line and field.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hermes.arrays import IntArray
from hermes.config.tables import Column, Table, csv_table, json_table, parquet_columns
from hermes.errors import InputError, Verbatim
from hermes.plugins.telerag.overlap.families import Family, Floats

__all__ = ["Ranks", "read_sizes"]

_COLUMNS = ("query", "rewrite", "clusters")


def read_sizes(path: Path, clusters: int) -> IntArray:
    """Return the bytes of each cluster: column `bytes` of a CSV file, a line for each cluster in the order of their
    numbers."""
    table = csv_table(path)
    table.need(["bytes"])
    sizes: IntArray = table.typed(Column("bytes", "integer", 0, 2**50))
    if len(sizes) != clusters:
        raise InputError(f"{clusters} lines, one for each cluster", Verbatim(f"{len(sizes)}"), field="bytes",
                         file=str(path))
    if not sizes.sum():
        raise InputError("at least a byte", 0, field="bytes", file=str(path))
    return sizes


class Ranks(Family):
    """Queries and rewrites as they were ranked on a real index, from JSON lines or Parquet.

    Each row is one ranking: `query` (any name or number), `rewrite` (0: the query itself, 1: its first rewrite, ...)
    and `clusters`, the nearest first. All rows name equally many clusters. A state is (number of the query, rewrite).
    """

    shape = ()

    def __init__(self, path: Path, clusters: int) -> None:
        """Read the file. Raises `InputError`."""
        super().__init__()
        self.file = str(path)
        table = _rows(path)
        ranked = table.typed(Column("clusters", "integers", 0))
        rewrites = table.typed(Column("rewrite", "integer", 0, 10**6))
        self.reach = reach = len(ranked[0])
        for row, found in enumerate(ranked):
            if len(found) != reach or not found:
                raise table.wrong("clusters", row, f"{max(1, reach)} clusters, as in the first row",
                                  Verbatim(f"{len(found)}"))
            if max(found) >= clusters:
                raise table.wrong("clusters", row, f"clusters below {clusters}, the number of clusters", max(found))
            if len(set(found)) < len(found):
                raise table.wrong("clusters", row, "each cluster once", max(found, key=found.count))
        self._ranked = np.array(ranked, dtype=np.int64)
        self._row: dict[tuple[int, int], int] = {}
        names = table.numbered("query")
        for row, key in enumerate(zip(names.tolist(), rewrites.tolist(), strict=True)):
            if key[0] < 0:
                raise table.wrong("query", row, "the name of a query")
            if key in self._row:
                raise table.wrong("rewrite", row, "each rewrite of a query once")
            self._row[key] = row
        for (query, rewrite), row in self._row.items():
            if rewrite and (query, rewrite - 1) not in self._row:
                raise table.wrong("rewrite", row, f"rewrite {rewrite - 1} of this query, too (0: the query itself)")
        self.table, self.queries = table, int(names.max()) + 1

    def first(self, number: int, clusters: int, rng: np.random.Generator) -> Floats:
        return np.array([[number % self.queries, 0]], dtype=np.float64)

    def rewrites(self, state: Floats, strength: float, count: int, rng: np.random.Generator) -> list[Floats]:
        """Return the next rewrites of the file. Raises `InputError` if it has fewer."""
        query, rewrite = (int(value) for value in state[0])
        if (query, rewrite + count) not in self._row:
            has = sum(key[0] == query for key in self._row) - 1
            raise self.table.wrong("rewrite", self._row[query, 0], f"rewrite {rewrite + count} of this query, which "
                                   "the pipeline asks for", Verbatim(f"{has} rewrites"))
        return [np.array([[query, rewrite + more]], dtype=np.float64) for more in range(1, count + 1)]

    def scores(self, state: Floats, bias: Floats, index: object) -> Floats:
        scores = np.full((len(state), len(bias)), -np.inf)
        rows = [self._row[int(query), int(rewrite)] for query, rewrite in state]
        np.put_along_axis(scores, self._ranked[rows], -np.arange(self._ranked.shape[1], dtype=np.float64), axis=1)
        return scores


def _rows(path: Path) -> Table:
    if path.suffix == ".parquet":
        table = parquet_columns(path, _COLUMNS)
    elif path.suffix == ".jsonl":
        table = json_table(path, _COLUMNS)
    else:
        raise InputError("a .jsonl or .parquet file", str(path))
    if not len(table):
        raise InputError("at least one row", Verbatim("none"), file=str(path))
    return table
