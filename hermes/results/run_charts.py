"""Charts of runs by kind: latency against the SLO, where time goes, use of resources; `time_charts` has the others.

Several runs are drawn in the same panels, one colour each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hermes.core.record import STATUS_COMPLETED
from hermes.errors import InputError, suggest
from hermes.results.charts import GREY, PALETTE, Axis, Chart, Layer, Panel
from hermes.results.distribution import Distribution
from hermes.results.layout import format_s, shortened
from hermes.results.results import Results
from hermes.results.time_charts import NAME, Runs, clients, colours, queue
from hermes.results.utilisation import THRESHOLD
from hermes.units import NS_PER_S

__all__ = ["KINDS", "POINTS", "breakdown", "chart", "interruption", "latency", "rounded", "utilisation"]

POINTS, MAX_BARS = 120, 12   # quantiles of a distribution, bars
METRICS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E", "itl": "ITL", "queue": "Queueing"}
LONG_TAIL = 30   # p100 over p50: above, the axis of a latency is logarithmic
CAUSES = {"queue": PALETTE[1], "communication": PALETTE[3], "compute": PALETTE[0],
          "compute after first token": "#8fbce8"}
RESOURCES = {"link": PALETTE[3], "tier": PALETTE[1], "machine": PALETTE[2], "client": PALETTE[0], "others": GREY}


def chart(runs: Runs, kind: str) -> Chart:
    """Return a chart of one of `KINDS`. Raises `InputError` for another kind, and for no run."""
    if kind not in KINDS:
        raise InputError(f"one of {', '.join(KINDS)}", kind, field="kind", suggestion=suggest(kind, KINDS))
    if not runs:
        raise InputError("at least one run to plot")
    seen, panels = KINDS[kind](runs)
    names = " and ".join(shortened(name, 2 * NAME) for name, _ in runs)
    said = [text if len(runs) == 1 else f"{name}: {text}" for name, run in runs if (text := interruption(run))]
    return Chart(f"{names}: {seen}", "; ".join([*said, *([_served(runs[0][1].summary)] if len(runs) == 1 else [])]),
                 panels)


def interruption(results: Results) -> str | None:
    """Return the note for a figure of an interrupted run, or None."""
    if not results.meta.get("interrupted"):
        return None
    return f"interrupted at {results.record.end_ns / NS_PER_S:.4g} s"


def _served(summary: Mapping[str, Any]) -> str:
    requests, found = summary["requests"], summary["headline"]
    text = f"{requests['completed']:,} of {requests['total']:,} requests completed"
    if found["served_per_s"] is not None:
        text += f", {found['served_per_s']:.3g}/s"
    if found["goodput_per_s"] is not None:
        text += f"; {found['goodput_per_s']:.3g}/s within the SLO ({found['goodput_share'] or 0:.1%})"
    return text


def rounded(seconds: float | None) -> str:
    """Return a duration with three digits: what a figure has room for."""
    return "-" if seconds is None else format_s(float(f"{seconds:.3g}"))


def _limits(summary: Mapping[str, Any], metric: str) -> list[dict[str, Any]]:
    """Return the limits of a latency: `{at: "p99", limit_s, value_s, pass}`."""
    return [{**row, "at": name.partition("_")[2] or f"p{row['percentile']:g}"}
            for name, row in summary["slo"].items() if name != "pass" and name.partition("_")[0] == metric]


def _verdict(summary: Mapping[str, Any]) -> str:
    """Return whether a run meets its SLO, and by which latencies."""
    if summary["headline"]["stable"] is False:
        return "the queue grows"
    passed, rows = summary["slo"]["pass"], []
    for metric in ("ttft", "tpot", "e2e"):
        for row in _limits(summary, metric):
            if row["pass"] is passed:
                rows.append(f"{METRICS[metric]} {row['at']} {rounded(row['value_s'])} of {rounded(row['limit_s'])}")
    if passed is None:
        p99 = {name: summary["latency"][f"{metric}_s"]["p99"] for metric, name in METRICS.items() if metric != "itl"}
        return ", ".join(f"{name} p99 {rounded(p99[name])}" for name in ("TTFT", "E2E") if p99[name] is not None) or (
            "no request was answered")
    unsettled = ", but did not settle" if passed and summary.get("settling", {}).get("settled") is False else ""
    return f"{'meets' if passed else 'MISSES'} its SLO{unsettled}" + (f": {', '.join(rows[:3])}" if rows else "")


def latency(runs: Runs, metrics: Sequence[str] = ("ttft", "tpot", "e2e")) -> tuple[str, list[Panel]]:
    """Return cumulative distributions of latencies, with p50, p99 and the limits of the SLO."""
    panels = [panel for metric in metrics if (panel := _distribution(runs, metric)) is not None]
    return _verdict(runs[0][1].summary) if len(runs) == 1 else "latency", panels


def _distribution(runs: Runs, metric: str) -> Panel | None:
    samples = [(name, sample) for name, run in runs if (sample := _sample(run, metric)).count]
    if not samples:
        return None
    marks = pd.DataFrame([{"x": float(sample.percentiles([at])[0]), "y": at / 100, "series": name}
                          for name, sample in samples for at in (50, 99)])
    widest = max(float(sample.percentiles([100])[0]) for _, sample in samples)
    factor, unit = (1e3, "ms") if widest < 1 else (1.0, "s")
    limits = {(row["at"], row["limit_s"]): row["pass"] for _, run in runs for row in _limits(run.summary, metric)}
    near = [limit * 1.1 for _, limit in limits if limit <= 2 * widest]
    end = max(widest * 1.03, marks["x"].max() * 1.5, *near) * factor
    lines, low = [], end
    for name, sample in samples:
        shares = np.unique(np.concatenate((np.linspace(0, 1, min(POINTS, max(sample.count, 2))), [0.9, 0.99, 0.999])))
        lines.append(pd.DataFrame({"x": sample.percentiles((shares * 100).tolist()) * factor, "y": shares,
                                   "series": name}))
        low = min(low, lines[-1]["x"].iloc[0])
    log = low > 0 and marks["x"].min() * LONG_TAIL < widest
    end *= (end / low) ** 0.2 if log else 1.0   # room for a text at p99, on a telephone too
    title, labels = METRICS[metric], []
    if len(samples) == 1:
        texts = [f"p{at * 100:g} {rounded(x)}" for x, at in zip(marks["x"], marks["y"], strict=True)]
        # below the line, which rises to the right
        labels = [Layer("text", marks.assign(x=marks["x"] * factor, y=marks["y"] - 0.1, label=texts))]
        title += f": {', '.join(texts)}" + "".join(
            f"; SLO {at} {rounded(limit)} {'MISSED' if passed is False else 'met'}"
            for (at, limit), passed in limits.items())
    return Panel(
        title, Axis(f"{METRICS[metric]} ({unit})", "log" if log else "linear", (low if log else 0.0, end)),
        Axis("share of requests", domain=(0.0, 1.0), percent=True),
        [*(Layer("step", frame) for frame in lines), Layer("point", marks.assign(x=marks["x"] * factor)), *labels,
         *(layer for at, limit in limits for layer in _limit(at, limit, limit > 2 * widest, factor, end))],
        said="Share of the requests with at most this latency; points at p50 and p99" + (
            "; dashed: the SLO." if limits else "."), legend=len(samples) > 1, colours=colours(runs))


def _sample(run: Results, metric: str) -> Distribution:
    if metric == "itl":
        return run.itl_s()
    return Distribution(np.asarray(run.columns("requests")[f"{metric}_s"])[run.record.status == STATUS_COMPLETED])


def _limit(at: str, limit: float, far: bool, factor: float, end: float) -> list[Layer]:
    """Return a dashed line at a limit with its text; of a limit far beyond the data, the text at the edge."""
    frame = pd.DataFrame({"x": [end if far else limit * factor], "label": [
        f"SLO {at} {rounded(limit)}{' →' if far else ''}"]})
    text = Layer("above", frame, "right" if frame["x"][0] > 0.8 * end else "left" if frame["x"][0] < 0.2 * end
                 else "center")
    return [text] if far else [Layer("rule", frame), text]


def breakdown(runs: Runs) -> tuple[str, list[Panel]]:
    """Return mean time on the critical path by stage and cause; where pipelines are mixed, also by pipeline.

    The compute of stages that give tokens is split at the first token.
    """
    stages, pipelines = [], []
    for name, run in runs:
        of_run = "" if len(runs) == 1 else f", {shortened(name, NAME)}"
        for stage, part in run.summary["breakdown"]["stages"].items():
            parts = {cause: part[f"{cause}_s"]["mean"] or 0.0 for cause in ("queue", "communication", "compute")}
            if "first_token_s" in part:
                first = part["first_token_s"]["mean"] or 0.0
                parts |= {"compute": first, "compute after first token": parts["compute"] - first}
            stages += [(f"{stage}{of_run}", cause, seconds) for cause, seconds in parts.items()]
        for pipeline, entry in run.summary["by"].get("pipeline", {}).items():
            pipelines += [(f"{pipeline}{of_run}", *item) for item in entry["stages_mean_s"].items()]
    panels = [_bars(title, rows, palette) for title, rows, palette in (
        ("Where the time of a request goes, by stage", stages, CAUSES), ("Latency by pipeline", pipelines, {})) if rows]
    if len(runs) > 1 or not stages:
        return "where the time goes", panels
    stage, cause, seconds = max(stages, key=lambda one: one[2])
    return f"{seconds / (sum(one[2] for one in stages) or 1.0):.0%} of the time is {cause} of {stage}", panels


def _bars(title: str, rows: Sequence[tuple[str, str, float]], palette: Mapping[str, str]) -> Panel:
    """Return stacked bars of (row, part, seconds), with the totals of the rows."""
    totals: dict[str, float] = {}
    bars = []
    for row, part, seconds in rows:
        if not seconds:
            continue
        start = totals.get(row, 0.0)
        totals[row] = start + seconds
        bars.append((start, totals[row], row, part))
    factor, unit = (1e3, "ms") if max(totals.values(), default=0.0) < 1 else (1.0, "s")
    frame = pd.DataFrame(bars, columns=["x", "x2", "y", "series"])
    frame[["x", "x2"]] *= factor
    labels = pd.DataFrame({"x": [value * factor for value in totals.values()], "y": list(totals),
                           "label": [rounded(value) for value in totals.values()]})
    return Panel(title, Axis(f"mean per request ({unit})", domain=(0.0, labels["x"].max() * 1.4 or 1.0)),
                 Axis("", "category", tuple(totals)),
                 [Layer("bar", frame), Layer("text", labels)],
                 said="Mean over the requests.", height=20 + 26 * len(totals), legend=True, colours=palette)


def utilisation(runs: Runs) -> tuple[str, list[Panel]]:
    """Return the most used links, tiers, machines and clients: bars over the window, ticks at the busiest twentieth."""
    panels, seen = [], "nothing was used"
    for run, results in runs:
        frame = results.utilisation.sort_values(["utilisation", "name"], ascending=[False, True], kind="stable")
        rest, frame = frame.iloc[MAX_BARS:], frame.iloc[:MAX_BARS]
        if frame.empty:
            continue
        names = [shortened(name, 2 * NAME) for name in frame["name"].astype(str)]
        if len(set(names)) < len(names):
            names = [f"{number} {name}" for number, name in enumerate(names, 1)]
        rows = [*zip(frame["utilisation"], names, frame["kind"], frame["peak_utilisation"], strict=True)]
        if len(rest):
            rows.append((rest["utilisation"].mean(), f"mean of {len(rest)} others", "others", np.nan))
        bars = pd.DataFrame(rows, columns=["x2", "y", "series", "peak"]).assign(x=0.0)
        limit = pd.DataFrame({"x": [THRESHOLD], "label": [f"binds from {THRESHOLD:.0%}"]})
        labels = [f"{value:.0%}" for value in bars["x2"]]
        panels.append(Panel(
            f"Most used resources{f' of {run}' if len(runs) > 1 else ''}; tick: the busiest twentieth",
            Axis("share of the window in use", domain=(0.0, 1.15), percent=True),
            Axis("", "category", tuple(bars["y"])),
            [Layer("bar", bars.drop(columns="peak")),
             Layer("tick", bars[["peak", "y"]].rename(columns={"peak": "x"}).dropna()), Layer("rule", limit),
             Layer("above", limit, "center"),
             Layer("text", bars.assign(x=bars[["x2", "peak"]].max(axis=1), label=labels)[["x", "y", "label"]])],
            said="Bars: mean over the window; ticks: its busiest twentieth.", height=20 + 22 * len(bars), legend=True,
            colours=RESOURCES))
        seen = f"the busiest is {names[0]}, {labels[0]} of the time"
    return seen, panels


KINDS: dict[str, Callable[[Runs], tuple[str, list[Panel]]]] = {
    "latency": latency, "itl": lambda runs: latency(runs, ("itl", "queue")), "breakdown": breakdown,
    "utilisation": utilisation, "clients": clients, "queue": queue,
}
