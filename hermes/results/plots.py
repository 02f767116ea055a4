"""Plots of one or several simulations, as matplotlib figures without pyplot's global state.

A figure shows itself in a notebook, with or without `%matplotlib inline`; elsewhere call its `savefig`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hermes.core.record import STATUS_COMPLETED, STATUS_REJECTED
from hermes.errors import InputError, suggest
from hermes.results.distribution import Distribution
from hermes.results.results import Results
from hermes.results.timeseries import client_timeseries as client_series
from hermes.results.usage import client_names
from hermes.units import NS_PER_S

__all__ = ["NotebookFigure", "client_timeseries", "interruption", "latency_cdf", "make_figure",
           "mark_interrupted", "queue", "shortened"]

FloatArray = npt.NDArray[np.float64]
_LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "inter-token latency", "e2e": "end-to-end latency",
              "queue": "queueing"}
MAX_CLIENTS = 8


class NotebookFigure(Figure):
    """A figure that a notebook shows although pyplot does not manage it."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=100)
        return out.getvalue()


def make_figure(
    rows: int, columns: int, width: float, height: float, *, sharex: bool = False, sharey: bool = False,
    height_ratios: Sequence[float] | None = None,
) -> tuple[Figure, list[Any]]:
    """Return a figure of `width` by `height` inches and its axes, row by row."""
    figure = NotebookFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey, height_ratios=height_ratios)
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes.flat)


def shortened(text: str, most: int = 32) -> str:
    """Cut `text` in the middle to at most `most` characters: names differ at both ends."""
    return text if len(text) <= most else f"{text[:(most - 1) // 2]}…{text[-(most // 2):]}"


def interruption(results: Results) -> str | None:
    """Return the note for a figure of an interrupted run, or None."""
    if not results.meta.get("interrupted"):
        return None
    requests = results.summary["requests"]
    return (f"interrupted at {results.record.end_ns / NS_PER_S:.4g} s: {requests['completed']:,} of "
            f"{requests['total']:,} requests completed")


def mark_interrupted(figure: Figure, runs: Mapping[str, Results]) -> Figure:
    """Note above the figure which of the runs were interrupted."""
    said = {name: text for name, run in runs.items() if (text := interruption(run)) is not None}
    if said:
        lines = said.values() if len(runs) == 1 else (f"{name}: {text}" for name, text in said.items())
        figure.suptitle("\n".join(lines), fontsize="medium", color="#b03a2e")
    return figure


def _named(results: Results | Mapping[str, Results]) -> dict[str, Results]:
    if isinstance(results, Results):
        return {str(results.meta.get("name") or "run"): results}
    if not results:
        raise InputError("at least one run to plot")
    return dict(results)


def _sample(results: Results, metric: str) -> Distribution:
    if metric == "itl":
        return results.itl_s()
    columns = results.columns("requests")
    return Distribution(np.asarray(columns[f"{metric}_s"])[results.record.status == STATUS_COMPLETED])


def latency_cdf(
    results: Results | Mapping[str, Results], metrics: Sequence[str] = ("ttft", "tpot", "e2e"), *, log: bool = False
) -> Figure:
    """Plot cumulative distributions of latencies (`ttft`, `tpot`, `itl`, `e2e`, `queue`), one panel each.

    results: One run, or several by name (in the same panels). log: Logarithmic time. Raises `InputError` for an unknown
    metric. Dashed lines are the p99 limits of the first run's SLO table.
    """
    for metric in metrics:
        if metric not in _LATENCIES:
            raise InputError(f"one of {', '.join(_LATENCIES)}", metric, suggestion=suggest(metric, _LATENCIES))
    runs = _named(results)
    figure, axes = make_figure(1, len(metrics), 4 * len(metrics), 3.2)
    for axis, metric in zip(axes, metrics, strict=True):
        samples = {name: _sample(run, metric) for name, run in runs.items()}
        widest = max((float(s.percentiles([100])[0]) for s in samples.values() if s.count), default=1.0)
        factor, unit = (1e3, "ms") if widest < 1 else (1.0, "s")
        for name, sample in samples.items():
            if sample.count:
                values, shares = sample.cdf()
                axis.plot(values * factor, shares, label=name)
        limit = next(iter(runs.values())).summary["slo"].get(f"{metric}_p99")
        if limit is not None and limit["limit_s"] <= 2 * widest:
            axis.axvline(limit["limit_s"] * factor, color="gray", linestyle="--", linewidth=1)
        axis.set(xlabel=f"{_LATENCIES[metric]} ({unit})", ylim=(0, 1.02))
        if log:
            axis.set_xscale("log")
        else:
            axis.set_xlim(left=0)
    axes[0].set_ylabel("cumulative share")
    if len(runs) > 1:
        axes[0].legend(frameon=False)
    return mark_interrupted(figure, runs)


