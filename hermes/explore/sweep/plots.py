"""Charts of a sweep: latency against the SLO and goodput over its grid, with the answer marked and named.

One number that varies is the x axis of curves, one for each value of the others; two numbers of at least three values
each make heat maps; points without numbers are bars. `front_panel` is the plane of two goals, of searches too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hermes.errors import InputError, Verbatim, suggest
from hermes.explore.objective import settled
from hermes.explore.sweep.best import GOOD, OFFERED, Setting, best_of, mean_of
from hermes.explore.sweep.columns import columns_of
from hermes.explore.sweep.results import SweepResults
from hermes.results.charts import GREY, PALETTE, Axis, Chart, Layer, Panel, end_labels
from hermes.results.charts.run_charts import rounded
from hermes.results.figures.catalogue import FIGURES, LATENCIES
from hermes.results.layout import shortened
from hermes.results.slo import METRICS
from hermes.units import counted, unit_of

__all__ = ["MAX_BARS", "MAX_SERIES", "front_panel", "labels", "plane_chart", "sweep_chart"]

MAX_BARS, MAX_SERIES, MAX_LABELS = 24, 5, 5
WIDE = 16   # largest over smallest value: above, an axis is logarithmic
NAME = 26
MEETS, MISSES, PLAIN, INK = "#7db8ea", "#f0a36b", "#f2f2f2", "#16191d"   # of cells, and their text
F1 = "notes.f1.mean"


class Measure(NamedTuple):
    """A figure of all points. table: By label: settings, mean of the seeds (y), lowest (low), highest (y2), and its
    companion (the median, or the offered rate). limit: Of the SLO. All in `unit`."""

    name: str
    unit: str
    table: pd.DataFrame
    companion: str
    limit: float | None

    def text(self, value: float) -> str:
        if np.isnan(value):
            return "-"
        return rounded(value / (1e3 if self.unit == "ms" else 1.0)) if self.unit in ("s", "ms") else f"{value:.3g}"

    def title(self) -> str:
        if self.limit is None:
            return f"{self.name} ({self.unit})"
        within = (self.table["y2"] <= self.limit) & ~self.table["unsettled"]
        return (f"{self.name} ({self.unit}): {within.sum()} of {len(self.table)} within the SLO of "
                f"{self.text(self.limit)}")


def labels(settings: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return settings in words: `chunked, rate 20`."""
    return ", ".join(str(settings[name]) if name == "case" else f"{name.rpartition('.')[2]} {settings[name]}"
                     for name in names if settings.get(name) is not None)


def sweep_chart(sweep: SweepResults) -> Chart:
    """Return the chart of a sweep; of seeds, the mean. Raises `InputError` if no point has results."""
    rows = [row for row in sweep.arrow().to_pylist() if row["status"] == "ok"]
    if not rows:
        raise InputError("a sweep with finished points", Verbatim("none"), file=str(sweep.path))
    names = columns_of(point["settings"] for point in sweep.manifest["points"])
    varying = [name for name in names if len({str(row[name]) for row in rows}) > 1]
    numbers = sorted((name for name in varying if all(type(row[name]) in (int, float) for row in rows)),
                     key=lambda name: -len({row[name] for row in rows}))
    frame = pd.DataFrame(rows).assign(label=[labels(row, varying) or sweep.name for row in rows],
                                      unsettled=[not settled(row) for row in rows])
    settings: dict[str, Setting] = {}
    for label, row in zip(frame["label"], rows, strict=True):
        settings.setdefault(label, Setting(label)).rows[row["seed"]] = row
    best = best_of(list(settings.values()))
    answer, seen = best.label, best.seen
    failed, count, unsettled = len(sweep.failed()), frame["label"].nunique(), int(frame["unsettled"].sum())
    said = [f"{len(rows) + failed} of {len(sweep)} points finished" if len(rows) + failed < len(sweep)
            else f"{len(sweep)} points"] + ([f"{failed} failed"] if failed else [])
    panels = []
    heat = len(numbers) == len(varying) == 2 and frame[numbers[1]].nunique() > 2
    curves = bool(numbers) and not heat
    for measure in _measures(frame, varying):
        if heat:
            panels.append(_heat(measure, numbers, answer))
        elif curves:
            panels.append(_curves(measure, numbers[0], [name for name in varying if name != numbers[0]], answer))
        else:
            panels.append(_bars(measure, answer))
            said += [f"the first {MAX_BARS} are drawn"] if count > MAX_BARS and len(panels) == 1 else []
    said += ["the mark is the point named above"] if answer else []
    said += [f"within noise of it: {', '.join(best.within_noise)}"] if best.within_noise else []
    verdict = ": no verdict on the SLO" if frame["slo.pass"].notna().any() else ""
    said += [f"{unsettled} did not settle{', hollow' if curves else ''}{verdict}"] if unsettled else []
    return Chart(f"{sweep.name}: {seen}", "; ".join(said), panels)


