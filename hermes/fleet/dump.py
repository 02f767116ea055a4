"""Read dumps of metrics: a CSV with a row for each scrape, or answers of Prometheus to range queries.

CSV: columns `time_s`, `replica`, and of `waiting`, `running`, `kv_use` those that there are; `ready` (1 or 0; left out,
1). An empty cell is a value that is missing: the replica then has no sample at that time.

Prometheus: the JSON that it answers to a range query, with the metrics of vLLM as its servers name them. A query that
drops the name (`sum by (pod) (...)`) needs `waiting=FILE.json`. Several files are one dump. OpenMetrics with times
(.om), as `hermes export metrics` writes it, says the same. SGLang's names are known as vLLM's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hermes.config.columns import Column
from hermes.config.files import MAX_JSON_BYTES, read_json, text_lines
from hermes.config.tables import Table, csv_table
from hermes.core.scraped import SCRAPED
from hermes.errors import InputError, Verbatim, suggest
from hermes.fleet.replay import Dump, Rows
from hermes.units import parse_number, s_to_ns

__all__ = ["VLLM", "read_dump"]

VLLM = {"vllm:num_requests_waiting": "waiting", "vllm:num_requests_running": "running",
        "vllm:gpu_cache_usage_perc": "kv_use", "vllm:kv_cache_usage_perc": "kv_use"}
"""Metric of vLLM -> what it is here; of two with one meaning, the later one counts."""
NAMES = VLLM | {"sglang:num_queue_reqs": "waiting", "sglang:num_running_reqs": "running",
                "sglang:token_usage": "kv_use"}
_SAMPLE = re.compile(r'([A-Za-z_:][\w:]*)\{(.*)\} +(\S+)(?: +(\S+))?')
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')

_MOST_S = 1e10        # unix seconds of the year 2286
_MOST_REPLICAS = 10_000
_GAP_S = 86_400.0     # longer without any row, it is two dumps
_TIME = Column("time_s", low=-_MOST_S, high=_MOST_S, unit="seconds")
_VALUES = {"waiting": Column("waiting", low=0.0, high=1e9, null=True, unit="sequences"),
           "running": Column("running", low=0.0, high=1e9, null=True, unit="sequences"),
           "kv_use": Column("kv_use", low=0.0, high=1.0, null=True, unit="a share")}
_READY = Column("ready", "integer", 0, 1)
_COLUMNS = ("time_s", "replica", *_VALUES, "ready")
_NONE = ("nan", "")


class _Row(NamedTuple):
    """A scrape: of one replica, or one metric of it."""

    time_s: float
    replica: str
    values: dict[str, float]
    ready: bool


def read_dump(files: Sequence[str], label: str) -> Dump:
    """Return the dump of these files: one CSV, or JSON files of Prometheus, each perhaps with `METRIC=` before it.

    label: Of a series, with the name of the replica. Raises `InputError` for a malformed file.
    """
    if len(files) == 1 and files[0].lower().endswith(".csv"):
        return _dump(_csv(Path(files[0])), files[0])
    found: dict[tuple[str, float], dict[str, float]] = {}
    for text in files:
        metric, equals, name = text.partition("=")
        if not equals or metric not in SCRAPED:
            metric, name = "", text
        if not name.lower().endswith((".json", ".om")):
            raise InputError("the folder of a run, one .csv file, .json files of Prometheus or .om files", text,
                             field="RUN")
        _prometheus(Path(name), metric, label, found)
    return _dump((_Row(time, replica, values, True) for (replica, time), values in found.items()), files[0])


def _csv(path: Path) -> Iterator[_Row]:
    table: Table = csv_table(path)
    for name in table.columns:
        if name not in _COLUMNS:
            raise InputError(f"only the columns {', '.join(_COLUMNS)}", str(name), file=str(path), line=1,
                             suggestion=suggest(str(name), _COLUMNS))
    table.need(("time_s", "replica"))
    metrics = [name for name in SCRAPED if name in table]
    if not metrics:
        table.need(SCRAPED[:1])
    times, names = table.typed(_TIME).tolist(), table.typed(Column("replica", "text"))
    values = {name: table.typed(_VALUES[name]).tolist() for name in metrics}
    ready = table.typed(_READY).tolist() if "ready" in table else [1] * len(times)
    seen: set[tuple[str, float]] = set()
    for row, (time, name) in enumerate(zip(times, names, strict=True)):
        if not name:
            raise table.wrong("replica", row, "the name of a replica")
        if (name, time) in seen:
            raise table.wrong("time_s", row, f"one row of {name} at a time")
        seen.add((name, time))
        yield _Row(time, name, {metric: values[metric][row] for metric in metrics}, bool(ready[row]))


def _answer(path: Path) -> list[Any]:
    """Return the series of an answer of Prometheus to a range query."""
    content = read_json(path, MAX_JSON_BYTES)
    whole = content if isinstance(content, dict) else {}
    inner = whole.get("data")
    data = inner if isinstance(inner, dict) else {}
    series = data.get("result")
    if not isinstance(series, list) or data.get("resultType") != "matrix" or whole.get("status") != "success":
        raise InputError("an answer of Prometheus to a range query (`status: success`, `data.resultType: matrix`)",
                         file=str(path))
    return series


def _open_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the series of a file of OpenMetrics in the form of an answer; other metrics than those of `NAMES` not."""
    found: dict[tuple[str, str], list[list[Any]]] = {}
    for number, line in enumerate(text_lines(path, "a file of OpenMetrics"), start=1):
        sample = _SAMPLE.fullmatch(line.strip())
        if sample is None or sample[1] not in NAMES:
            continue
        try:
            time = float(sample[4])
        except (TypeError, ValueError):
            raise InputError(Verbatim("a sample without a time is one scrape; give a file with times, as hermes export "
                                      "metrics writes it"), file=str(path), line=number) from None
        found.setdefault((sample[1], sample[2]), []).append([time, sample[3]])
    return [{"metric": {"__name__": name, **dict(_LABEL.findall(labels))}, "values": values}
            for (name, labels), values in found.items()]


