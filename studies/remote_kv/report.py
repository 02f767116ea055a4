"""Study of remote KV storage: places for past KV (HERMES, arXiv 2504.09775)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from hermes.study import Compared, Context, Plot, Point, Report, Search, Table, run_points, run_searches
from hermes.sums import float_sum

from .compared import compared
from .plots import cdf_plot
from .points import DESIGNS, MODES, Setup, at_rate, context_bytes, dcn_used, hit_share, store_of, verdict
from .runs import PASTS, POPULATIONS, Found, Unloaded, folder, grid, setup_of, simulate, unloaded

__all__ = ["compare", "run"]

CLIENTS = 128
SEARCH_TOP = 480.0     # requests/s, the highest rate tried


def run(context: Context) -> Report:
    """Capacities, points at the study's rate, highest stable rates, overlap. Quick: one mode, 4K in the search."""
    empty = unloaded(context)
    modes = (context["mode"],) if context.quick else MODES
    found = grid(context, empty, modes)
    rates = _rates(context, empty)
    tables = [_designs(context), _points(found, context["rate"]), rates, _capacities(context),
              _overlap(context, empty)]
    plots = [Plot(f"cdf-{mode}", _caption(mode, context["rate"]),
                  cdf_plot([f for f in found if _shown(f, mode)], mode, context["rate"])) for mode in modes]
    return Report(tables, plots, _findings(found, rates.frame, modes),
                  compared=compared(found, context["mode"], folder(context)))


def compare(context: Context) -> list[Compared]:
    """Return the paper's figures under the context's assumptions."""
    return compared(grid(context, unloaded(context), (context["mode"],)), context["mode"], folder(context))


