"""Study of failures: how fast a crash is noticed, who retries, and whether there is a spare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from hermes.study import Compared, Context, Plot, Point, Report, Table, run_points
from hermes.sums import float_sum

from .figures import incident_figures

__all__ = ["compare", "run"]

PERIODS = (1, 10, 60)          # seconds between two readiness probes; three must fail
SPARES = (0, 1)
SERVING = 4
SEEDS = (1, 2)
RETRIES: dict[str, dict[str, Any]] = {
    "none": {"gateway": {"retries": 0}},
    "envoy": {"gateway": {"retry": {"kind": "envoy"}}},
    "openai": {"gateway": {"retries": 0}, "workload.retry": {"kind": "openai"}},
    "sglang": {"gateway": {"router_retry": {"kind": "sglang"}}},
}
QUICK_PERIODS, QUICK_RETRIES = (1, 10), ("none", "sglang")


def run(context: Context) -> Report:
    frame = simulated(context, PERIODS if not context.quick else QUICK_PERIODS,
                      tuple(RETRIES) if not context.quick else QUICK_RETRIES)
    table = means(frame)
    return Report([Table("incidents", "One crash by detection, retries and spares, means over seeds", table,
                         "lost: requests that ended with an error, of about 9,000; out: SLO missed in the minutes that "
                         "begin until then.",
                         {"traffic left s": 0, "recovered s": 0, "lost": 0, "retried": 0, "good %": 2, "$/h": 2})],
                  [_plot(frame)], _findings(frame), compared=_compared(frame))


def compare(context: Context) -> list[Compared]:
    """Return the figures that the assumptions change."""
    return _compared(simulated(context, QUICK_PERIODS, QUICK_RETRIES))


def simulated(context: Context, periods: Sequence[int], retries: Sequence[str]) -> pd.DataFrame:
    """Simulate every combination with every seed."""
    minutes = context["start_up"]
    shared = {"router.kind": context["router"], "workload.arrivals.rate": context["rate"],
              "workload.duration": f"{4 + minutes:g} min", "clients.0.fleet.start_up.total": f"{minutes:g} min"}
    points = []
    for period in periods:
        for name in retries:
            for spares in SPARES:
                settings = {**shared, **RETRIES[name], "clients.0.count": SERVING + spares,
                            "clients.0.fleet.start": SERVING + spares, "clients.0.fleet.probe.period": period}
                columns = {"period s": period, "retries": name, "spares": spares}
                points += [Point(f"{period} s, {name}, {spares}", settings, columns, seed) for seed in SEEDS]
    return run_points(context, "crash", points, scenario="crash.yaml", extract=incident_figures)


def means(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the means over seeds."""
    by = ["period s", "retries", "spares"]
    own = frame.assign(good=100 * frame["good_share"]).groupby(by, sort=False)
    names = {"left_s": "traffic left s", "recovered_s": "recovered s", "lost": "lost", "retried": "retried",
             "good": "good %", "dollars_per_hour": "$/h"}
    return own[list(names)].mean().rename(columns=names).reset_index()


def _of(frame: pd.DataFrame, column: str, period: int, retries: str, spares: int) -> list[float]:
    mine = frame[(frame["period s"] == period) & (frame["retries"] == retries) & (frame["spares"] == spares)]
    return [float(value) for value in mine[column]]


def _compared(frame: pd.DataFrame) -> list[Compared]:
    where = "Static stability using Availability Zones"
    bare, spare = (_of(frame, "recovered_s", 1, "sglang", spares) for spares in SPARES)
    slow, fast = (_of(frame, "recovered_s", period, "sglang", 0) for period in (10, 1))
    plain, again = (_of(frame, "lost", 10, name, 1) for name in ("none", "sglang"))
    return [
        Compared("time to recover that a spare saves, probes each second and SGLang's retries, s",
                 "overprovision to continue operating correctly without launching", _mean(_less(bare, spare)),
                 f"{_mean(bare):.0f} s without it, {_mean(spare):.0f} s with it: three replicas miss the SLO until the "
                 "fourth is back", 0, where, _interval(_less(bare, spare)), 0, bool(min(_less(bare, spare)) > 0)),
        Compared("time to recover that probes each second save over each 10 s, no spare, s", None,
                 _mean(_less(slow, fast)), f"{_mean(slow):.0f} and {_mean(fast):.0f} s: the breaker takes the traffic "
                 "away before either, and the missing replica decides", 0, interval=_interval(_less(slow, fast)),
                 neutral=0),
        Compared("requests that SGLang's retries save of those that are lost without any, one spare, %", None,
                 100 * (1 - float_sum(again) / max(float_sum(plain), 1)), f"{_mean(plain):.0f} are lost without "
                 f"retries, {_mean(again):.0f} with them: answers that had begun", 0),
    ]


def _less(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(first, second, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return float_sum(values) / len(values)


def _interval(values: Sequence[float]) -> tuple[float, float] | None:
    return (min(values), max(values)) if len(values) > 1 else None


def _time(value: float) -> str:
    return "the restart" if math.isnan(value) else f"{value:.0f} s"


def _findings(frame: pd.DataFrame) -> list[str]:
    table = means(frame)
    return [f"{row['retries']}, probes each {row['period s']:g} s, {row['spares']} spares: traffic leaves after "
            f"{_time(row['traffic left s'])}, recovered after {row['recovered s']:.0f} s, {row['lost']:.0f} lost."
            for _, row in table.iterrows()]


def _plot(frame: pd.DataFrame) -> Plot:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    table = means(frame)
    for (name, spares), mine in table.groupby(["retries", "spares"], sort=False):
        axis.plot(mine["period s"], mine["lost"] + 1, marker="o", linestyle="-" if spares else ":",
                  label=f"{name}, {spares} spare")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("seconds between two probes, three of which must fail")
    axis.set_ylabel("requests lost, plus one")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    return Plot("lost", "Requests lost by the probe's period, retries and spares.", figure)
