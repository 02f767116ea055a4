"""Study of routers on two traces: cache hits, TTFT, balance, and what a router's knowledge is worth.

Routers as their projects ship them; three of them by their view of caches and of loads, everything else equal; what
caches could find, by counting; and a KV router on the setting in which another simulator was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from hermes.study import Compared, Context, Point, Report, Table, run_points

from .bounds import found_at_random, found_in_pool
from .claims import EVENTS, HOT, KV, LLM_D, ROUND, SGLANG, TOKENS, knowledge, other_simulator, rows_of
from .figures import router_figures
from .plots import by_router, stale_loads
from .settings import KNOWN, LOADS, ROUTERS, Known
from .traces import Trace, traces_of

__all__ = ["compare", "run"]

SEEDS, FEWER_SEEDS = (1, 2, 3, 4, 5), (1, 2, 3)
REPLICAS = 8   # for which the rates stand
QUICK = (ROUND, "least_loaded", TOKENS, "session", HOT, SGLANG, "aibrix_prefix", LLM_D, KV, "predicted")
VARIED = (ROUND, TOKENS, HOT, SGLANG, LLM_D, KV)
BLOCK = 16
OTHER = {"num_blocks": 20_000, "block_size": 64, "prefix_caching": True}   # of each of 8 replicas, as in the replay


def run(context: Context) -> Report:
    traces, left_out = traces_of(context)
    seeds = FEWER_SEEDS if context.quick else SEEDS
    names = QUICK if context.quick else tuple(ROUTERS)
    routers = {trace.name: simulate(context, trace, "routers", {n: ROUTERS[n] for n in names}, seeds)
               for trace in traces}
    bounds = bounds_of(context, traces, routers)
    tables = [_table(f"routers-{trace.name.lower()}", f"Routers on {trace.name}", routers[trace.name])
              for trace in traces]
    tables.append(Table("bounds", "What caches could find, % of the prompt tokens", bounds, BOUNDS,
                        {column: 1 for column in bounds.columns if column != "where"}))
    compared = rows_of(context["replicas"], traces, routers, bounds)
    plots = []
    if not context.quick:
        views = {trace.name: simulate(context, trace, "views", KNOWN | LOADS, FEWER_SEEDS) for trace in traces}
        for trace in traces:
            frame = views[trace.name]
            tables += [_table(f"caches-{trace.name.lower()}", f"By the view of caches, on {trace.name}",
                              frame[frame["router"].isin(KNOWN)]),
                       _table(f"loads-{trace.name.lower()}", f"By the view of loads, on {trace.name}",
                              frame[frame["router"].isin(LOADS)])]
        compared += knowledge(views)
        if any(trace.name == "Mooncake" for trace in traces):
            compared.append(other_simulator(_other(context, traces[0])))
        plots = [by_router(routers, bounds), stale_loads(views)]
    return Report(tables, plots, _findings(routers), left_out, compared=compared)


def compare(context: Context) -> list[Compared]:
    """Return the figures that the assumptions change."""
    traces, _ = traces_of(context)
    routers = {trace.name: simulate(context, trace, "varied", {n: ROUTERS[n] for n in VARIED}, FEWER_SEEDS)
               for trace in traces}
    return rows_of(context["replicas"], traces, routers, bounds_of(context, traces, routers, memory=False))


# -- points ------------------------------------------------------------------------------------------------------------


def settings_of(context: Context, trace: Trace, router: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a point in the scenario."""
    rate, path = trace.rate * context["load"] * context["replicas"] / REPLICAS, str(trace.path)
    arrivals: dict[str, Any] = {"kind": "poisson", "rate": f"{rate:.6g} /s"}
    if context["arrivals"] == "recorded":
        arrivals = {"kind": "trace", "path": path, "rate": f"{rate:.6g} /s"}
    return {"workload.requests": trace.requests, "workload.arrivals": arrivals,
            "workload.lengths": {"kind": "trace", "path": path}, "clients.0.count": context["replicas"],
            "clients.0.memory.num_blocks": context["kv_tokens"] // BLOCK, "router": dict(router)}


def simulate(context: Context, trace: Trace, name: str, routers: Mapping[str, Known],
             seeds: Sequence[int]) -> pd.DataFrame:
    """Simulate routers on a trace with every seed. A router by sessions is left out where the trace has none."""
    points = [Point(label, settings_of(context, trace, known.router),
                    {"router": label, "caches": known.caches, "loads": known.loads}, seed)
              for label, known in routers.items() if trace.sessions or label != "session" for seed in seeds]
    return run_points(context, f"{name}-{trace.name.lower()}", points, scenario="replicas.yaml",
                      extract=router_figures)


BOUNDS = (
    "one cache: of all prompts before, without limit; no placement finds more. shared memory: one cache with the "
    "replicas' memory, least recently used out first. by hand: each prompt to a replica at random, caches without "
    "limit, 1 - (1 - 1/N)^k for what k prompts had before. round robin without limit, round robin, most: simulated.")


def bounds_of(context: Context, traces: Sequence[Trace], routers: Mapping[str, pd.DataFrame],
              memory: bool = True) -> pd.DataFrame:
    """Return what caches could find, and what routers find. memory: Also the rows that cost a simulation or more."""
    rows = []
    for trace in traces:
        frame, replicas = routers[trace.name], context["replicas"]
        hits = frame.groupby("router")["hits"].mean()
        row = {"where": trace.name, "one cache": found_at_random(trace.table, 1, trace.requests),
               "by hand": found_at_random(trace.table, replicas, trace.requests)}
        if memory:
            row["round robin without limit"] = _endless(context, trace)["hits"].mean()
            row["shared memory"] = found_in_pool(trace.table, replicas * context["kv_tokens"], trace.requests)
        rows.append(row | {"round robin": hits[ROUND], "most": hits.max()})
    frame = pd.DataFrame(rows)
    columns = [column for column in frame.columns if column != "where"]
    return frame.assign(**{column: 100 * frame[column] for column in columns})


def _endless(context: Context, trace: Trace) -> pd.DataFrame:
    """Simulate round robin on replicas that could each hold all prompts."""
    tokens = int(trace.table.prompt_tokens[:trace.requests].sum())
    settings = settings_of(context, trace, ROUTERS[ROUND].router) | {"clients.0.memory.num_blocks": tokens // BLOCK}
    return run_points(context, f"endless-{trace.name.lower()}",
                      [Point("endless", settings, seed=seed) for seed in FEWER_SEEDS],
                      scenario="replicas.yaml", extract=router_figures)


def _other(context: Context, trace: Trace) -> pd.DataFrame:
    """Simulate round robin and Dynamo's router in the setting of Dynamo's own replay of the trace."""
    base = {"workload.requests": trace.requests, "clients.0.model": "llama-3.1-8b", "clients.0.parallel.tp": 1,
            "workload.arrivals": {"kind": "trace", "path": str(trace.path)}, "clients.0.memory": OTHER,
            "clients.0.scheduler": {"kind": "chunked", "max_num_seqs": 256, "max_num_batched_tokens": 8192},
            "workload.lengths": {"kind": "trace", "path": str(trace.path)}}
    points = [Point(name, base | {"router": ROUTERS[name].router}, {"router": name}, seed)
              for name in (ROUND, EVENTS) for seed in FEWER_SEEDS]
    return run_points(context, "other", points, scenario="replicas.yaml", extract=router_figures)


# -- tables ------------------------------------------------------------------------------------------------------------

COLUMNS = {"hits": "hits %", "believed": "believed %", "ttft_mean": "TTFT mean s", "ttft_p50": "p50 s",
           "ttft_p99": "p99 s", "requests_most": "requests", "busy_most": "busy", "idle_queued": "idle %"}


def _table(name: str, title: str, frame: pd.DataFrame) -> Table:
    """Return the means over seeds, with the lowest and highest mean TTFT and p99."""
    scaled = frame.assign(**{column: 100 * frame[column].astype(float) for column in ("hits", "believed",
                                                                                      "idle_queued")})
    groups = scaled.groupby(["router", "caches", "loads"], sort=False)
    table = groups[list(COLUMNS)].mean().rename(columns=COLUMNS)
    for column, after in (("ttft_p99", "p99 s"), ("ttft_mean", "TTFT mean s")):
        place = list(table.columns).index(after) + 1
        table.insert(place, f"{after} to", groups[column].max())
        table.insert(place, f"{after} from", groups[column].min())
    return Table(name, title, table.reset_index(),
                 "idle: of the replicas' time, while a request that has waited for a second queues at another.",
                 {column: 1 if column.endswith("%") else 2 for column in table.columns})


def _findings(routers: Mapping[str, pd.DataFrame]) -> list[str]:
    said = []
    for name, frame in routers.items():
        groups = frame.groupby("router", sort=False)["ttft_mean"]
        low, high, mean = groups.min(), groups.max(), groups.mean().sort_values()
        best = mean.index[0]
        ties = [router for router in mean.index[1:] if low[router] <= high[best]]
        said.append(f"{name}: the lowest mean TTFT has {best}, {mean[best]:.3g} s"
                    + (f"; cannot be told from it: {', '.join(ties)}" if ties else "") + ".")
        worse = [f"{router} ({mean[router]:,.3g} s)" for router in mean.index if low[router] > high[ROUND]]
        said.append(f"{name}: worse than round robin ({mean[ROUND]:.3g} s): {', '.join(worse) or 'none'}.")
    return said
