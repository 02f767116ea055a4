"""The study's figures."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from hermes.study import Plot

__all__ = ["by_router", "stale_loads"]

FAR = 10.0   # a router whose mean TTFT is so many times the median one's is off the scale, with its figure
PERIODS = {"exact": 0.01, "scraped 50 ms": 0.05, "scraped 1 s": 1.0, "scraped 10 s": 10.0}


def by_router(routers: Mapping[str, pd.DataFrame], bounds: pd.DataFrame) -> Plot:
    """Hits with their bounds, and mean and p99 of TTFT with their ranges over seeds, a row for each router."""
    names = list(max(routers.values(), key=len)["router"].unique())[::-1]
    figure = Figure(figsize=(13, 0.34 * len(names) + 1.6), layout="constrained")
    axes = figure.subplots(1, 2 * len(routers), sharey=True, squeeze=False)[0]
    for column, (trace, frame) in enumerate(routers.items()):
        hits, times = axes[2 * column], axes[2 * column + 1]
        places = [names.index(name) for name in frame["router"].unique()]
        groups = frame.groupby("router", sort=False)
        hits.barh(places, 100 * groups["hits"].mean(), color="C0", height=0.6)
        bound = bounds[bounds["where"] == trace].iloc[0]
        hits.axvline(bound["one cache"], color="black", linestyle=":", label="one cache without limit")
        hits.axvline(bound["shared memory"], color="C3", linestyle="--", label="one cache, all their memory")
        hits.set_xlim(0, 40)
        hits.set_xlabel("hits, % of prompt tokens")
        hits.set_title(trace)
        means = groups["ttft_mean"].mean()
        shown = [name for name in means.index if means[name] < FAR * means.median()]
        for measure, mark, label in (("ttft_mean", "o", "mean"), ("ttft_p99", "s", "p99")):
            mean, low, high = (groups[measure].agg(how)[shown] for how in ("mean", "min", "max"))
            times.errorbar(mean, [names.index(name) for name in shown], xerr=[mean - low, high - mean], fmt=mark,
                           markersize=5, capsize=2, label=label)
        for name in set(means.index) - set(shown):
            times.text(0.97, names.index(name), f"mean {means[name]:,.0f} s \N{BLACK RIGHT-POINTING TRIANGLE}",
                       transform=times.get_yaxis_transform(), ha="right", va="center", fontsize=8)
        times.set_xscale("log")
        ticks = [0.2, 0.5, 1, 2, 5, 10, 20]
        times.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        times.set_xlim(0.7 * groups["ttft_mean"].min().min(), 1.6 * groups["ttft_p99"].max()[shown].max())
        times.minorticks_off()
        times.set_xlabel("TTFT, s")
        times.set_title(trace)
        for axis in (hits, times):
            axis.grid(alpha=0.3, axis="x")
    axes[0].set_yticks(range(len(names)), names)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=2, frameon=False)
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower right", ncols=2, frameon=False)
    return Plot("routers", "Hits and TTFT by router; bars at the marks: over seeds. Mooncake names no sessions.",
                figure)


def stale_loads(views: Mapping[str, pd.DataFrame]) -> Plot:
    """Mean TTFT over the time between two scrapes of the loads."""
    figure = Figure(figsize=(6.5, 4.5), layout="constrained")
    axis = figure.subplots()
    for place, (trace, frame) in enumerate(views.items()):
        means = frame.groupby("router")["ttft_mean"].mean()
        for number, kind in enumerate(("least_loaded", "llm_d", "predicted")):
            axis.plot(list(PERIODS.values()),
                      [means[f"{kind}, loads {view}"] / means[f"{kind}, loads exact"] for view in PERIODS],
                      marker="os"[place], linestyle=("-", "--")[place], color=f"C{number}", label=f"{kind}, {trace}")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(list(PERIODS.values()), ["exact", "50 ms", "1 s", "10 s"])
    axis.set_yticks([1, 2, 5, 10, 20, 40], ["1", "2", "5", "10", "20", "40"])
    axis.minorticks_off()
    axis.set_xlabel("time between two scrapes of the loads")
    axis.set_ylabel("mean TTFT over that with exact loads")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    return Plot("stale", "Mean TTFT by the age of what a router knows of loads, over that with exact loads.", figure)