def plane_chart(sweep: SweepResults, x: str, y: str) -> Chart:
    """Return one column of a sweep against another: a point for each setting, the mean of its seeds; settings that
    differ in numbers alone are joined. Raises `InputError` for an unknown column, or one without numbers."""
    rows = [row for row in sweep.arrow().to_pylist() if row["status"] == "ok"]
    names = columns_of(point["settings"] for point in sweep.manifest["points"])
    varying = [name for name in names if len({str(row[name]) for row in rows}) > 1]
    words = [name for name in varying if any(type(row[name]) not in (int, float) for row in rows)]
    frame = pd.DataFrame(rows).assign(label=[labels(row, varying) for row in rows],
                                      series=[labels(row, words) or sweep.name for row in rows],
                                      unsettled=[not settled(row) for row in rows])
    for option, column in (("x", x), ("y", y)):
        frame[option] = _numbers(frame, column)
        if frame[option].isna().all():
            raise InputError("a column of the sweep that has numbers", column, field=f"--{option}",
                             file=str(sweep.path), suggestion=suggest(column, frame.columns))
    table = frame.dropna(subset=["x", "y"]).groupby("label", sort=False).agg(
        series=("series", "first"), unsettled=("unsettled", "any"),
        **{f"{way}{end}": (way, partial(_end, place=place)) for way in "xy"
           for place, end in enumerate(("", "_low", "_high"))})
    axes = []
    for name, way in ((x, "x"), (y, "y")):
        values = pd.concat([table[way], table[f"{way}_low"], table[f"{way}_high"]])
        room = 0.1 * ((values.max() - values.min()) or abs(values.max()) or 1.0)
        low = values.min() - room if values.min() < 0 else max(values.min() - room, 0.0)
        title = _with_unit(name)
        wide = 0 < WIDE * values.min() < values.max()
        axes.append(_axis(title, values) if wide else Axis(title, domain=(low, values.max() + room)))
    ends = table.drop_duplicates("series", keep="last")
    bars = [Layer("error", table.assign(**{way: table[f"{way}_low"], f"{way}2": table[f"{way}_high"]})[
        ["x", "y", f"{way}2", "series"]]) for way in "xy" if (table[f"{way}_high"] > table[f"{way}_low"]).any()]
    points = table[["x", "y", "series"]]
    layers = [*(Layer("line", rows) for _, rows in points.groupby("series", sort=False) if len(rows) > 1), *bars,
              *(Layer(mark, some) for mark, some in (("point", points[~table["unsettled"]]),   # type: ignore[arg-type]
                                                     ("open", points[table["unsettled"]])) if len(some)),
              *([] if len(ends) < 2 else [end_labels(ends[["y", "series"]].assign(
                  x=ends["x_high"], label=[shortened(name, NAME) for name in ends["series"]]), axes[1], 260)])]
    seeds = int(frame["seed"].nunique())
    said = f"{counted(len(table), 'setting')}; means of {counted(seeds, 'seed')}" + (
        ", bars: 95% intervals" if bars else "")
    hollow = "; hollow: did not settle" if table["unsettled"].any() else ""
    return Chart(f"{sweep.name}: {y} against {x}", "", [Panel(said + hollow, axes[0], axes[1], layers, height=260)])


def _end(values: pd.Series[float], place: int) -> float:
    """Return the mean, or the low or high end of its 95% interval; without one the mean."""
    found = mean_of(values)
    return found.value + (0, -1, 1)[place] * (found.half or 0.0)


def _with_unit(column: str) -> str:
    """Return a column's name with its unit, where the name says it."""
    unit = unit_of(column)
    return column if unit == "1" else f"{column} ({unit})"


def _numbers(frame: pd.DataFrame, column: str) -> pd.Series[float]:
    return pd.to_numeric(frame[column], errors="coerce") if column in frame else pd.Series(np.nan, index=frame.index)


