"""Study of start-up times and autoscalers on a day of a real trace: goodput, minutes out of the SLO and dollars.

Rules by start-up time; what else is done about it (spares, a larger minimum, a schedule); settings of the HPA; and one
step of the load, whose queue is worked out by hand.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from hermes.config.data_files import resource_dir
from hermes.study import Compared, Context, Plot, Point, Report, Table, run_points

from .figures import fleet_figures, queue_figures

__all__ = ["compare", "run"]

TARGET, SECONDS = 9, 18.0   # running sequences of a replica; seconds that an answer takes beside eight others
MOST = 16
STATIC, QUICK_STATIC = range(3, 7), range(3, 5)
START_UPS, QUICK_START_UPS = (0, 4, 8), (0, 4)
SEEDS = (1, 2)
QUICK_HOURS = slice(17, 24)   # the night's end and the evening
RUNNING = {"metric": "running", "target": TARGET}
RULES: dict[str, dict[str, Any]] = {
    "hpa": {"kind": "hpa", "metrics": [RUNNING], "min": 1},
    "keda": {"kind": "keda", "triggers": [RUNNING], "min": 1},
    "wva": {"kind": "wva"},
    "kpa": {"kind": "kpa", **RUNNING, "min": 1, "intended": True},
    "apa": {"kind": "apa", **RUNNING, "min": 1, "intended": True},
    "dynamo_planner": {"kind": "dynamo_planner", "target": "sla", "ttft": 5.0, "itl": 0.05, "max_gpu_budget": 4 * MOST},
}
QUICK_RULES = ("hpa", "kpa")
SHARED = ("wva", "dynamo_planner")   # stand under the scenario's `autoscalers`
REACTION_S = 15.0   # of the HPA once the batch is full: 7.5 s to a scrape and to a sync in the mean
STEP_START_UPS = (1, 2, 4, 8)
STEP = {"full": 12, "before": 0.2, "after": 1.2}   # of step.yaml: sequences, requests/s


def run(context: Context) -> Report:
    names = QUICK_RULES if context.quick else list(RULES)
    rules = simulated_rules(context, names, QUICK_START_UPS if context.quick else START_UPS)
    measures = simulate(context, "measures", _measures(context))
    step = by_hand(context)
    tables = [
        _table("rules", "Rules by minutes of start-up, means over seeds", rules, ["rule", "start-up min"]),
        _table("measures", f"What else helps at {context['start_up']} minutes of start-up", measures, ["what"]),
        Table("by_hand", "One step of the load, from 0.2 to 1.2 requests/s on one replica", step,
              f"By hand: (1.2/s - 12 / seconds of an answer in a full batch) x (start-up + {REACTION_S:g} s).",
              {"by hand": 0, "simulated": 0, "difference": 3}),
    ]
    return Report(tables, [_plot(rules)], _findings(context, rules, measures),
                  compared=_compared(rules, measures, step))


def compare(context: Context) -> list[Compared]:
    """Return the figures that the assumptions change."""
    rules = simulated_rules(context, ("hpa",), QUICK_START_UPS)
    return _compared(rules, simulate(context, "some-measures", _measures(context)[:2]), None)


# -- points ------------------------------------------------------------------------------------------------------------


def hourly(context: Context) -> list[float]:
    """Return the requests/s of each hour of the day, or in a quick run of its last seven."""
    arrivals = pd.read_parquet(resource_dir("traces") / "ragpulse-day.parquet", columns=["arrival_s"])["arrival_s"]
    counts = np.bincount((arrivals // 3600).astype(int), minlength=24)
    rates = counts / counts.sum() * context["requests"] / 3600
    return [float(rate) for rate in (rates[QUICK_HOURS] if context.quick else rates)]


def _load(context: Context) -> dict[str, Any]:
    """Return the settings of the workload."""
    rates, every = hourly(context), 60
    if context["ramp"] == "linear":
        middles = np.arange(len(rates)) + 0.5
        rates, every = [float(np.interp(place, middles, rates)) for place in (np.arange(6 * len(rates)) + 0.5) / 6], 10
    return {"workload.arrivals": {"kind": "profile", "every": f"{every} min", "rates": [f"{r:.6g} /s" for r in rates]},
            "workload.duration": f"{len(hourly(context))} h"}


def replicas_of(rate: float) -> int:
    """Return the replicas that serve a rate with `TARGET` sequences each."""
    return min(max(1, ceil(rate * SECONDS / TARGET)), MOST)


def changes_ahead(wanted: Sequence[int], ahead: float) -> list[tuple[float, int]]:
    """Return from when on (s) how many replicas are asked for: the most of all hours that begin within `ahead` seconds
    or ended less than a minute ago."""
    hours = [(max(0.0, 3600.0 * hour - ahead), 3600.0 * (hour + 1) + 60, number) for hour, number in enumerate(wanted)]
    moments = sorted({at for begin, end, _ in hours for at in (begin, end) if at < 3600 * len(wanted)})
    asked = [(at, max(number for begin, end, number in hours if begin <= at < end)) for at in moments]
    return [asked[0], *(after for before, after in itertools.pairwise(asked) if after[1] != before[1])]


def _schedule(context: Context, start_up: float) -> dict[str, Any]:
    (_, first), *rest = changes_ahead([replicas_of(rate) for rate in hourly(context)],
                                      60 * (start_up + context["lead"]))
    changes = [{"at": f"{at:g} s", "replicas": number} for at, number in rest]
    return {"clients.0.fleet.start": first, "clients.0.fleet.autoscaler": {"kind": "schedule", "changes": changes}}


def _fleet(context: Context, start_up: float, autoscaler: Mapping[str, Any] | None, **more: Any) -> dict[str, Any]:
    """Return the settings of a fleet that starts with the replicas of the first hour."""
    fleet = {"start": replicas_of(hourly(context)[0]), "start_up": {"total": f"{start_up:g} min"}} | more
    shared = {}
    if autoscaler is not None and autoscaler["kind"] in SHARED:
        shared = {"autoscalers": [{"groups": ["llm"], "autoscaler": dict(autoscaler)}]}
    elif autoscaler is not None:
        fleet["autoscaler"] = dict(autoscaler)
    return _load(context) | {f"clients.0.fleet.{name}": value for name, value in fleet.items()} | shared


def simulated_rules(context: Context, names: Sequence[str], start_ups: Sequence[int]) -> pd.DataFrame:
    """Simulate the static fleets, the schedule, and the named rules with every start-up time."""
    points = [Point(f"static {n}", _fleet(context, 0, None, start=n), {"rule": f"static {n}"})
              for n in (QUICK_STATIC if context.quick else STATIC)]
    for minutes in start_ups:
        column = {"start-up min": minutes}
        points += [Point(f"{name} {minutes}", _fleet(context, minutes, RULES[name]), column | {"rule": name})
                   for name in names]
        points.append(Point(f"schedule {minutes}", _fleet(context, minutes, None) | _schedule(context, minutes),
                            column | {"rule": "schedule"}))
    return simulate(context, "rules" if len(names) > 1 else "some-rules", points)


def _measures(context: Context) -> list[Point]:
    minutes, hpa = context["start_up"], RULES["hpa"]
    cases: dict[str, dict[str, Any]] = {"hpa": _fleet(context, minutes, hpa)}
    cases["one warm spare"] = _fleet(context, minutes, hpa, spares={"count": 1, "wake": "10 s"})
    cases["two warm spares"] = _fleet(context, minutes, hpa, spares={"count": 2, "wake": "10 s"})
    cases["target 6 instead of 9"] = _fleet(context, minutes, hpa | {"metrics": [RUNNING | {"target": 6}]})
    if not context.quick:
        cases["at least 3 replicas"] = _fleet(context, minutes, hpa | {"min": 3})
        cases["at least 5 replicas"] = _fleet(context, minutes, hpa | {"min": 5})
        cases["scale-down window 15 min"] = _fleet(context, minutes, hpa | {"scale_down": {"window": "15 min"}})
        cases["sync every minute"] = _fleet(context, minutes, hpa | {"period": "1 min"})
    return [Point(name, settings, {"what": name}) for name, settings in cases.items()]


def simulate(context: Context, name: str, points: Sequence[Point]) -> pd.DataFrame:
    """Simulate points with every seed."""
    every = [Point(p.label, p.settings, p.columns, seed) for p in points for seed in SEEDS]
    return run_points(context, name, every, scenario="day.yaml", extract=fleet_figures)


def by_hand(context: Context) -> pd.DataFrame:
    """Return the queue when the second replica is ready, by hand and simulated."""
    seeds = (1, 2, 3) if context.quick else range(1, 11)
    points = [Point(f"{minutes} min", {"clients.0.fleet.start_up.total": f"{minutes} min"}, {"start-up min": minutes},
                    seed) for minutes in STEP_START_UPS for seed in seeds]
    frame = run_points(context, "step", points, scenario="step.yaml", extract=queue_figures)
    served = STEP["full"] / frame["full_s"].median()
    rows = []
    for minutes in STEP_START_UPS:
        hand = (STEP["after"] - served) * (60 * minutes + REACTION_S)
        found = frame[frame["start-up min"] == minutes]["waiting"]
        rows.append({"start-up min": minutes, "by hand": hand, "simulated": found.mean(), "lowest": found.min(),
                     "highest": found.max(), "difference": found.mean() / hand - 1})
    return pd.DataFrame(rows)


# -- tables ------------------------------------------------------------------------------------------------------------

COLUMNS = {"kept_share": "kept %", "minutes_out": "minutes out", "lost_share": "lost %", "ready_mean": "ready mean",
           "ready_most": "most", "device_hours": "device-hours", "dollars": "$", "dollars_per_m": "$/M kept tokens"}


def _means(frame: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return the means over seeds, and the lowest and highest `minutes out`."""
    scaled = frame.assign(kept_share=100 * frame["kept_share"], lost_share=100 * frame["lost_share"])
    groups = scaled.groupby(by, sort=False, dropna=False)
    table = groups[list(COLUMNS)].mean().rename(columns=COLUMNS)
    table.insert(2, "from", groups["minutes_out"].min())
    table.insert(3, "to", groups["minutes_out"].max())
    return table.reset_index()


