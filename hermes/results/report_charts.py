"""Charts of a report as Vega-Lite specifications: plain data, which tests read, drawn by the page's own script.

Several runs stand in one chart, each in its colour. Data are thinned so that a page stays small: distributions to
`POINTS` quantiles, time series to `BINS` bins, the timeline to `SAMPLE` requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hermes.core.record import STATUS_COMPLETED, RunRecord
from hermes.results.results import Results
from hermes.results.timeseries import client_timeseries
from hermes.results.usage import window_ns
from hermes.units import NS_PER_S

__all__ = ["Chart", "Spec", "cdf", "parts_of_latency", "run_charts", "timeline", "use_over_time"]

Spec = dict[str, Any]   # Any: Vega-Lite is JSON
Chart = tuple[str, str, Spec]   # title, what it shows, specification
Runs = Sequence[tuple[str, Results]]

POINTS, BINS, SAMPLE, MOST_CLIENTS = 120, 150, 60, 12
PERCENTILES = (50.0, 90.0, 99.0)
_METRICS = (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "E2E"))
_STAGES = ("wait", "prompt", "answer")


def _spec(values: list[dict[str, Any]], height: int, **more: Any) -> Spec:
    return {"$schema": "https://vega.github.io/schema/vega-lite/v6.json", "width": "container", "height": height,
            "autosize": {"type": "fit", "contains": "padding"}, "data": {"values": values}, **more}


def _round(values: npt.NDArray[np.float64], digits: int = 4) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]


def run_charts(runs: Runs) -> list[Chart]:
    """Return the charts of runs, without those that have nothing to show."""
    charts = [cdf(runs, metric, label) for metric, label in _METRICS]
    charts += [parts_of_latency(runs)]
    charts += [use_over_time(runs, *each) for each in (
        ("served_per_s", "Requests a second", "completed in each interval"),
        ("waiting", "Queue", "requests that wait at clients, mean of each interval"),
        ("kv_share", "KV memory", "share of the blocks of all clients in use"),
        ("stepping", "Clients running a step", "share of the clients with a step under way"))]
    charts += [timeline(name, run) for name, run in runs]
    return [chart for chart in charts if chart[2]["data"]["values"]]


def cdf(runs: Runs, metric: str, label: str) -> Chart:
    """Return the distribution of a latency, with percentiles and the SLO's limit."""
    values: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    limits: dict[float, str] = {}
    for name, run in runs:
        seconds = np.asarray(run.columns("requests")[f"{metric}_s"], dtype=np.float64)
        seconds = np.sort(seconds[np.isfinite(seconds)])
        if not len(seconds):
            continue
        share = np.unique(np.concatenate((np.linspace(0, 1, min(POINTS, len(seconds)) or 1), [0.9, 0.99, 0.999])))
        values += [{"run": name, "ms": x, "share": y} for x, y in zip(
            _round(np.quantile(seconds, share) * 1e3), _round(share), strict=True)]
        marks += [{"run": name, "ms": float(f"{np.percentile(seconds, p) * 1e3:.4g}"), "share": p / 100,
                   "what": f"p{p:g}"} for p in PERCENTILES]
        limit = (run.summary.get("slo") or {}).get(metric)
        if isinstance(limit, Mapping):
            limits[float(limit["limit_s"]) * 1e3] = f"SLO {label} p{float(limit['percentile']):g}"
    x = {"field": "ms", "type": "quantitative", "title": f"{label} (ms)", "scale": {"nice": True, "zero": True}}
    y = {"field": "share", "type": "quantitative", "title": "share of requests", "axis": {"format": "%"}}
    layers: list[Spec] = [
        {"mark": {"type": "line", "interpolate": "step-after"}, "params": [_legend()],
         "encoding": {"x": x, "y": y, "color": _colour(), "opacity": _faded()}},
        {"data": {"values": marks}, "mark": {"type": "point", "filled": True, "size": 45}, "encoding": {
            "x": x, "y": y, "color": _colour(), "opacity": _faded(),
            "tooltip": [{"field": "run"}, {"field": "what"}, {"field": "ms", "title": "ms"}]}},
    ]
    if limits:
        rules = [{"ms": ms, "what": text} for ms, text in limits.items()]
        layers.append({"data": {"values": rules}, "mark": {"type": "rule", "strokeDash": [5, 4], "clip": True},
                       "encoding": {"x": {"field": "ms", "type": "quantitative"}, "tooltip": [
                           {"field": "what"}, {"field": "ms", "title": "ms"}]}})
    said = "Share of the requests with at most this latency; dots are p50, p90 and p99"
    said += ", the dashed line is the SLO's limit." if limits else "."
    return f"{label}", said, _spec(values, 200, layer=layers)


def _legend() -> Spec:
    return {"name": "shown", "select": {"type": "point", "fields": ["run"]}, "bind": "legend"}


def _colour(field: str = "run") -> Spec:
    return {"field": field, "type": "nominal", "title": None, "legend": {"orient": "top", "labelLimit": 240}}