def _designs(context: Context) -> Table:
    rows = []
    rate = context["rate"]
    for setup in [setup_of(context, d, past, pop) for pop in POPULATIONS for past in PASTS for d in DESIGNS]:
        store = store_of(setup, folder(context))
        if store is None:
            continue
        size = context_bytes(setup)
        hit = hit_share(setup, store)
        rows.append({
            "keys": setup.population, "past": _short(setup.past), "design": setup.design, "contexts": setup.keys,
            "stores": store["stores"], "TB": store["capacity"] / 1e12, "GB/s": store["bandwidth"] / 1e9,
            "context GB": size / 1e9, "fit": int(store["capacity"] // size), "hit rate": hit,
            "read s": size / store["bandwidth"],
            "used": rate * hit * size / (store["stores"] * store["bandwidth"]),
            "used if own": rate * hit * size / (CLIENTS * store["bandwidth"]),
            "DCN used": dcn_used(setup, store, folder(context)),
        })
    return Table("designs", f"Designs: what fits, and the bandwidth that {rate:g} requests/s ask for",
                 pd.DataFrame(rows), "By arithmetic, before any simulation. TB, GB/s, fit: of one store, and the "
                 "contexts that fit; read: one context alone; used: share of the bandwidth, above 1 it is too "
                 "little; used if own: the same if every client had a store's bandwidth to itself; DCN used: "
                 "of the links between racks.",
                 {"hit rate": 3, "read s": 3, "context GB": 2, "used": 2, "used if own": 2, "DCN used": 2})


def _capacities(context: Context) -> Table:
    """Return KV tokens of one client, by bytes of weights and KV."""
    each = [(dtype, kv_bits) for dtype in ("bf16", "fp8") for kv_bits in (16, 8)]
    wanted = [Point(f"{dtype} {kv_bits}", {"clients": [{
        "model": "llama-3.1-70b", "device": "h100-sxm", "allow_mismatch": True,
        "memory": {"kv_bits": kv_bits, "utilization": 0.9},
        "scheduler": {"kind": "chunked", "max_num_batched_tokens": 2048, "max_num_seqs": 256},
        "hardware": {"kind": "polynomial", "profile": f"llama-3.1-70b-h100-tp2-{dtype}"},
    }]}, {"weights": dtype, "KV": "bf16" if kv_bits == 16 else "fp8"}) for dtype, kv_bits in each]
    frame = run_points(context, "capacities", wanted, scenario={"workload": {
        "requests": 1, "arrivals": {"kind": "uniform", "rate": 1.0},
        "lengths": {"kind": "fixed", "prompt": 16, "output": 1}}})
    tokens = frame["kv.capacity_tokens"]
    return Table("kv-capacity", "KV capacity of a TP2 client", pd.DataFrame({
        "weights": frame["weights"], "KV": frame["KV"], "KV tokens": tokens, "requests of 4K + 1.4K": tokens // 5500,
        "requests of 24K + 1.4K": tokens // 26000}),
        "With bf16 weights no request with 24K of past context fits, whatever the KV takes.")


def _points(found: list[Found], rate: float) -> Table:
    rows = [{
        "keys": f.setup.population, "past": _short(f.setup.past), "design": f.setup.design,
        "mode": "-" if f.setup.design == "recompute" else f.setup.mode,
        "p50 s": f.mean("latency.e2e_s.p50"), "p90 s": f.mean("latency.e2e_s.p90"),
        "p90 from": min(f.t90), "p90 to": max(f.t90), "p99 s": f.mean("latency.e2e_s.p99"),
        "TTFT s": f.mean("latency.ttft_s.p50"), "fetch s": f.mean("fetch.mean_s"), "found": f.mean("fetch.found"),
        "busy": _busy(f.rows[0]), "KV tok": f.mean("point.kv_capacity_per_client_tokens"),
        "peak": f.mean("point.kv_peak_share"), "rej": f.mean("point.rejected"),
        "early": f.mean("point.in_system_early"), "late": f.mean("point.in_system_late"), "stable": _yes(f.stable),
    } for f in found]
    return Table("points", f"At {rate:g} requests/s", pd.DataFrame(rows),
                 f"Means of runs with different seeds: {len(found[0].rows)}. "
                 "p50, p90, p99: end to end, p90 with its lowest and highest of a seed; TTFT: its median; fetch: mean; "
                 "found: share of fetches that found their context; busy: share of the time in which the busiest store "
                 "was read or written (first seed); KV tok, peak: KV tokens of one client, and the share in use at the "
                 "fullest; rej: rejected; early, late: mean requests in the system in the second and the last quarter "
                 "of the arrivals; stable: with every seed.",
                 {"p50 s": 2, "p90 s": 2, "p90 from": 2, "p90 to": 2, "p99 s": 2, "TTFT s": 2, "fetch s": 3,
                  "found": 3, "busy": 3, "peak": 3, "early": 0, "late": 0})


@dataclass(frozen=True)
class Sought:
    """A design whose highest stable rate is searched. bound_per_s: the rate that the stores' bandwidth allows."""

    setup: Setup
    bound_per_s: float | None
    search: Search


def sought(setup: Setup, bound_per_s: float | None, step: float, empty_s: float) -> Sought:
    """Bisection over the rates top, top / step, top / step^2, ... of which 1/32 of the top is the last."""
    top = SEARCH_TOP if bound_per_s is None else min(SEARCH_TOP, 1.25 * bound_per_s)
    count = 1
    while step**count < 32:
        count += 1
    rates = [top / step**k for k in reversed(range(count))]
    return Sought(setup, bound_per_s, Search(setup, rates, lambda row: verdict(dict(row), empty_s) is True))


def _rates(context: Context, empty: Unloaded) -> Table:
    """Highest stable rate of each design in contention mode, by bisection over a geometric ladder."""
    step, seconds = 2 ** (1 / 5), 36.0
    populations, pasts = (POPULATIONS[:1], PASTS[:1]) if context.quick else (POPULATIONS, PASTS)
    searches = []
    for design in DESIGNS:
        for population in populations if design != "recompute" else ("private",):
            for past in pasts:
                setup = setup_of(context, design, past, population)
                store = store_of(setup, folder(context))
                bound = None if store is None else (
                    store["stores"] * store["bandwidth"] / (hit_share(setup, store) * context_bytes(setup)))
                searches.append(sought(setup, bound, step, empty[design, past]))
    run_searches([one.search for one in searches], partial(_round, context, empty, seconds))
    frame = pd.DataFrame([_search_row(one) for one in searches])
    return Table("stable-rates", "Highest stable rate, contention mode", frame,
                 f"Rates are tried in steps of {100 * (step - 1):.0f}% up to {SEARCH_TOP:g} requests/s, each for "
                 f"at least {seconds:g} s and eight times the E2E of an empty system; stable, unstable: the "
                 "highest rate that is and the lowest that is not; bound: stores x bandwidth / (hit rate x bytes); "
                 "the other columns at the highest stable rate.",
                 {"stable /s": 1, "unstable /s": 1, "bound /s": 1, "found": 3, "busy": 3, "peak": 3, "p50 s": 2})


def _round(context: Context, empty: Unloaded, seconds: float, number: int, wanted: list[tuple[Any, float]],
           ) -> list[dict[str, Any]]:
    return simulate(context, f"rates-{number}", [
        at_rate(setup, rate, max(seconds, 8 * empty[setup.design, setup.past])) for setup, rate in wanted])


def _search_row(one: Sought) -> dict[str, Any]:
    search = one.search
    best = dict(search.rows[search.low]) if search.low >= 0 else {}
    return {
        "keys": one.setup.population, "past": _short(one.setup.past), "design": one.setup.design,
        "stable /s": search.highest,
        "unstable /s": search.rates[search.high] if search.high < len(search.rates) else None,
        "bound /s": one.bound_per_s, "found": best.get("fetch.found"), "busy": _busy(best),
        "KV tok": best.get("point.kv_capacity_per_client_tokens"), "peak": best.get("point.kv_peak_share"),
        "rej": best.get("point.rejected"), "p50 s": best.get("latency.e2e_s.p50"),
    }


def _overlap(context: Context, empty: Unloaded) -> Table:
    """Return latencies of reading layer by layer beside the prefill, at a rate that every design but C sustains."""
    rate, seconds = 60.0, 60.0
    setups = [
        setup_of(context, design, past, rate=rate, requests=round(rate * seconds), overlap=overlap)
        for past in PASTS for design in ("A", "B") for overlap in (False, True)
    ]
    rows = simulate(context, "overlap", setups)
    frame = pd.DataFrame([{
        "past": _short(s.past), "design": s.design, "overlap": "yes" if s.overlap else "no",
        "fetch mean s": row["fetch.mean_s"], "TTFT mean s": row["latency.ttft_s.mean"],
        "TTFT p99 s": row["latency.ttft_s.p99"], "busy": _busy(row),
        "KV tok": row["point.kv_capacity_per_client_tokens"], "peak": row["point.kv_peak_share"],
        "rej": row["point.rejected"], "stable": _yes(verdict(row, empty[s.design, s.past])),
    } for s, row in zip(setups, rows, strict=True)])
    return Table("overlap", f"A fetch beside the prefill, layer by layer ({rate:g} requests/s, private)", frame,
                 "fetch: until the generation may start. The same bytes are read either way.",
                 {"fetch mean s": 4, "TTFT mean s": 4, "TTFT p99 s": 4, "busy": 3, "peak": 3})


def _short(tokens: int) -> str:
    return f"{tokens // 1024}K"


def _busy(row: dict[str, Any]) -> float | None:
    return next((v for k, v in row.items() if k.endswith(".max_utilisation") and v == v and v is not None), None)


def _yes(stable: bool | None) -> str:
    return "window too short" if stable is None else "yes" if stable else "no"


def _shown(found: Found, mode: str) -> bool:
    return found.setup.mode == mode or found.setup.design == "recompute"


def _caption(mode: str, rate: float) -> str:
    read = {"expected": "fetches take the formula's time, misses load no client",
            "computed": "hits take the formula's time, the LLM clients compute misses",
            "contention": "reads share a store's bandwidth, the LLM clients compute misses"}[mode]
    return (f"E2E latency at {rate:g} requests/s, mode {mode}: {read}. Dashed: not stable, the curve depends on how "
            "long requests arrive.")


def _findings(found: list[Found], rates: pd.DataFrame, modes: tuple[str, ...]) -> list[str]:
    """Sentences from the tables."""
    out = []
    for mode in modes:
        for population in POPULATIONS:
            for past in PASTS:
                mine = [f for f in found if _shown(f, mode) and f.setup.past == past
                        and (f.setup.population == population or f.setup.design == "recompute")]
                text = ", ".join(f"{f.setup.design} {f.mean('latency.e2e_s.p90'):.1f} s"
                                 + (" (not stable)" if f.stable is False else "")
                                 for f in sorted(mine, key=lambda f: float_sum(f.t90)))
                out.append(f"{mode}, {population}, {past:,} tokens: p90 of E2E {text}.")
    stable = rates.dropna(subset=["stable /s"])
    for group, part in stable.groupby(["keys", "past"], sort=False):
        text = ", ".join(f"{row['design']} {row['stable /s']:.3g}"
                         + (f" (at {row['unstable /s']:.3g} no longer)" if row["unstable /s"] == row["unstable /s"]
                            else " (the highest tried)") for _, row in part.iterrows())
        out.append(f"Highest stable rate tried, contention, {' '.join(map(str, group))} tokens, requests/s: {text}.")
    out += [f"{row['design']}, {row['keys']}, {row['past']} tokens: no rate tried is stable."
            for _, row in rates[rates["stable /s"].isna()].iterrows()]
    return out