def _table(name: str, title: str, frame: pd.DataFrame, by: list[str]) -> Table:
    return Table(name, title, _means(frame, by), "from, to: lowest and highest minutes out over seeds.",
                 {"kept %": 2, "lost %": 2, "minutes out": 1, "from": 0, "to": 0, "device-hours": 0, "$": 0,
                  "$/M kept tokens": 2, "start-up min": 0, "ready mean": 2, "most": 1})


def _static(rules: pd.DataFrame) -> int:
    """Return the fewest replicas that, held throughout, keep 99% of the requests with every seed."""
    tried = [number for number in STATIC if f"static {number}" in set(rules["rule"])]
    enough = [number for number in tried if _of(rules, "kept_share", rule=f"static {number}").min() >= 0.99]
    return enough[0] if enough else tried[-1]


def _of(frame: pd.DataFrame, column: str, **where: Any) -> np.ndarray[Any, Any]:
    chosen = frame
    for name, value in where.items():
        chosen = chosen[chosen[name.replace("_", " ") if name != "start_up" else "start-up min"] == value]
    return chosen[column].to_numpy()


# -- figures of the operators ------------------------------------------------------------------------------------------


def _compared(rules: pd.DataFrame, measures: pd.DataFrame, step: pd.DataFrame | None) -> list[Compared]:
    best = f"static {_static(rules)}"
    idle, late = _of(rules, "kept_share", rule="hpa", start_up=0), _of(rules, "kept_share", rule="hpa", start_up=4)
    fixed = _of(rules, "kept_share", rule=best)
    ahead = _of(rules, "kept_share", rule="schedule", start_up=4)
    saved = 1 - _of(rules, "dollars", rule="hpa", start_up=4) / _of(rules, "dollars", rule=best)
    spare = _of(measures, "kept_share", what="one warm spare")
    where = "llm-d-autoscaling#1071"
    rows = [
        Compared("requests that an HPA alone loses to 4 min of start-up, % of all", "reactive scaling cannot close it",
                 100 * float((idle - late).mean()),
                 f"{100 * idle.mean():.2f}% keep the SLO with a start-up of 0, {100 * late.mean():.2f}% with 4 min, "
                 f"{100 * fixed.mean():.2f}% on {best.removeprefix('static ')} replicas throughout", 2, where,
                 _interval(100 * (idle - late)), 0, bool((idle - late).min() > 0.001)),
        Compared("requests that a schedule which knows the day gains over the HPA at 4 min, % of all", None,
                 100 * float((ahead - late).mean()),
                 f"it holds {_of(rules, 'ready_mean', rule='schedule', start_up=4).mean():.1f} replicas in the mean, "
                 f"the HPA {_of(rules, 'ready_mean', rule='hpa', start_up=4).mean():.1f}", 2,
                 interval=_interval(100 * (ahead - late)), neutral=0),
        Compared("dollars that the HPA saves over the static fleet, %", None, 100 * float(saved.mean()),
                 f"it holds {_of(rules, 'ready_mean', rule='hpa', start_up=4).mean():.1f} replicas in the mean, the "
                 f"static fleet {best.removeprefix('static ')}", 1, interval=_interval(100 * saved), neutral=0),
        Compared("requests that one warm spare gains over the HPA alone, % of all", None,
                 100 * float((spare - _of(measures, "kept_share", what="hpa")).mean()),
                 "the first replica that is asked for wakes in 10 s", 2,
                 interval=_interval(100 * (spare - _of(measures, "kept_share", what="hpa"))), neutral=0),
    ]
    if step is None:
        return rows
    return [*rows, Compared("largest difference of a queue by hand from the simulated one, %", None,
                            100 * float(step["difference"].abs().max()), f"{len(step)} start-up times", 1)]