def _measures(frame: pd.DataFrame, varying: Sequence[str]) -> list[Measure]:
    """Return TTFT, TPOT and E2E at the percentile of their SLO (E2E only with one, or without any), goodput, or the
    served rate, and the F1 that pipelines note."""
    out = []
    limits = {metric: _numbers(frame, f"slo.{metric}.limit_s").dropna().unique() for metric in METRICS}
    for metric in METRICS:
        if metric == "e2e" and not len(limits["e2e"]) and any(map(len, limits.values())):
            continue
        one = len(limits[metric]) == 1 and frame[f"slo.{metric}.percentile"].nunique() == 1
        at = f"p{frame[f'slo.{metric}.percentile'].iloc[0]:g}" if one else "p99"
        column = f"slo.{metric}.value_s" if one else f"latency.{metric}_s.p99"
        out.append((f"{LATENCIES[metric]} {at}", column, f"latency.{metric}_s.p50", limits[metric][0] if one else None))
    rate = GOOD if _numbers(frame, GOOD).notna().any() else "headline.served_per_s"
    out += [(FIGURES[rate].words.capitalize(), rate, OFFERED, None), (FIGURES[F1].words, F1, "", None)]
    measures, groups = [], frame["label"]
    for name, column, companion, limit in out:
        values = _numbers(frame, column)
        factor, unit = (1.0, "s") if values.max() >= 1 else (1e3, "ms")
        if column == F1 or companion == OFFERED:
            factor, unit = 1.0, FIGURES[column].unit or "mean"
        found = {"y": values.groupby(groups, sort=False).mean(), "low": values.groupby(groups, sort=False).min(),
                 "y2": values.groupby(groups, sort=False).max(),
                 "companion": _numbers(frame, companion).groupby(groups, sort=False).mean()}
        table = frame.groupby("label", sort=False)[list(varying)].first().assign(
            unsettled=frame["unsettled"].groupby(groups, sort=False).any(),
            **{key: series * factor for key, series in found.items()})
        if values.notna().any():
            measures.append(Measure(name, unit, table, "offered" if companion == OFFERED else "p50",
                                    None if limit is None else limit * factor))
    return measures


def _axis(name: str, values: pd.Series[float], *, zero: bool = True, room: float = 1.08) -> Axis:
    """Return an axis for these values: from 0 if `zero`; but for rates, logarithmic if they lie far apart."""
    low, high = float(values.min()), float(values.max())
    if name != "requests/s" and low > 0 and high > WIDE * low:
        return Axis(name, "log", (low / 1.15, high * 1.3))
    return Axis(name, domain=(0.0, high * room or 1.0) if zero else (low, high))


def _curves(measure: Measure, x: str, others: Sequence[str], answer: str | None) -> Panel:
    """Return curves over a number, one for each setting of the others, with the range of the seeds; beyond `MAX_SERIES`
    only the two highest and lowest are named. A single curve has its companion with it."""
    own = measure.name.rpartition(" ")[2].lower()   # the name of a single curve
    settings = zip(*(measure.table[name] for name in others), strict=True)   # none without others
    series = [labels(dict(zip(others, row, strict=True)), others) or own for row in settings] or own
    table = measure.table.assign(x=measure.table[x].astype(float), series=series)
    ranked = list(table.groupby("series")["y"].mean().sort_values().index)
    rest = ranked[2:-2] if len(ranked) > MAX_SERIES else []
    table["name"] = table["series"].where(~table["series"].isin(rest), f"{len(rest)} others")
    lines = [(rows.sort_values("x"), "line") for _, rows in table.groupby("series", sort=False)]
    if len(ranked) == 1 and table["companion"].notna().any():
        lines.append((table.sort_values("x").assign(y=table["companion"], name=measure.companion), "dash"))
    near = [] if measure.limit is None or measure.limit > 4 * table["y2"].max() else [measure.limit]
    values = pd.concat([*(rows["y"] for rows, _ in lines), table["y2"], pd.Series(near, dtype=float)])
    y = _axis(measure.unit, values)
    layers, ends = [Layer("rule", pd.DataFrame({"y": near}))] if near else [], []
    for rows, mark in lines:
        line = rows[["x", "y", "name", "unsettled"]].dropna().rename(columns={"name": "series"})
        unsettled = line.pop("unsettled").astype(bool)
        if mark == "line":
            if (rows["y2"] > rows["low"]).any():
                layers.append(Layer("area", rows[["x", "low", "y2", "name"]].dropna().set_axis(
                    ["x", "y", "y2", "series"], axis=1)))
            layers += [Layer("point", line[~unsettled]), Layer("open", line[unsettled])]
        layers.append(Layer("dash" if mark == "dash" else "line", line))
        ends.append(line.tail(1))
    last = pd.concat(ends).drop_duplicates("series").assign(x=table["x"].max())
    layers.append(end_labels(last.assign(label=[shortened(name, NAME) for name in last["series"]]), y))
    layers += [Layer("ring", table.loc[[answer], ["x", "y"]])] if answer else []
    return Panel(measure.title() + (" (dashed)" if near else ""), _axis(x.rpartition(".")[2], table["x"], zero=False),
                 y, layers, colours=dict.fromkeys((f"{len(rest)} others", measure.companion), GREY))