def _prometheus(path: Path, metric: str, label: str, found: dict[tuple[str, float], dict[str, float]]) -> None:
    """Add the series of a file to `found`: replica and time -> values. metric: Of a query that drops the name."""
    series = _open_metrics(path) if path.suffix.lower() == ".om" else _answer(path)
    own: set[tuple[str, str, float]] = set()   # of this file: name, replica, time
    for number, one in enumerate(series):
        field = f"data.result.{number}"
        labels, values = (one.get("metric"), one.get("values")) if isinstance(one, dict) else (None, None)
        if not isinstance(labels, dict) or not isinstance(values, list):
            raise InputError("a series with `metric` and `values`", file=str(path), field=field)
        name = labels.get("__name__", "")
        ours = metric or (NAMES.get(name) if isinstance(name, str) else None)
        if ours is None:
            if name:
                continue   # another metric
            raise InputError(Verbatim("the query has dropped the metric's name; write waiting=, running= or kv_use= "
                                      "before the file"), file=str(path), field=f"{field}.metric")
        replica = labels.get(label)
        if not isinstance(replica, str) or not replica:
            raise InputError(f"a label {label} with the replica's name (`--label` names another)", file=str(path),
                             field=f"{field}.metric")
        for place, pair in enumerate(values):
            time, value = _point(pair, ours, str(path), f"{field}.values.{place}")
            if (str(name), replica, time) in own:
                raise InputError(Verbatim(f"a second value of {replica} at this time; sum by ({label}) in the query, "
                                          "or give a --label that tells the series apart"), file=str(path), field=field)
            own.add((str(name), replica, time))
            known = found.setdefault((replica, time), {})
            if ours not in known or name != "vllm:gpu_cache_usage_perc":
                known[ours] = value


def _point(pair: Any, metric: str, file: str, field: str) -> tuple[float, float]:
    """Return time and value of a point."""
    if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) not in (int, float):   # a bool is none
        raise InputError("a pair of a time and a value", file=file, field=field)
    if not -_MOST_S <= pair[0] <= _MOST_S:
        raise InputError(_TIME.expected, pair[0], file=file, field=field)
    if not isinstance(pair[1], str):
        raise InputError("a value as text, as Prometheus writes it", pair[1], file=file, field=field)
    if pair[1].lower() in _NONE:
        return float(pair[0]), float("nan")
    column = _VALUES[metric]
    try:
        value = float(parse_number(pair[1]))
    except (TypeError, ValueError, OverflowError):
        raise InputError("a number", pair[1], file=file, field=field) from None
    if not column.low <= value <= column.high:
        raise InputError(f"{metric} from {column.low:g} to {column.high:g}", pair[1], file=file, field=field)
    return float(pair[0]), value


def _dump(rows: Iterable[_Row], file: str) -> Dump:
    by_replica: dict[str, list[_Row]] = {}
    for row in rows:
        by_replica.setdefault(row.replica, []).append(row)
    if not by_replica:
        raise InputError("a dump with at least one row of a metric that is known", Verbatim("none"), file=file)
    if len(by_replica) > _MOST_REPLICAS:
        raise InputError(f"at most {_MOST_REPLICAS:,} replicas", len(by_replica), file=file)
    times = np.unique([row.time_s for mine in by_replica.values() for row in mine])
    for at in np.flatnonzero(np.diff(times) > _GAP_S)[:1]:
        raise InputError(Verbatim(f"no row for {np.diff(times)[at] / 86_400:.3g} days after {times[at]:.10g} s; give "
                                  "the parts one by one"), file=file)
    start = float(times[0])
    metrics = {name for mine in by_replica.values() for row in mine for name in row.values}
    found: dict[str, Rows] = {}
    for name, mine in by_replica.items():
        mine.sort(key=lambda row: row.time_s)
        found[name] = Rows(
            np.array([s_to_ns(row.time_s - start) for row in mine], dtype=np.int64),
            np.array([row.ready for row in mine], dtype=bool),
            {metric: np.array([row.values.get(metric, np.nan) for row in mine]) for metric in metrics})
    return Dump(found, metrics, start)