def _interval(values: np.ndarray[Any, Any]) -> tuple[float, float] | None:
    return (float(values.min()), float(values.max())) if len(values) > 1 else None


def _findings(context: Context, rules: pd.DataFrame, measures: pd.DataFrame) -> list[str]:
    best = _static(rules)
    table = _means(rules, ["rule", "start-up min"])
    said = [f"{best} replicas throughout keep {_of(rules, 'kept_share', rule=f'static {best}').mean():.2%} of the "
            f"requests for ${_of(rules, 'dollars', rule=f'static {best}').mean():,.0f}."]
    for name in dict.fromkeys(table["rule"]):
        mine = table[(table["rule"] == name) & table["start-up min"].notna()]
        if len(mine) > 1:
            first, last = mine.iloc[0], mine.iloc[-1]
            said.append(f"{name}: {first['minutes out']:.0f} minutes out of the SLO at {first['start-up min']:.0f} min "
                        f"of start-up, {last['minutes out']:.0f} at {last['start-up min']:.0f}; "
                        f"${first['$']:,.0f} and ${last['$']:,.0f}.")
    helped = _means(measures, ["what"]).sort_values("minutes out")
    said.append("Of what was tried at " + f"{context['start_up']} minutes, by minutes out: " + "; ".join(
        f"{row['what']} {row['minutes out']:.0f} (${row['$']:,.0f})" for _, row in helped.iterrows()) + ".")
    return said


