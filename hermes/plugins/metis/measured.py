"""Measured queries: F1 by query and configuration, true profiles and lengths of answers, from CSV files.

- `Measured`, quality model `measured`: columns `query`, `method`, `chunks`, `f1`; `words` for map_reduce; optionally
  `answer_tokens`, the length of that answer.
- `Queries`, the pipeline's `queries`: columns `query`; optionally all of `joint`, `complex` (0 or 1), `pieces`,
  `least_words`, `most_words`, the true profile; optionally `answer_tokens`.

A query's name is any text. The n-th request asks the n-th query of the `queries` file, or of the F1 file without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from hermes.config import FileName
from hermes.config.tables import Column, Table, csv_table
from hermes.errors import InputError, Verbatim, suggest
from hermes.plugins.metis.datasets import Dataset, Query
from hermes.plugins.metis.decision import MAX_CHUNKS, MAX_WORDS, METHODS, Configuration, Profile
from hermes.plugins.metis.quality import Quality, QualityModel

__all__ = ["F1Table", "Measured", "Queries"]

ANSWER = Column("answer_tokens", "integer", 1, 2**20, unit="tokens")
PROFILE = (Column("joint", "integer", 0, 1), Column("complex", "integer", 0, 1), Column("pieces", "integer", 1, 10),
           Column("least_words", "integer", 30, 200), Column("most_words", "integer", 30, 200))


def _read(file: str, needed: Sequence[str], optional: Sequence[str]) -> Table:
    """Return the columns of a CSV file. Raises `InputError` for a missing one, an unknown one, and for no rows."""
    table = csv_table(Path(file))
    table.need(needed)
    known = [*needed, *optional]
    for name in table.columns:
        if name not in known:
            raise InputError(f"columns among {', '.join(known)}", name, file=file, line=1,
                             suggestion=suggest(name, known))
    if not len(table):
        raise InputError("at least one row", Verbatim("none"), file=file)
    return table


class Measured(Quality):
    """F1 as measured: a file with a row for each query and configuration.

    A configuration that was not measured has the F1 of the nearest one that was, of the same method: by chunks, then by
    words of a summary, and the smaller of two.
    """

    kind: Literal["measured"] = "measured"
    file: FileName
    """CSV with columns `query`, `method`, `chunks`, `f1`; `words` for map_reduce, else 0 or empty; optionally
    `answer_tokens`. Relative to the scenario."""

    def opened(self) -> F1Table:
        return F1Table(self.file)


class F1Table(QualityModel):
    """The rows of such a file."""

    def __init__(self, file: str) -> None:
        """Read the file. Raises `InputError` with file, line and field of the first mistake."""
        table = _read(file, ("query", "method", "chunks", "f1"), ("words", "answer_tokens"))
        names, methods = (table.typed(Column(name, "text")) for name in ("query", "method"))
        chunks = table.typed(Column("chunks", "integer", 1, MAX_CHUNKS)).tolist()
        words = [0] * len(table)
        if "words" in table:
            words = np.nan_to_num(table.typed(Column("words", "integer", 0, MAX_WORDS, null=True))).astype(int).tolist()
        f1 = table.typed(Column("f1", low=0.0, high=1.0, unit="an F1")).tolist()
        answers = table.typed(ANSWER).tolist() if "answer_tokens" in table else [None] * len(table)
        self.file = file
        self._rows: dict[str, dict[Configuration, tuple[float, int | None]]] = {}
        for row, (name, method) in enumerate(zip(names, methods, strict=True)):
            if method not in METHODS:
                raise table.wrong("method", row, f"one of {', '.join(METHODS)}")
            if (method == "map_reduce") != (words[row] > 0):
                raise table.wrong("words" if "words" in table else "method", row,
                                  "words of a summary for map_reduce, and 0 or nothing for other methods")
            config, measured = Configuration(method, chunks[row], words[row]), self._rows.setdefault(name, {})
            if config in measured:
                raise table.wrong("query", row, f"each query once with {config}")
            measured[config] = f1[row], answers[row]

    @property
    def queries(self) -> Sequence[str]:
        return list(self._rows)

    def f1(self, query: Query, config: Configuration) -> float:
        return self._nearest(query, config)[0]

    def is_measured(self, query: Query, config: Configuration) -> bool:
        return config in self._rows.get(query.name, {})

    def answer_tokens(self, query: Query, config: Configuration) -> int | None:
        return self._nearest(query, config)[1]

    def _nearest(self, query: Query, config: Configuration) -> tuple[float, int | None]:
        rows = self._rows.get(query.name, {})
        if config in rows:
            return rows[config]
        same = [one for one in rows if one.method == config.method]
        if not same:
            raise InputError(f"a row of query {query.name!r} with method {config.method}, which was chosen for it",
                             Verbatim(f"methods {', '.join(sorted({one.method for one in rows}))}" if rows else "none"),
                             field="method", file=self.file)
        return rows[min(same, key=lambda one: (
            abs(one.num_chunks - config.num_chunks), abs(one.summary_words - config.summary_words),
            one.num_chunks, one.summary_words))]


class Queries:
    """The queries of a simulation: drawn from the data set, with names, profiles and answers from files where given."""

    def __init__(self, dataset: Dataset, file: str | None, measured: Sequence[str]) -> None:
        """Read the file. Raises `InputError` for its first mistake.

        Args:
            dataset: Draws what the file lacks.
            file: The pipeline's `queries`.
            measured: Names of the queries whose quality is known; empty for all.
        """
        self.dataset, self.names = dataset, list(measured)
        self._profiles: Sequence[Profile | None] = [None] * len(self.names)
        self._answers: Sequence[int | None] = self._profiles  # type: ignore[assignment]  # as many of nothing
        if file is None:
            return
        given = [column.name for column in PROFILE]
        table = _read(file, ("query",), (*given, ANSWER.name))
        self.names = table.typed(Column("query", "text"))
        for row, name in enumerate(self.names):
            if measured and name not in set(measured):
                raise table.wrong("query", row, "a query of the file of measured F1")
        self._answers = table.typed(ANSWER).tolist() if ANSWER.name in table else [None] * len(table)
        self._profiles = [None] * len(table)
        if any(name in table for name in given):
            table.need(given)
            joint, hard, pieces, least, most = (table.typed(column).tolist() for column in PROFILE)
            for row in range(len(table)):
                if least[row] > most[row]:
                    raise table.wrong("most_words", row, f"at least least_words ({least[row]})")
            self._profiles = [Profile(bool(a), bool(b), n, (low, high)) for a, b, n, low, high in zip(
                joint, hard, pieces, least, most, strict=True)]

    def draw(self, number: int, rng: np.random.Generator) -> Query:
        """Return a query. number: From 0; it decides which of the files' queries it is."""
        drawn = self.dataset.draw(rng)
        if not self.names:
            return drawn
        row = number % len(self.names)
        return replace(drawn, name=self.names[row], profile=self._profiles[row] or drawn.profile,
                       answer_tokens=self._answers[row])
