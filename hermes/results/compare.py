"""Ours beside a reference: the same metrics of both, and how far apart they are.

Errors are (ours - reference) / reference. The table compares distributions (all completed requests of ours with all of
the reference); where requests can be joined, the errors of single requests are given as well.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hermes.errors import InputError
from hermes.results.distribution import Distribution
from hermes.results.layout import Section, format_number, format_s, sections_html, sections_rich, sections_text
from hermes.results.record import STATUS_COMPLETED
from hermes.results.reference import PRESETS, Reference, ReferenceMapping, guess_mapping, load_reference
from hermes.results.results import Results
from hermes.results.stored import open_run

__all__ = ["CompareRow", "CompareTable", "PerRequest", "compare"]

FloatArray = npt.NDArray[np.float64]

_STATS = ("mean", "p50", "p90", "p99")
_METRICS = {"ttft": "TTFT", "tpot": "TPOT", "tbt": "TBT", "itl": "ITL", "e2e": "E2E"}


@dataclass(frozen=True)
class CompareRow:
    """One statistic of one metric in seconds; `error` is relative (0.02: ours is 2% more), None where undefined."""

    metric: str
    stat: str
    ours_s: float | None
    reference_s: float | None
    error: float | None


@dataclass(frozen=True)
class PerRequest:
    """Relative errors of joined requests: mean with sign, and mean, median, p90, p99 and maximum of the size."""

    metric: str
    count: int
    mean_error: float | None
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True)
class CompareTable:
    """What `compare` found."""

    rows: Sequence[CompareRow]
    per_request: Sequence[PerRequest]
    ours: int                  # completed requests of ours
    reference: int             # requests of the reference
    joined: int | None         # in both; None if they were not joined
    usage: Mapping[str, float | None] = field(default_factory=dict)   # our joules and dollars, where there are any

    def error(self, metric: str, stat: str = "mean") -> float | None:
        """The relative error of one statistic; `InputError` if it was not compared."""
        for row in self.rows:
            if (row.metric, row.stat) == (metric, stat):
                return row.error
        known = ", ".join(f"{row.metric} {row.stat}" for row in self.rows)
        raise InputError(f"one of {known}", f"{metric} {stat}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "requests": {"ours": self.ours, "reference": self.reference, "joined": self.joined},
            "metrics": [asdict(row) for row in self.rows], "per_request": [asdict(row) for row in self.per_request],
            **({"usage": dict(self.usage)} if self.usage else {}),
        }

    def sections(self) -> list[Section]:
        rows = [
            (_METRICS[row.metric], row.stat, format_s(row.ours_s), format_s(row.reference_s), _signed(row.error))
            for row in self.rows
        ]
        note = f"{self.ours:,} completed requests of ours, {self.reference:,} of the reference"
        out = [Section("comparison", ("metric", "stat", "ours", "reference", "error"), rows, note)]
        if self.per_request:
            out.append(Section(
                f"error of single requests ({self.joined:,} joined)",
                ("metric", "requests", "mean", "mean size", "p50", "p90", "p99", "max"),
                [(_METRICS[row.metric], f"{row.count:,}", _signed(row.mean_error),
                  *(_size(value) for value in (row.mean, row.p50, row.p90, row.p99, row.max)))
                 for row in self.per_request],
            ))
        if self.usage:
            shown = [(name.replace("_", " "), format_number(value)) for name, value in self.usage.items()]
            out.append(Section("energy and cost of ours", ("", ""), shown))
        return out

    def table(self) -> Any:
        """Rich tables."""
        return sections_rich(self.sections())

    def to_text(self) -> str:
        return sections_text(self.sections())

    def _repr_html_(self) -> str:
        return sections_html(self.sections())


def _signed(error: float | None) -> str:
    return "-" if error is None else f"{error * 100:+.2f}%"


def _size(error: float | None) -> str:
    return "-" if error is None else f"{error * 100:.2f}%"


def compare(
    run: str | os.PathLike[str] | Results, reference: str | os.PathLike[str],
    mapping: ReferenceMapping | str | None = None,
) -> CompareTable:
    """Compare a run (its folder, or `Results`) with a reference file.

    mapping: which column is what, or the name of one of `reference.PRESETS`; None goes by the names of the columns.
    Raises `InputError` for what cannot be read, naming file, line and column, and where nothing can be compared.
    """
    if mapping is None:
        mapping = guess_mapping(reference)
    elif isinstance(mapping, str):
        if mapping not in PRESETS:
            raise InputError(f"one of {', '.join(PRESETS)}", mapping, field="mapping")
        mapping = PRESETS[mapping]
    theirs = load_reference(reference, mapping)
    results = run if isinstance(run, Results) else open_run(run)
    ours = _our_columns(results)
    shared = [metric for metric in _METRICS if metric in theirs.columns]
    rows: list[CompareRow] = []
    for metric in _METRICS:
        if metric in shared:
            rows += _rows(metric, Distribution(ours[metric]), Distribution(theirs.columns[metric]))
        elif metric == "itl" and theirs.itl_s is not None:
            rows += _rows(metric, results.itl_s(), Distribution(theirs.itl_s))
    if not rows:
        raise InputError("a mapping that gives at least one of ttft, tpot, tbt, e2e, token_times", field="mapping",
                         file=os.fspath(reference))
    per_request, joined = _join(results, ours, theirs, shared)
    completed = int((results.record.status == STATUS_COMPLETED).sum())
    return CompareTable(rows, per_request, completed, theirs.count, joined, _usage(results.summary))


def _usage(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Joules and dollars of a run; empty where it has neither."""
    energy, cost = summary.get("energy") or {}, summary.get("cost") or {}
    wanted = (
        (energy, "total_j"), (energy, "per_request_j"), (energy, "per_output_token_j"), (cost, "total_dollars"),
        (cost, "per_request_dollars"), (cost, "per_million_output_tokens_dollars"),
        (cost, "per_million_tokens_dollars"),
    )
    return {name: part[name] for part, name in wanted if name in part}


def _our_columns(results: Results) -> dict[str, FloatArray]:
    requests = results.columns("requests")
    ours = {name: np.asarray(requests[f"{name}_s"]) for name in ("ttft", "tpot", "e2e")}
    ours["tbt"] = (ours["e2e"] - ours["ttft"]) / requests["output_tokens"]
    return ours


def _relative(ours: float | None, theirs: float | None) -> float | None:
    return (ours - theirs) / theirs if ours is not None and theirs else None


def _rows(metric: str, ours: Distribution, theirs: Distribution) -> list[CompareRow]:
    a, b = ours.stats(), theirs.stats()
    return [CompareRow(metric, stat, a[stat], b[stat], _relative(a[stat], b[stat])) for stat in _STATS]


def _join(
    results: Results, ours: dict[str, FloatArray], theirs: Reference, shared: list[str]
) -> tuple[list[PerRequest], int | None]:
    if theirs.ids is None:
        return [], None
    known = np.flatnonzero((theirs.ids >= 0) & (theirs.ids < len(results.record.status)))
    known = known[results.record.status[theirs.ids[known]] == STATUS_COMPLETED]
    out = []
    for metric in shared:
        mine, their = ours[metric][theirs.ids[known]], theirs.columns[metric][known]
        usable = ~np.isnan(mine) & (their > 0)
        error = (mine[usable] - their[usable]) / their[usable]
        size = Distribution(np.abs(error)).stats()
        signed = float(error.mean()) if len(error) else None
        out.append(PerRequest(metric, len(error), signed, *(size[stat] for stat in (*_STATS, "max"))))
    return out, len(known)