def _plot(rules: pd.DataFrame) -> Plot:
    """Minutes out of the SLO over dollars, a line for each rule along its start-up times."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axis = figure.subplots()
    table = _means(rules, ["rule", "start-up min"])
    for name in dict.fromkeys(table["rule"]):
        mine = table[(table["rule"] == name) & table["start-up min"].notna()]
        if len(mine):
            axis.plot(mine["$"], mine["minutes out"], marker="o", label=name)
            for _, row in mine.iterrows():
                axis.annotate(f"{row['start-up min']:.0f}", (row["$"], row["minutes out"]), fontsize=7,
                              textcoords="offset points", xytext=(4, 4))
    fixed = table[table["start-up min"].isna()]
    axis.plot(fixed["$"], fixed["minutes out"], marker="s", color="black", linestyle=":", label="static")
    for _, row in fixed.iterrows():
        axis.annotate(row["rule"].removeprefix("static "), (row["$"], row["minutes out"]), fontsize=7,
                      textcoords="offset points", xytext=(4, 4))
    axis.set_xlabel("dollars of the day")
    axis.set_ylabel("minutes out of the SLO")
    axis.set_yscale("symlog", linthresh=10)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    return Plot("cost", "Minutes out of the SLO over dollars; numbers: minutes of start-up, or replicas of the static "
                        "fleet. Down and left is better.", figure)
