"""Serve a reference set's requests in simulation, and compare its figures with the measured ones.

A `Row` is one figure of an accuracy table: measured, predicted, and what the best other simulator predicts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hermes.api import simulate
from hermes.arrays import FloatArray
from hermes.config.columns import Column
from hermes.config.tables import csv_table
from hermes.errors import InputError
from hermes.hardware.trust import Trust
from hermes.results import Results
from hermes.results.compare import compare

__all__ = [
    "LATENCIES", "STATISTICS", "Case", "Figures", "Row", "compared", "latencies", "read_rows", "replay", "rows_of",
    "statistics", "trust_of_steps",
]

LATENCIES = ("ttft", "tpot", "e2e")
STATISTICS = {"mean": None, "p50": 50.0, "p90": 90.0, "p99": 99.0}
Figures = Mapping[tuple[str, str], float]
"""(metric, statistic) -> value; seconds, or the unit that the metric's name ends in."""


class Case(NamedTuple):
    """One server and one load of a reference set.

    trust: class and range of the prediction's step times; None where it is no prediction of times.
    precision: of most weights.
    """

    set: str
    case: str
    engine: str
    card: str
    model: str
    trust: Trust | None = None
    precision: str = "16 bits"


class Row(NamedTuple):
    """One figure of a case. `peer` is the error of the best other simulator with a published prediction, or None."""

    case: Case
    metric: str
    stat: str
    measured: float
    predicted: float
    peer: float | None = None

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.measured - 1.0


def statistics(columns: Mapping[str, Iterable[float]]) -> dict[tuple[str, str], float]:
    """Mean and percentiles of each column; rows that are not finite are left out."""
    out: dict[tuple[str, str], float] = {}
    for metric, values in columns.items():
        array: FloatArray = np.asarray(list(values), dtype=np.float64)
        array = array[np.isfinite(array)]
        for stat, share in STATISTICS.items():
            if len(array):
                out[metric, stat] = float(array.mean() if share is None else np.percentile(array, share))
    return out


def rows_of(case: Case, measured: Figures, predicted: Figures, peers: Figures | None = None) -> Iterator[Row]:
    """A row for each measured figure that was predicted."""
    for key, value in measured.items():
        if key in predicted and value > 0:
            yield Row(case, *key, value, predicted[key], None if peers is None else peers.get(key))


def latencies(requests: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Statistics of TTFT, TPOT and E2E of requests."""
    return statistics({name: requests[f"{name}_s"] for name in LATENCIES})


def compared(case: Case, results: Results, reference: Path, tool: str, metrics: Sequence[str]) -> Iterator[Row]:
    """A row for each statistic of these metrics, by the comparison with `reference`, a file of `tool`."""
    for row in compare(results, reference, tool).rows:
        if row.metric in metrics and row.stat in STATISTICS and row.reference_s:
            yield Row(case, row.metric, row.stat, row.reference_s, float(row.ours_s or 0.0))


def read_rows(
    path: Path, integers: Sequence[str], numbers: Sequence[str], texts: Sequence[str] = (), maybe: str = "",
) -> pd.DataFrame:
    """Read the named columns of a CSV file of at least one row. Raises `InputError`.

    Args:
        path: The file.
        integers: Columns of integers of at least 0.
        numbers: Columns of numbers of at least 0.
        texts: Columns of text.
        maybe: A column of numbers that may be missing, or empty in some rows.
    """
    table = csv_table(path)
    table.need((*integers, *numbers, *texts))
    if not len(table):
        raise InputError("at least one row", "none", file=str(path))
    columns = [*(Column(name, "integer", 0) for name in integers), *(Column(name, low=0) for name in numbers),
               *(Column(name, "text") for name in texts)]
    if maybe in table:
        columns.append(Column(maybe, low=0, null=True))
    return pd.DataFrame({column.name: table.typed(column) for column in columns})


def replay(
    client: Mapping[str, Any], requests: pd.DataFrame, arrivals: Mapping[str, Any] | None = None,
    router: Mapping[str, Any] | None = None, max_in_flight: int | None = None,
    gateway: Mapping[str, Any] | None = None,
) -> Results:
    """Results of one client, or a group of equal ones behind `router`, that serves `requests`, a trace
    (`hermes.workload.traces`): its rows are served in order, at their `arrival_s` or as soon after as fewer than
    `max_in_flight` are being served, or by `arrivals` where given. `gateway`: the scenario's key, if any."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "requests.csv"
        requests.to_csv(path, index=False)
        trace = {"kind": "trace", "path": str(path)}
        at = trace if max_in_flight is None else {**trace, "max_in_flight": max_in_flight}
        # the servers' load drivers asked for answers of these lengths
        workload: dict[str, Any] = {"arrivals": dict(arrivals or at), "lengths": trace, "ends": "max_new_tokens"}
        if arrivals is not None:
            workload["requests"] = len(requests)
        scenario: dict[str, Any] = {"name": "accuracy", "seed": 1, "workload": workload, "clients": [dict(client)]}
        if router is not None:
            scenario["router"] = dict(router)
        if gateway is not None:
            scenario["gateway"] = dict(gateway)
        return simulate(scenario, whole=True)


def trust_of_steps(results: Results) -> Trust | None:
    """Return class and range of the step times of the first group of clients, as `run` prints them; None where the
    queue grows, of which no latency has a range."""
    if results.find_sources is None or results.summary_of_run["headline"]["stable"] is False:
        return None
    found = results.find_sources(results)
    return Trust(found[0]["class"], found[0]["low"], found[0]["high"]) if found else None
