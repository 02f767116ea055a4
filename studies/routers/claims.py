"""What projects and users say of routers, with the study's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from hermes.arrays import FloatArray
from hermes.study import Compared

from .traces import Trace

__all__ = ["EVENTS", "HOT", "KV", "LLM_D", "ROUND", "SGLANG", "TOKENS", "by_seed", "knowledge", "other_simulator",
           "rows_of"]

ROUND, HOT, KV, EVENTS = "round_robin", "production_stack, by prefix", "dynamo_kv", "dynamo_kv, events"
SGLANG, LLM_D, TOKENS = "sglang_cache_aware", "llm_d", "least_loaded, prompt tokens"
MOST, IDLE = 60.0, 0.25    # the claim holds from so many % of the requests and so much idle time on
OTHER_HITS = (8.7, 22.2)   # round robin and KV router, ai-dynamo 1.6: benchmarks/mooncake_router.py


def rows_of(replicas: int, traces: Sequence[Trace], routers: Mapping[str, pd.DataFrame],
            bounds: pd.DataFrame) -> list[Compared]:
    """Return the figures by router, of each trace."""
    rows: list[Compared] = []
    for trace in traces:
        frame, name = routers[trace.name], trace.name
        whole = trace.requests == len(trace.table)
        bound = bounds[bounds["where"] == name].iloc[0]
        rows.append(_hot(name, frame))
        found = 1e4 * by_seed(frame, ROUND, "hits") / bound["one cache"]
        rows.append(Compared(
            f"{name}: hits of round robin, % of those of one cache without limit", 100 / replicas,
            float(found.mean()), f"by hand {100 * bound['by hand'] / bound['one cache']:.0f}%, 1 - (1 - 1/N)^k for "
            "what k prompts had before; the rest is memory", 1, "DigitalOcean, load balancing of LLM serving: 1/N",
            _interval(found), settled=whole))
        for other, base in ((TOKENS, ROUND), (KV, ROUND), (LLM_D, ROUND), (SGLANG, ROUND), (LLM_D, KV)):
            ratio = _over(frame, other, base, "ttft_mean")
            rows.append(Compared(
                f"{name}: mean TTFT of {other} over that of {base}, x", None, float(ratio.mean()),
                f"hits {_percent(frame, other, 'hits')} and {_percent(frame, base, 'hits')}", 2,
                interval=_interval(ratio), neutral=1.0))
        if "round robin without limit" in bound:
            rows.append(Compared(
                f"{name}: hits of round robin without limit over those by hand, x", None,
                bound["round robin without limit"] / bound["by hand"],
                f"simulated {bound['round robin without limit']:.1f}%, by hand {bound['by hand']:.1f}%", 2))
        ratio = _over(frame, SGLANG, ROUND, "hits")
        rows.append(Compared(f"{name}: hits of sglang_cache_aware over those of round_robin, x", 3.8,
                             float(ratio.mean()), f"round_robin finds {_percent(frame, ROUND, 'hits')}, one cache "
                             f"without limit {bound['one cache']:.1f}%", 2, "SGLang v0.4: up to, on shared prefixes",
                             _interval(ratio), 1.0, settled=whole))
    return rows


def _hot(name: str, frame: pd.DataFrame) -> Compared:
    """Return whether one replica gets most requests of a hot prefix, and queues while others idle."""
    share, idle = 100 * by_seed(frame, HOT, "top_share"), by_seed(frame, HOT, "idle_queued")
    return Compared(
        f"{name}: requests at one replica, production_stack by prefix, %",
        "every request for a hot prefix lands on one engine, which queues while its peers idle", float(share.mean()),
        f"while it queues, others idle: {idle.mean():.0%} of all replicas' time; mean TTFT "
        f"{_over(frame, HOT, ROUND, 'ttft_mean').mean():,.0f} times round_robin's", 1, "production-stack#1035",
        _interval(share), agrees=bool(share.min() > MOST and idle.min() > IDLE),
        settled=bool((share.min() > MOST) == (share.max() > MOST)))


def knowledge(views: Mapping[str, pd.DataFrame]) -> list[Compared]:
    """Return what exact views are worth, and what stale ones cost."""
    rows = []
    for name, frame in views.items():
        for kind in (LLM_D, KV, "predicted"):
            blind = _over(frame, f"{kind}, caches none", f"{kind}, caches events", "ttft_mean")
            rows.append(Compared(
                f"{name}: mean TTFT of {kind} that knows no caches over one with events, x", None, float(blind.mean()),
                f"hits {_percent(frame, f'{kind}, caches none', 'hits')} and "
                f"{_percent(frame, f'{kind}, caches events', 'hits')}", 2, interval=_interval(blind), neutral=1.0))
        sent, events = "llm_d, caches approximate", "llm_d, caches events"
        gain = _over(frame, sent, events, "ttft_mean")
        rows.append(Compared(
            f"{name}: mean TTFT of llm_d that counts what it sent over one with events, x", 57.0, float(gain.mean()),
            f"believed {_percent(frame, sent, 'believed')} and {_percent(frame, events, 'believed')}, found "
            f"{_percent(frame, sent, 'hits')} and {_percent(frame, events, 'hits')}", 2,
            "llm-d, KV-cache wins you can see: p90", _interval(gain), 1.0, None if gain.min() > 1 else False))
        for kind in ("least_loaded", LLM_D, "predicted"):
            cost, second = (_over(frame, f"{kind}, loads scraped {period}", f"{kind}, loads exact", "ttft_mean")
                            for period in ("10 s", "1 s"))
            rows.append(Compared(
                f"{name}: mean TTFT of {kind} with loads scraped every 10 s over exact ones, x", None,
                float(cost.mean()), f"every second: {second.mean():.2f}", 2, interval=_interval(cost), neutral=1.0))
    return rows


def other_simulator(frame: pd.DataFrame) -> Compared:
    """Return hits of a KV router over those of round robin in the setting of Dynamo's own replay of the trace."""
    hits, ttft = (_over(frame, EVENTS, ROUND, column) for column in ("hits", "ttft_mean"))
    there, mine = (f"{before:.1f} to {after:.1f}%" for before, after in (
        OTHER_HITS, [100 * by_seed(frame, name, "hits").mean() for name in (ROUND, EVENTS)]))
    return Compared("Mooncake, Llama-3.1-8B: hits of Dynamo's router over those of round robin, x",
                    OTHER_HITS[1] / OTHER_HITS[0], float(hits.mean()),
                    f"there {there}, here {mine}; mean TTFT x {ttft.mean():.2f}", 2, "ai-dynamo 1.6, dynamo.replay",
                    _interval(hits), 1.0)


def by_seed(frame: pd.DataFrame, router: str, column: str) -> FloatArray:
    """Return a figure of a router, one for each seed."""
    found: FloatArray = frame[frame["router"] == router].sort_values("seed")[column].to_numpy(dtype=float)
    return found


def _over(frame: pd.DataFrame, router: str, base: str, column: str) -> FloatArray:
    """Return a figure over that of another router with the same seed, hence the same arrivals."""
    ratio: FloatArray = by_seed(frame, router, column) / by_seed(frame, base, column)
    return ratio


def _percent(frame: pd.DataFrame, router: str, column: str) -> str:
    return f"{100 * by_seed(frame, router, column).mean():.1f}%"


def _interval(values: FloatArray) -> tuple[float, float]:
    return float(values.min()), float(values.max())