def _heat(measure: Measure, names: Sequence[str], answer: str | None) -> Panel:
    """Return a heat map over two numbers: blue within the SLO and orange beyond, or paler for lower values."""
    table, limit = measure.table, measure.limit
    shares = table["y"] / (limit or table["y"].max() or 1.0)
    colours = [_mixed(PLAIN, MEETS, share) if limit is None else _mixed(MEETS, PLAIN, share) if share <= 1
               else _mixed(PLAIN, MISSES, share - 1) for share in shares.fillna(0.0)]
    cells = pd.DataFrame({"x": table[names[0]].map("{:g}".format), "y": table[names[1]].map("{:g}".format),
                          "colour": colours, "label": table["y"].map(measure.text)}, index=table.index)
    x, y = (Axis(name.rpartition(".")[2], "category", tuple(f"{value:g}" for value in sorted(
        table[name].unique(), reverse=name == names[1]))) for name in names)
    layers = [Layer("cell", cells.drop(columns="label")), Layer("text", cells.assign(colour=INK), "center")]
    layers += [Layer("box", cells.loc[[answer], ["x", "y"]])] if answer else []
    return Panel(measure.title(), x, y, layers, height=16 + 26 * len(y.domain or ()))


def _mixed(low: str, high: str, share: float) -> str:
    """Return a colour between two."""
    ends = [[int(colour[i:i + 2], 16) for i in (1, 3, 5)] for colour in (low, high)]
    return "#" + "".join(f"{round(a + (b - a) * min(share, 1.0)):02x}" for a, b in zip(*ends, strict=True))


def _bars(measure: Measure, answer: str | None) -> Panel:
    """Return a bar for each point, orange beyond the SLO."""
    table = measure.table.head(MAX_BARS)
    names = [f"{'» ' if label == answer else ''}{shortened(str(label), 2 * NAME)}" for label in table.index]
    if len(set(names)) < len(names):
        names = [f"{number} {name}" for number, name in enumerate(names)]
    limit = np.inf if measure.limit is None else measure.limit
    bars = pd.DataFrame({"x": 0.0, "x2": table["y"].fillna(0.0).tolist(), "y": names, "series": [
        "beyond the SLO" if value > limit else "" for value in table["y"]]})
    end = float(bars["x2"].max()) * 1.35 or 1.0
    layers = [Layer("bar", bars)]
    if limit < 2 * end:
        rule = pd.DataFrame({"x": [limit], "label": [f"SLO {measure.text(limit)}"]})
        layers += [Layer("rule", rule), Layer("above", rule, "center")]
        end = max(end, limit * 1.1)
    # a text that would lie on the line of the SLO begins there
    places = bars["x2"].where((bars["x2"] > limit) | (bars["x2"] + 0.2 * end < limit), limit)
    layers.append(Layer("text", pd.DataFrame({"x": places, "y": names, "label": [*map(measure.text, table["y"])]})))
    return Panel(measure.title(), Axis(measure.unit, domain=(0.0, end)), Axis("", "category", tuple(names)), layers,
                 height=20 + 22 * len(names), colours={"": PALETTE[0], "beyond the SLO": PALETTE[1]})


def front_panel(title: str, x: str, y: str, groups: Mapping[str, Sequence[tuple[float, float]]],
                front: Sequence[tuple[float, float, str]], answer: tuple[float, float] | None = None) -> Panel:
    """Return points of two goals by group, a line through the named ones that no other beats in both, and a ring around
    the answer."""
    frames = [pd.DataFrame(places, columns=["x", "y"]).assign(series=name) for name, places in groups.items() if places]
    best = pd.DataFrame([(*place, shortened(name, NAME)) for *place, name in front], columns=["x", "y", "label"])
    best["series"] = "front"
    values = pd.concat([*frames, best])
    axes = [_axis(name, values[way], room=1.15) for name, way in ((x, "x"), (y, "y"))]
    named = best.iloc[np.unique(np.linspace(0, len(best) - 1, min(MAX_LABELS, len(best))).astype(int))]
    layers = [Layer("line", best[["x", "y", "series"]].sort_values("x")), *(Layer("point", frame) for frame in frames),
              Layer("point", best[["x", "y", "series"]]), end_labels(named, axes[1], 260)]
    layers = layers if len(best) else layers[1:-2]
    layers += [Layer("ring", pd.DataFrame([answer], columns=["x", "y"]))] if answer is not None else []
    return Panel(title, axes[0], axes[1], layers, height=260, legend=True,
                 said="The line joins the points that no other beats in both.",
                 colours=dict(zip((*groups, "front"), (*(GREY, "#9cc4ea", PALETTE[0])[:len(groups)], PALETTE[4]),
                                  strict=True)))