def client_timeseries(results: Results, clients: Sequence[str | int] | None = None, bins: int = 200) -> Figure:
    """Plot running and waiting sequences and KV blocks over time, one line per client.

    More than `MAX_CLIENTS` clients (unless they are named) are drawn as groups of equal ones: the mean of each group,
    and a band from its lowest to its highest client.
    """
    chosen = [results.client_index(c) for c in clients] if clients is not None else _stepping(results)
    groups = [[c] for c in chosen]
    if clients is None and len(chosen) > MAX_CLIENTS:
        groups = _alike(results, chosen)
    labels = [_group_label(results, group) for group in groups]
    ncols = max(1, min(len(labels), 100 // (max(map(len, labels), default=0) + 6)))
    figure, axes = make_figure(3, 1, 9, 6.5 + 0.2 * math.ceil(len(labels) / ncols), sharex=True)
    for group, label in zip(groups, labels, strict=True):
        times, panels = _group_series(results, group, bins)
        for axis, values in zip(axes, panels, strict=True):
            line = axis.plot(times, values.mean(axis=0), linewidth=1, label=label)[0]
            if len(group) > 1:
                axis.fill_between(times, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.2,
                                  linewidth=0)
    for axis, label in zip(axes, ("running sequences", "waiting sequences", "KV blocks (%)"), strict=True):
        axis.set(ylabel=label)
        axis.set_ylim(bottom=0)
    axes[-1].set_xlabel("time (s)")
    if chosen:
        figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, ncols=ncols, fontsize="small",
                      loc="outside lower left")   # `mark_interrupted` writes above
    return mark_interrupted(figure, _named(results))


def _group_series(results: Results, group: Sequence[int], bins: int) -> tuple[FloatArray, list[FloatArray]]:
    """Return times, shape (bins,), and running, waiting and KV blocks (%) of each client, shape (clients, bins)."""
    record = results.record
    series = [client_series(record, client, bins) for client in group]
    blocks = [max(record.clients[client].num_blocks, 1) for client in group]
    known = [record.clients[client].num_blocks > 0 for client in group]
    used = [one["kv_blocks"] / size * 100 * there for one, size, there in zip(series, blocks, known, strict=True)]
    return series[0]["t_s"], [
        np.array([one["running"] for one in series]), np.array([one["waiting"] for one in series]), np.array(used),
    ]


def _alike(results: Results, clients: Sequence[int]) -> list[list[int]]:
    """Group clients of one kind, role, model, hardware and memory; one group of all if there would be too many."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for client in clients:
        info = results.record.clients[client]
        same = (info.kind, info.role, info.model, info.hardware, info.device, info.num_devices, info.num_blocks)
        groups.setdefault(same, []).append(client)
    return list(groups.values()) if len(groups) <= MAX_CLIENTS else [list(clients)]


def _group_label(results: Results, group: Sequence[int]) -> str:
    names = client_names(results.record)
    if len(group) == 1:
        return shortened(names[group[0]])
    return f"{shortened(names[group[0]])} to {shortened(names[group[-1]])} ({len(group)} clients, mean and range)"


def _stepping(results: Results) -> list[int]:
    """Return the clients that work in runs; only they have a time series."""
    return [int(c) for c in np.unique(results.record.runs["client"])]


def queue(results: Results, bins: int = 200) -> Figure:
    """Plot requests in the system, waiting stages, and the past wait of stages that start, over time.

    The last two are of completed stages.
    """
    record = results.record
    figure, axes = make_figure(3, 1, 9, 6.5, sharex=True)
    arrived = np.sort(record.arrival_ns[(record.arrival_ns >= 0) & (record.status != STATUS_REJECTED)]) / NS_PER_S
    finished = np.sort(record.finish_ns[record.finish_ns >= 0]) / NS_PER_S
    stages = record.stages
    until = np.where(record.started, stages["start_ns"], stages["end_ns"])   # or when its request was given up
    assigned, start = np.sort(stages["assigned_ns"]) / NS_PER_S, np.sort(until) / NS_PER_S
    begin = float(arrived[0]) if len(arrived) else 0.0
    edges = np.linspace(begin, max(record.end_ns / NS_PER_S, begin), bins + 1)
    for axis, more, fewer in ((axes[0], arrived, finished), (axes[1], assigned, start)):
        axis.plot(edges, np.searchsorted(more, edges, "right") - np.searchsorted(fewer, edges, "right"), linewidth=1)
    place = np.clip(np.searchsorted(edges, stages["start_ns"] / NS_PER_S, "right") - 1, 0, bins - 1)
    wait = (stages["start_ns"] - stages["assigned_ns"]) / NS_PER_S
    for code, kind in enumerate(record.stage_kinds):
        mine = (stages["kind"] == code) & record.started
        count = np.bincount(place[mine], minlength=bins)
        if count.any():
            mean = np.bincount(place[mine], weights=wait[mine], minlength=bins)[count > 0] / count[count > 0]
            middle = ((edges[:-1] + edges[1:]) / 2)[count > 0]
            axes[2].plot(middle, mean, linewidth=1, marker=".", markersize=3, label=kind)
    for axis, label in zip(axes, ("requests in the system", "waiting stages", "mean wait (s)"), strict=True):
        axis.set(ylabel=label)
        axis.set_ylim(bottom=0)
    axes[2].set_xlabel("time (s)")
    if len(stages["kind"]):
        axes[2].legend(frameon=False, fontsize="small")
    return mark_interrupted(figure, _named(results))
