"""Charts of runs over time: clients, queues, requests completed. Series are means of `BINS` intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from hermes.arrays import IntArray
from hermes.core.record import STATUS_COMPLETED, STATUS_REJECTED
from hermes.results.charts import PALETTE, Axis, Layer, Panel, end_labels
from hermes.results.figures.membership import fleet_groups
from hermes.results.figures.timeseries import client_timeseries
from hermes.results.figures.usage import client_names
from hermes.results.layout import shortened
from hermes.results.results import Results
from hermes.units import NS_PER_S

__all__ = ["BINS", "NAME", "Runs", "colours", "over_time"]

Runs = Sequence[tuple[str, Results]]
Lines = list[tuple[str, pd.DataFrame]]   # label, and x, y and perhaps low and high

BINS, MAX_CLIENTS, MAX_GROUPS = 150, 4, 5
NAME = 20   # characters of a name in a chart


def colours(runs: Runs) -> dict[str, str]:
    """Return the colour of each run."""
    return {name: PALETTE[number % len(PALETTE)] for number, (name, _) in enumerate(runs)}


def over_time(runs: Runs, quantities: Sequence[str]) -> list[Panel]:
    """Return panels of `_QUANTITIES`, without those that have nothing to show."""
    panels = []
    for quantity in quantities:
        title, unit, series = _QUANTITIES[quantity]
        lines = [(name if len(runs) > 1 else label, frame) for name, run in runs
                 for label, frame in series(run, len(runs) > 1) if len(frame)]
        if len(runs) > 1 and any("high" in frame for _, frame in lines):   # of a run, one line for all its clients
            full = quantity == "kv"
            title += ", fullest client" if full else ", mean of the clients"
            lines = [(name, frame.assign(y=frame["high"]) if full and "high" in frame else frame)
                     for name, frame in lines]
        if lines:
            panels.append(_panel(runs, title, unit, lines))
    return panels


def _panel(runs: Runs, title: str, unit: str, lines: Lines) -> Panel:
    """Return lines over time. Of a single run, ranges, the steady window and a label at each of several lines."""
    alone, begin = len(runs) == 1, min(float(frame["x"].iloc[0]) for _, frame in lines)
    end = max(float(frame["x"].iloc[-1]) for _, frame in lines)
    top = max(float(frame["high" if alone and "high" in frame else "y"].max()) for _, frame in lines)
    y = Axis(unit, domain=(0.0, top * 1.08 or 1.0), percent=not unit)
    layers = _window(runs[0][1], begin, end) if alone else []
    for name, frame in lines:
        if alone and "high" in frame:
            layers.append(Layer("area", frame[["x", "low", "high"]].set_axis(["x", "y", "y2"], axis=1).assign(
                series=name)))
        layers.append(Layer("line", frame[["x", "y"]].assign(series=name)))
    if alone and len(lines) > 1:
        last = pd.DataFrame([(end, frame["y"].iloc[-1], name, name) for name, frame in lines],
                            columns=["x", "y", "series", "label"])
        layers.append(end_labels(last, y))
    peak = f"at most {top:.0%}" if not unit else f"at most {top:,.3g}" if top < 1000 else f"at most {top:,.0f}"
    title += f" ({lines[0][0]})" if alone and len(lines) == 1 and lines[0][0] else ""
    more = "; bands: the range of the clients" if alone and any("high" in frame for _, frame in lines) else ""
    return Panel(f"{title}, {peak}{more}", Axis("time (s)", domain=(begin, max(end, begin + 1e-9))), y, layers,
                 said="Shaded: the window of the rates." if layers[0].mark == "span" else "", legend=not alone,
                 colours=colours(runs) if not alone else {})


def _window(run: Results, begin: float, end: float) -> list[Layer]:
    """Return the steady or measured window as a shade, if there is one."""
    found = run.summary["headline"]
    if found["window"] == "whole":
        return []
    low, high = (min(max(found[key], begin), end) for key in ("start_s", "until_s"))
    return [Layer("span", pd.DataFrame({"x": [low], "x2": [high]})), Layer("above", pd.DataFrame(
        {"x": [(low + high) / 2], "label": [f"{found['window']} window"]}), "center")]


def _of_clients(column: str) -> Callable[[Results, bool], Lines]:
    def series(run: Results, together: bool) -> Lines:
        return [(name, _mean(run, group, column)) for name, group in _groups(run, together)]

    return series


def _groups(run: Results, together: bool) -> list[tuple[str, list[int]]]:
    """Return labels and members of groups of clients that work in steps: one group of all if `together`, a client each
    up to `MAX_CLIENTS`, else those that the scenario makes together; beyond `MAX_GROUPS`, the smaller ones are one."""
    mine = [int(client) for client in np.unique(run.record.runs["client"])]
    if together:
        return [("", mine)]
    names, groups = client_names(run.record), dict[str, list[int]]()
    for client in mine:
        alone = len(mine) <= MAX_CLIENTS or not run.record.clients[client].group
        groups.setdefault(names[client] if alone else run.record.clients[client].group, []).append(client)
    found = sorted(groups.items(), key=lambda item: -len(item[1]))
    rest = [client for _, group in found[MAX_GROUPS:] for client in group]
    return [(shortened(name, NAME) + (f" x {len(group)}" if len(group) > 1 else ""), group)
            for name, group in found[:MAX_GROUPS]] + ([(f"{len(rest)} others", rest)] if rest else [])


def _mean(run: Results, group: Sequence[int], column: str) -> pd.DataFrame:
    """Return the mean of a group over time, and the range of its clients."""
    blocks = [run.record.clients[client].num_blocks for client in group]
    shown = [(client, size if column == "kv_blocks" else 1) for client, size in zip(group, blocks, strict=True)
             if size or column != "kv_blocks"]
    series = [(client_timeseries(run.record, client, BINS), size) for client, size in shown]
    if not series:
        return pd.DataFrame({"x": [], "y": []})
    values = np.array([one[column] / size for one, size in series])
    frame = pd.DataFrame({"x": series[0][0]["t_s"], "y": values.mean(axis=0)})
    return frame if len(series) == 1 else frame.assign(low=values.min(axis=0), high=values.max(axis=0))


def _open(begins: npt.NDArray[Any], ends: npt.NDArray[Any], run: Results) -> Lines:
    """Return how many of these intervals (ns) are open over time, the most of them too; -1 ends no interval."""
    if not len(begins):
        return []
    begun, ended = np.sort(begins), np.sort(np.where(ends < 0, np.iinfo(np.int64).max, ends))

    def open_at(at: IntArray) -> IntArray:
        return np.asarray(np.searchsorted(begun, at, "right") - np.searchsorted(ended, at, "right"))

    times = np.linspace(float(begun[0]), float(max(run.record.end_ns, begun[0])), BINS + 1).astype(np.int64)
    times = np.union1d(times, begun[open_at(begun).argmax()])
    return [("", pd.DataFrame({"x": times / NS_PER_S, "y": open_at(times)}))]


def _in_system(run: Results, _together: bool) -> Lines:
    record = run.record
    mine = (record.arrival_ns >= 0) & (record.status != STATUS_REJECTED)
    return _open(record.arrival_ns[mine], record.finish_ns[mine], run)


def _waiting(run: Results, _together: bool) -> Lines:
    """Return the stages that wait at clients; a stage whose request was given up waits until then."""
    stages = run.record.stages
    return _open(stages["assigned_ns"], np.where(run.record.started, stages["start_ns"], stages["end_ns"]), run)


def _waiting_at_replicas(run: Results, together: bool) -> Lines:
    """Return the stages that wait at clients that come and go, by group."""
    stages, groups = run.record.stages, fleet_groups(run.record)
    until = np.where(run.record.started, stages["start_ns"], stages["end_ns"])
    merged = {"": [client for members in groups.values() for client in members]}
    lines = []
    for name, members in (merged if together else dict(list(groups.items())[:MAX_GROUPS])).items():
        mine = np.isin(stages["client"], members)
        lines += [(shortened(name, NAME), frame) for _, frame in _open(stages["assigned_ns"][mine], until[mine], run)]
    return lines


def _waits(run: Results, together: bool) -> Lines:
    """Return the mean wait (s) of the stages that start in each interval, by kind of stage:
    the `MAX_GROUPS` kinds that wait longest."""
    stages, started, out = run.record.stages, run.record.started, []
    for code, kind in enumerate(["" if together else name for name in run.record.stage_kinds]):
        mine = started if together else started & (stages["kind"] == code)
        if not mine.any():
            continue
        start = stages["start_ns"][mine] / NS_PER_S
        counts, edges = np.histogram(start, BINS // 3)
        totals, _ = np.histogram(start, edges, weights=start - stages["assigned_ns"][mine] / NS_PER_S)
        some = counts > 0
        out.append((kind, pd.DataFrame({"x": ((edges[:-1] + edges[1:]) / 2)[some], "y": totals[some] / counts[some]})))
    return sorted(out, key=lambda line: -line[1]["y"].max())[:1 if together else MAX_GROUPS]


def _served(run: Results, _together: bool) -> Lines:
    done = run.record.finish_ns[run.record.status == STATUS_COMPLETED] / NS_PER_S
    if not len(done):
        return []
    counts, edges = np.histogram(done, BINS // 3)
    return [("", pd.DataFrame({"x": (edges[:-1] + edges[1:]) / 2, "y": counts / np.diff(edges)}))]


# title, unit (none: a share), and the series of a run; of several runs all clients and stages together
_QUANTITIES: dict[str, tuple[str, str, Callable[[Results, bool], Lines]]] = {
    "served": ("Requests completed", "requests/s", _served),
    "system": ("Requests in the system", "requests", _in_system),
    "waiting": ("Stages that wait at clients", "stages", _waiting),
    "replicas": ("Stages that wait at replicas", "stages", _waiting_at_replicas),
    "wait": ("Wait before a stage starts, mean", "seconds", _waits),
    "running": ("Running sequences of a client", "sequences", _of_clients("running")),
    "queued": ("Waiting sequences of a client", "sequences", _of_clients("waiting")),
    "kv": ("KV memory in use", "", _of_clients("kv_blocks")),
    "stepping": ("Share of the time with a step", "", _of_clients("stepping")),
}
