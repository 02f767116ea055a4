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
from hermes.results.brief import brief
from hermes.results.charts import GREY, PALETTE, Axis, Chart, Layer, Panel
from hermes.results.charts.fleet_charts import fleet, fleet_title
from hermes.results.charts.gateway_charts import gateway, gateway_title
from hermes.results.charts.time_charts import NAME, Runs, colours, over_time
from hermes.results.distribution import Distribution
from hermes.results.figures.catalogue import LATENCIES
from hermes.results.figures.utilisation import THRESHOLD
from hermes.results.layout import format_number, format_s, shortened
from hermes.results.results import Results
from hermes.sums import float_sum
from hermes.units import NS_PER_S

__all__ = ["KINDS", "POINTS", "breakdown", "chart", "interruption", "latency", "notes", "rounded", "utilisation"]

POINTS, MAX_BARS = 201, 12   # quantiles of a distribution (p99 is one), bars
LONG_TAIL = 30   # p100 over p50: above, the axis of a latency is logarithmic
AT_GATEWAY = {"gateway": "gateway's hop", "held": "held at the gateway", "lost": "lost attempts"}
CAUSES = {AT_GATEWAY["gateway"]: PALETTE[6], AT_GATEWAY["held"]: PALETTE[4], AT_GATEWAY["lost"]: GREY,
          "queue": PALETTE[1], "communication": PALETTE[3], "compute": PALETTE[0],
          "compute after first token": "#8fbce8"}
RESOURCES = {"link": PALETTE[3], "tier": PALETTE[1], "machine": PALETTE[2], "client": PALETTE[0], "others": GREY}


def chart(runs: Runs, kind: str) -> Chart:
    """Return a chart of one of `KINDS`. Raises `InputError` for another kind, and for no run."""
    if kind not in KINDS:
        raise InputError(f"one of {', '.join(KINDS)}", kind, field="kind", suggestion=suggest(kind, KINDS))
    if not runs:
        raise InputError("at least one run to plot")
    panels, seen = KINDS[kind]
    drawn = panels(runs)   # refuses runs that have nothing of the kind
    title = " and ".join(shortened(name, 2 * NAME) for name, _ in runs)
    said = [f"{name}: {text}" for name, run in runs if (text := interruption(run))]
    if len(runs) == 1:
        run, lines = runs[0][1], dict(brief(runs[0][1].summary, runs[0][1].meta))
        no_slo = seen == "goodput" and run.summary["goodput"]["requests"] is None
        title += ": " + (" ".join(f"TTFT {lines['TTFT']}".split()) if no_slo else _largest(run) if seen == "largest"
                         else fleet_title(run) if seen == "fleet" else gateway_title(run) if seen == "gateway"
                         else f"{seen} {lines[seen]}" if seen in ("KV", "binds") else lines[seen])
        said = [text for text in (interruption(run), lines["requests"], lines["rate"]) if text and text not in title]
    return Chart(title, "; ".join(said), drawn)


def interruption(results: Results) -> str | None:
    """Return the note for a figure of an interrupted run, or None."""
    if not results.meta.get("interrupted"):
        return None
    return f"interrupted at {results.record.end_ns / NS_PER_S:.4g} s"


def _largest(run: Results) -> str:
    """Return which cause of which stage takes most of a request's time."""
    parts = [(seconds, f"{cause} {'before' if cause in AT_GATEWAY.values() else 'of'} {stage}")
             for stage, part in run.summary["breakdown"]["stages"].items() for cause, seconds in _causes(part).items()]
    most, name = max(parts, default=(0.0, "nothing"))
    return f"{most / (float_sum(seconds for seconds, _ in parts) or 1.0):.0%} of a request's time is {name}"