def _faded() -> Spec:
    return {"condition": {"param": "shown", "value": 1}, "value": 0.08}


def parts_of_latency(runs: Runs) -> Chart:
    """Return the mean time of a request by stage and cause."""
    values = []
    for name, run in runs:
        stages = (run.summary.get("breakdown") or {}).get("stages") or {}
        for stage, parts in stages.items():
            for cause in ("queue", "communication", "compute"):
                mean = (parts.get(f"{cause}_s") or {}).get("mean")
                if mean:
                    values.append({"run": name, "stage": stage, "cause": cause, "ms": float(f"{mean * 1e3:.4g}")})
    rows = max(len({(row["run"], row["stage"]) for row in values}), 1)
    return ("Where the time of a request goes", "Mean time of a request by stage and cause.", _spec(
        values, 100 + 26 * rows, mark={"type": "bar"}, encoding={
            "y": {"field": "stage", "type": "nominal", "title": None, "axis": {"labelLimit": 110}},
            "yOffset": {"field": "run"}, "x": {"field": "ms", "type": "quantitative", "title": "mean (ms)"},
            "color": {**_colour("cause"), "sort": ["queue", "communication", "compute"]},
            "tooltip": [{"field": name} for name in ("run", "stage", "cause", "ms")]}))


def use_over_time(runs: Runs, what: str, title: str, said: str) -> Chart:
    """Return a figure over time, of all clients together."""
    values: list[dict[str, Any]] = []
    for name, run in runs:
        times, figures = _series(run.record, what)
        values += [{"run": name, "s": x, "y": y} for x, y in zip(_round(times), _round(figures), strict=True)]
    share = {"format": "%"} if what in ("kv_share", "stepping") else {}
    return title, f"{said[0].upper()}{said[1:]}.", _spec(
        values, 150, params=[_legend()], mark={"type": "line", "interpolate": "step"}, encoding={
            "x": {"field": "s", "type": "quantitative", "title": "time (s)", "scale": {"nice": False}},
            "y": {"field": "y", "type": "quantitative", "title": None, "axis": share},
            "color": _colour(), "opacity": _faded()})


def _series(record: RunRecord, what: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the middles of the bins, and a figure's mean in each; empty if there is none."""
    begin, end = (at / NS_PER_S for at in window_ns(record))
    if end <= begin:
        return np.empty(0), np.empty(0)
    if what == "served_per_s":
        done = record.finish_ns[record.status == STATUS_COMPLETED] / NS_PER_S
        counts, edges = np.histogram(done, bins=min(BINS, 60), range=(begin, end))
        return (edges[:-1] + edges[1:]) / 2, counts / np.diff(edges)
    clients = [c for c in range(len(record.clients)) if (record.runs["client"] == c).any()]
    if not clients:
        return np.empty(0), np.empty(0)
    series = [client_timeseries(record, c, BINS) for c in clients]
    times = series[0]["t_s"]
    if what == "kv_share":
        blocks = sum(record.clients[c].num_blocks for c in clients)
        used = np.asarray(sum(each["kv_blocks"] for each in series), dtype=np.float64)
        return (times, used / blocks) if blocks else (np.empty(0), np.empty(0))
    total = np.asarray(sum(each[what] for each in series), dtype=np.float64)
    return times, total / len(clients) if what == "stepping" else total


def timeline(name: str, run: Results) -> Chart:
    """Return the requests of a sample as bars of waiting, prompt and answer; the wheel zooms, dragging moves."""
    columns = run.columns("requests")
    arrival, first, last = (np.asarray(columns[key], dtype=np.float64) for key in (
        "arrival_s", "first_token_s", "last_token_s"))
    queue = np.asarray(columns["queue_s"], dtype=np.float64)
    done = np.flatnonzero(np.isfinite(first) & np.isfinite(last))
    chosen = done[np.linspace(0, len(done) - 1, min(SAMPLE, len(done))).astype(int)] if len(done) else done
    values = []
    for request in chosen.tolist():
        edges = (arrival[request], min(arrival[request] + queue[request], first[request]), first[request],
                 last[request])
        values += [{"request": request, "phase": phase, "from": round(float(low), 4), "to": round(float(high), 4)}
                   for phase, low, high in zip(_STAGES, edges, edges[1:], strict=False) if high > low]
    said = (f"{len(chosen)} of {len(done):,} completed requests, evenly over the run. Zoom with the wheel, move by "
            "dragging, double-click to see all.")
    x = {"field": "from", "type": "quantitative", "title": "time (s)", "scale": {"nice": False, "zero": False}}
    return f"Timeline of {name}", said, _spec(
        values, 40 + 7 * max(len(chosen), 1), mark={"type": "bar", "clip": True},
        params=[{"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales"}], encoding={
            "x": x, "x2": {"field": "to"},
            "y": {"field": "request", "type": "ordinal", "title": "request", "axis": {"labelOverlap": True}},
            "color": {**_colour("phase"), "sort": list(_STAGES)},
            "tooltip": [{"field": key} for key in ("request", "phase", "from", "to")]})