def _causes(part: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean seconds of a stage by cause, by the names of `CAUSES`."""
    names = AT_GATEWAY | {cause: cause for cause in CAUSES}
    return {names[cause]: part[f"{cause}_s"]["mean"] or 0.0 for cause in names if f"{cause}_s" in part}


def rounded(seconds: float | None) -> str:
    """Return a duration with three digits: what a figure has room for."""
    return "-" if seconds is None else format_s(float(f"{seconds:.3g}"))


def _limits(summary: Mapping[str, Any], metric: str) -> list[dict[str, Any]]:
    """Return the limits of a latency: `{at: "p99", limit_s, value_s, pass}`."""
    return [{**row, "at": name.partition("_")[2] or f"p{row['percentile']:g}"}
            for name, row in summary["slo"].items() if name != "pass" and name.partition("_")[0] == metric]


def latency(runs: Runs, metrics: Sequence[str] = ("ttft", "tpot", "e2e")) -> list[Panel]:
    """Return cumulative distributions of latencies, with p50, p99 and the limits of the SLO."""
    return [panel for metric in metrics if (panel := _distribution(runs, metric)) is not None]


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
        values, shares = sample.cdf(POINTS)
        lines.append(pd.DataFrame({"x": values * factor, "y": shares, "series": name}))
        low = min(low, lines[-1]["x"].iloc[0])
    log = low > 0 and marks["x"].min() * LONG_TAIL < widest
    end *= (end / low) ** 0.3 if log else 1.0   # room for a text at p99, on a telephone too
    of = LATENCIES[metric][:1].upper() + LATENCIES[metric][1:]
    title, labels = of, []
    if len(samples) == 1:
        texts = [f"p{at * 100:g} {rounded(x)}" for x, at in zip(marks["x"], marks["y"], strict=True)]
        # below the line, which rises to the right
        labels = [Layer("text", marks.assign(x=marks["x"] * factor, y=marks["y"] - 0.1, label=texts))]
        title += f": {', '.join(texts)}" + "".join(
            f"; SLO {at} {rounded(limit)} {_verdict(passed, samples[0][1].percentiles([float(at[1:])])[0] > limit)}"
            for (at, limit), passed in limits.items())
    return Panel(
        title, Axis(f"{of} ({unit})", "log" if log else "linear", (low if log else 0.0, end)),
        Axis("share of requests", domain=(0.0, 1.0), percent=True),
        [*(Layer("step", frame) for frame in lines), Layer("point", marks.assign(x=marks["x"] * factor)), *labels,
         *(layer for at, limit in limits for layer in _limit(at, limit, limit > 2 * widest, factor, end))],
        said="Share of the requests with at most this latency; points at p50 and p99" + (
            "; dashed: the SLO." if limits else "."), legend=len(samples) > 1, colours=colours(runs))


def _verdict(passed: bool | None, late: bool) -> str:
    """Return the verdict on a limit; the answers that are drawn may keep it where other requests have none."""
    return "met" if passed is not False else "MISSED" if late else "MISSED (no answer)"


def notes(runs: Runs) -> list[Panel]:
    """Return cumulative distributions of what was noted about completed requests. Raises `InputError` without any."""
    every = dict.fromkeys(name for _, run in runs for name in run.record.notes)
    named = {name for _, run in runs for name in run.record.note_names}
    names = sorted(every, key=lambda name: name not in named)[:MAX_BARS]
    if not names:
        raise InputError("a run with notes: columns note_NAME of its requests", field="kind")
    panels = []
    for note in names:
        if any(note in run.record.note_names for _, run in runs):
            panels.append(_named_shares(note, runs))
            continue
        lines, means = [], []
        for name, run in runs:
            noted = run.record.notes.get(note)
            sample = Distribution(np.zeros(0) if noted is None else noted[run.record.status == STATUS_COMPLETED])
            if sample.count:
                values, shares = sample.cdf(POINTS)
                lines.append(Layer("step", pd.DataFrame({"x": values, "y": shares, "series": name})))
                means.append(format_number(sample.mean))
        panels.append(Panel(
            f"{note}: mean {' and '.join(means) or '-'}", Axis(note), Axis("share of requests", domain=(0.0, 1.0),
                                                                           percent=True),
            lines, said="Share of the requests with at most this value.", legend=len(lines) > 1, colours=colours(runs)))
    return panels


def _named_shares(note: str, runs: Runs) -> Panel:
    """Return bars of the share of completed requests that have each name of a note."""
    rows = []
    for name, run in runs:
        of_run = "" if len(runs) == 1 else f", {shortened(name, NAME)}"
        shares = run.summary.get("notes", {}).get(note, {}).get("shares", {})
        rows += [(share, f"{one}{of_run}", name) for one, share in shares.items() if share is not None]
    bars = pd.DataFrame(rows, columns=["x2", "y", "series"]).assign(x=0.0)
    labels = bars.assign(x=bars["x2"], label=[f"{value:.0%}" for value in bars["x2"]])[["x", "y", "label"]]
    return Panel(note, Axis("share of requests", domain=(0.0, 1.15), percent=True),
                 Axis("", "category", tuple(bars["y"])), [Layer("bar", bars), Layer("text", labels)],
                 said="Share of the requests.", height=20 + 22 * len(bars), legend=False, colours=colours(runs))


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


def breakdown(runs: Runs) -> list[Panel]:
    """Return mean time on the critical path by stage and cause; where pipelines are mixed, also by pipeline.

    The compute of stages that give tokens is split at the first token.
    """
    stages, pipelines = [], []
    for name, run in runs:
        of_run = "" if len(runs) == 1 else f", {shortened(name, NAME)}"
        for stage, part in run.summary["breakdown"]["stages"].items():
            parts = _causes(part)
            if "first_token_s" in part:
                first = part["first_token_s"]["mean"] or 0.0
                parts |= {"compute": first, "compute after first token": parts["compute"] - first}
            stages += [(f"{stage}{of_run}", cause, seconds) for cause, seconds in parts.items()]
        for pipeline, entry in run.summary["by"].get("pipeline", {}).items():
            pipelines += [(f"{pipeline}{of_run}", *item) for item in entry["stages_mean_s"].items()]
    return [_bars(title, rows, palette) for title, rows, palette in (
        ("Where the time of a request goes, by stage", stages, CAUSES), ("Latency by pipeline", pipelines, {})) if rows]


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


def utilisation(runs: Runs) -> list[Panel]:
    """Return the most used links, tiers, machines and clients: bars over the window, ticks at the busiest twentieth."""
    panels = []
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
        labels = [f"{value:.0%}" for value in bars["x2"]]
        places = bars["x2"].where(bars["peak"] > bars["x2"] + 0.15, bars[["x2", "peak"]].max(axis=1))
        layers = [Layer("bar", bars.drop(columns="peak")),
                  Layer("tick", bars[["peak", "y"]].rename(columns={"peak": "x"}).dropna()),
                  Layer("text", bars.assign(x=places, label=labels)[["x", "y", "label"]])]
        kinds = [f"{kind}s" for kind in RESOURCES if kind != "client" and (frame["kind"] == kind).any()]
        if kinds:   # a client with a step under way may have room for more in its steps
            limit = pd.DataFrame({"x": [THRESHOLD], "label": [f"{', '.join(kinds)} bind from {THRESHOLD:.0%}"]})
            layers += [Layer("rule", limit), Layer("above", limit, "right")]
        what = "Most used resources" if kinds else "Time with a step under way"
        panels.append(Panel(
            f"{what}{f' of {run}' if len(runs) > 1 else ''}; tick: the busiest twentieth",
            Axis("share of the window in use", domain=(0.0, 1.3), percent=True),
            Axis("", "category", tuple(bars["y"])), layers, height=20 + 22 * len(bars), legend=bool(kinds),
            said="Bars: mean over the window; ticks: its busiest twentieth. A busy client may have room for more.",
            colours=RESOURCES))
    return panels


# panels, and the line of the report of a run (`brief`) that is the title
KINDS: dict[str, tuple[Callable[[Runs], list[Panel]], str]] = {
    "latency": (latency, "goodput"), "itl": (lambda runs: latency(runs, ("itl", "queue")), "goodput"),
    "breakdown": (breakdown, "largest"), "utilisation": (utilisation, "binds"),
    "clients": (lambda runs: over_time(runs, ("running", "queued", "kv")), "KV"),
    "notes": (notes, "rate"),
    "queue": (lambda runs: over_time(runs, ("system", "waiting", "wait")), "rate"),
    "fleet": (fleet, "fleet"), "gateway": (gateway, "gateway"),
}
