"""The study `remote-kv`: where past KV should be kept (HERMES, remote KV storage; see docs/studies/remote-kv.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hermes.api import simulate
from hermes.studies.base import STUDIES, Context
from hermes.studies.remote_kv_plots import cdf_plot
from hermes.studies.remote_kv_points import (
    DESIGNS,
    RATE,
    Point,
    at_rate,
    context_bytes,
    dcn_used,
    hit_share,
    run_points,
    store_of,
    verdict,
)
from hermes.studies.report import Plot, Report, Table

__all__ = ["RemoteKv"]

PASTS = (4096, 24576)
CLIENTS = 128
SEARCH_TOP = 480.0     # requests/s, the highest rate tried

ASSUMPTIONS = [
    "128 clients of TP2 H100, Llama-3.1-70B in fp8 (profile llama-3.1-70b-h100-tp2-fp8, chunked scheduler), four "
    "racks; Azure 2023 conversation lengths, Poisson arrivals; every request brings 4,096 or 24,576 tokens of past "
    "context.",
    "KV in fp8 unless a row says bf16 (private only), on the device and in the stores alike. The profile's times are "
    "those of its tables whatever the KV takes.",
    "Private: 20,000 users with a context each, asked for evenly, kept in the store of the client, shelf or rack where "
    "the user's requests run. Shared: 10,000 documents, Zipf exponent 1; requests go anywhere, every store holds "
    "what is asked for most (C+DCN: each document in one rack).",
    "Stores begin full and evict LRU. A context that is missing is computed again and stored afterwards; a found one "
    "is not written back (it does not grow). A lookup takes no time.",
    "expected: a fetch takes the formula's time alone, hit rates are those of stores that hold what is asked for most, "
    "and a miss costs the time of a prefill in an empty system. contention: stores hold keys, concurrent reads share a "
    "store's bandwidth, and a miss is a prefill like any other.",
    "C+DCN: 128 GB/s and 10 ms between each rack and the core, shared max-min fairly; no cost within a rack.",
]


@dataclass
class Found:
    """A point with its figures."""

    point: Point
    row: dict[str, Any]
    stable: bool | None

    def get(self, key: str) -> Any:
        return self.row.get(key)


@STUDIES.register("remote-kv")
class RemoteKv:
    """See the module's docstring and `hermes.studies.base.Study`."""

    title = "Remote KV storage: a store per client, per shelf, per rack, or computing past context again"

    def run(self, context: Context) -> Report:
        """Capacities, points at the study's rate in both modes, highest stable rates, overlap."""
        folder = context.file("base.yaml").parent
        bits = (8,) if context.quick else (8, 16)
        populations = ("private",) if context.quick else ("private", "shared")
        seconds = 28 if context.quick else 48
        empty = self._unloaded(context, bits)
        points = [
            Point(design, past, population, kv, mode, requests=round(RATE * seconds))
            for kv in bits for population in (populations if kv == 8 else ("private",)) for past in PASTS
            for design in DESIGNS
            for mode in ("expected", "contention")
            if design != "recompute" or (mode == "contention" and population == "private")
        ]
        rows = run_points(points, context, "points")
        found = [
            Found(p, row, verdict(row, empty[p.design, p.past, p.kv_bits])) for p, row in zip(points, rows, strict=True)
        ]
        rates = self._rates(context, populations, empty, folder)
        tables = [
            self._designs(folder, bits, populations), self._capacities(), self._points(found), rates,
            self._overlap(context, empty),
        ]
        plots = [Plot(f"cdf-{mode}", _CAPTIONS[mode], cdf_plot([f for f in found if _shown(f, mode)], mode))
                 for mode in ("expected", "contention")]
        return Report(self.title, ASSUMPTIONS, tables, plots, _findings(found, rates.frame))

    def _unloaded(self, context: Context, bits: tuple[int, ...]) -> dict[tuple[str, int, int], float]:
        """Mean E2E of each design with the system to itself: one request every ten seconds."""
        points = [
            Point(design, past, kv_bits=kv, rate=0.1, requests=60) for kv in bits for design in DESIGNS
            for past in PASTS
        ]
        rows = run_points(points, context, "unloaded")
        return {(p.design, p.past, p.kv_bits): row["latency.e2e_s.mean"] for p, row in zip(points, rows, strict=True)}

    def _designs(self, folder: Path, bits: tuple[int, ...], populations: tuple[str, ...]) -> Table:
        rows = []
        for point in [Point(d, past, pop, kv) for kv in bits for pop in (populations if kv == 8 else ("private",))
                      for past in PASTS for d in DESIGNS]:
            store = store_of(point, folder)
            if store is None:
                continue
            size = context_bytes(point)
            hit = hit_share(point, store)
            rows.append({
                "keys": point.population, "past": _short(point.past), "KV": _kv(point), "design": point.design,
                "stores": store["stores"], "TB": store["capacity"] / 1e12, "GB/s": store["bandwidth"] / 1e9,
                "context GB": size / 1e9, "fit": int(store["capacity"] // size), "hit rate": hit,
                "read s": size / store["bandwidth"],
                "used": RATE * hit * size / (store["stores"] * store["bandwidth"]),
                "used if own": RATE * hit * size / (CLIENTS * store["bandwidth"]),
                "DCN used": dcn_used(point, store, folder),
            })
        return Table("designs", "Designs: what fits, and the bandwidth that 240 requests/s ask for",
                     pd.DataFrame(rows), "By arithmetic, before any simulation. TB, GB/s, fit: of one store, and the "
                     "contexts that fit; read: one context alone; used: share of the bandwidth, above 1 it is too "
                     "little; used if own: the same if every client had a store's bandwidth to itself; DCN used: "
                     "of the links between racks.",
                     {"hit rate": 3, "read s": 3, "context GB": 2, "used": 2, "used if own": 2, "DCN used": 2})

    def _capacities(self) -> Table:
        """KV tokens of one client, by bytes of weights and KV."""
        rows = []
        for dtype in ("bf16", "fp8"):
            for kv_bits in (16, 8):
                record = simulate({
                    "workload": {"requests": 1, "arrivals": {"kind": "uniform", "rate": 1.0},
                                 "lengths": {"kind": "fixed", "prompt": 16, "output": 1}},
                    "clients": [{"model": "llama-3.1-70b", "device": "h100-sxm",
                                 "memory": {"kv_bits": kv_bits, "utilization": 0.9},
                                 "scheduler": {"kind": "chunked", "max_num_batched_tokens": 2048, "max_num_seqs": 256},
                                 "hardware": {"kind": "polynomial", "profile": f"llama-3.1-70b-h100-tp2-{dtype}"}}],
                }).record
                tokens = record.clients[0].num_blocks * record.clients[0].block_size
                rows.append({"weights": dtype, "KV": "bf16" if kv_bits == 16 else "fp8", "KV tokens": tokens,
                             "requests of 4K + 1.4K": tokens // 5500, "requests of 24K + 1.4K": tokens // 26000})
        return Table("kv-capacity", "KV capacity of a TP2 client", pd.DataFrame(rows),
                     "With bf16 weights no request with 24K of past context fits, whatever the KV takes.")

    def _points(self, found: list[Found]) -> Table:
        rows = [{
            "keys": f.point.population, "past": _short(f.point.past), "KV": _kv(f.point), "design": f.point.design,
            "mode": f.point.mode, "p50 s": f.row["latency.e2e_s.p50"], "p99 s": f.row["latency.e2e_s.p99"],
            "TTFT s": f.row["latency.ttft_s.p50"], "fetch s": f.get("fetch.mean_s"), "found": f.get("fetch.found"),
            "busy": _busy(f.row), "KV tok": f.row["point.kv_capacity_per_client_tokens"],
            "peak": f.row["point.kv_peak_share"], "rej": f.row["point.rejected"],
            "early": f.row["point.in_system_early"], "late": f.row["point.in_system_late"], "stable": _yes(f.stable),
        } for f in found]
        return Table("points", f"At {RATE:g} requests/s", pd.DataFrame(rows),
                     "p50, p99: end to end; TTFT: its median; fetch: mean; found: share of fetches that found their "
                     "context; busy: share of the time in which the busiest store was read or written; KV tok, peak: "
                     "KV tokens of one client, and the share in use at the fullest; rej: rejected; early, late: mean "
                     "requests in the system in the second and the last quarter of the arrivals.",
                     {"p50 s": 2, "p99 s": 2, "TTFT s": 2, "fetch s": 3, "found": 3, "busy": 3, "peak": 3, "early": 0,
                      "late": 0})

    def _rates(self, context: Context, populations: tuple[str, ...], empty: dict[tuple[str, int, int], float],
               folder: Path) -> Table:
        """Highest stable rate of each design in contention mode, by bisection over a geometric ladder."""
        step = 2 ** (1 / 3) if context.quick else 2 ** (1 / 5)
        seconds = 24.0 if context.quick else 36.0
        searches = []
        for design in DESIGNS:
            for population in populations if design != "recompute" else ("private",):
                for past in PASTS:
                    point = Point(design, past, population)
                    store = store_of(point, folder)
                    bound = None if store is None else (
                        store["stores"] * store["bandwidth"] / (hit_share(point, store) * context_bytes(point)))
                    searches.append(_Search(point, bound, step, empty[design, past, 8], seconds))
        number = 0
        while any(search.open for search in searches):
            number += 1
            active = [search for search in searches if search.open]
            rows = run_points([search.next() for search in active], context, f"rates-{number}")
            for search, row in zip(active, rows, strict=True):
                search.tell(row)
        frame = pd.DataFrame([search.row() for search in searches])
        return Table("stable-rates", "Highest stable rate, contention mode, fp8 KV", frame,
                     f"Rates are tried in steps of {100 * (step - 1):.0f}% up to {SEARCH_TOP:g} requests/s, each for "
                     f"at least {seconds:g} s and eight times the E2E of an empty system; stable, unstable: the "
                     "highest rate that is and the lowest that is not; bound: stores x bandwidth / (hit rate x bytes); "
                     "the other columns at the highest stable rate.",
                     {"stable /s": 1, "unstable /s": 1, "bound /s": 1, "found": 3, "busy": 3, "peak": 3, "p50 s": 2})

    def _overlap(self, context: Context, empty: dict[tuple[str, int, int], float]) -> Table:
        """Reading layer by layer beside the prefill, at a rate that every design but C can take."""
        rate, seconds = 60.0, 24.0 if context.quick else 60.0
        points = [
            Point(design, past, rate=rate, requests=round(rate * seconds), overlap=overlap)
            for past in PASTS for design in ("A", "B") for overlap in (False, True)
        ]
        rows = run_points(points, context, "overlap")
        frame = pd.DataFrame([{
            "past": _short(p.past), "design": p.design, "overlap": "yes" if p.overlap else "no",
            "fetch mean s": row["fetch.mean_s"], "TTFT mean s": row["latency.ttft_s.mean"],
            "TTFT p99 s": row["latency.ttft_s.p99"], "busy": _busy(row),
            "KV tok": row["point.kv_capacity_per_client_tokens"], "peak": row["point.kv_peak_share"],
            "rej": row["point.rejected"], "stable": _yes(verdict(row, empty[p.design, p.past, 8])),
        } for p, row in zip(points, rows, strict=True)])
        return Table("overlap", f"A fetch beside the prefill, layer by layer ({rate:g} requests/s, private)", frame,
                     "fetch: until the generation may start. The same bytes are read either way.",
                     {"fetch mean s": 4, "TTFT mean s": 4, "TTFT p99 s": 4, "busy": 3, "peak": 3})


class _Search:
    """The highest stable rate of one design, by bisection over rates top, top / step, top / step^2, ..."""

    def __init__(self, point: Point, bound: float | None, step: float, empty_s: float, seconds: float) -> None:
        self.point, self.bound, self.empty_s, self.seconds = point, bound, empty_s, seconds
        top = SEARCH_TOP if bound is None else min(SEARCH_TOP, 1.25 * bound)
        count = 1
        while step**count < 32:
            count += 1
        self.rates = [top / step**k for k in range(count)]
        self.low, self.high = -1, count      # places of the slowest unstable and the fastest stable rate so far
        self.best: dict[str, Any] | None = None

    @property
    def open(self) -> bool:
        return self.high - self.low > 1

    def next(self) -> Point:
        self.place = (self.low + self.high) // 2
        return at_rate(self.point, self.rates[self.place], max(self.seconds, 8 * self.empty_s))

    def tell(self, row: dict[str, Any]) -> None:
        if verdict(row, self.empty_s):
            self.high, self.best = self.place, row
        else:
            self.low = self.place

    def row(self) -> dict[str, Any]:
        best = self.best or {}
        return {
            "keys": self.point.population, "past": _short(self.point.past), "design": self.point.design,
            "stable /s": self.rates[self.high] if self.best else None,
            "unstable /s": self.rates[self.low] if self.low >= 0 else None,
            "bound /s": self.bound, "found": best.get("fetch.found"), "busy": _busy(best),
            "KV tok": best.get("point.kv_capacity_per_client_tokens"), "peak": best.get("point.kv_peak_share"),
            "rej": best.get("point.rejected"), "p50 s": best.get("latency.e2e_s.p50"),
        }


def _short(tokens: int) -> str:
    return f"{tokens // 1024}K"


def _busy(row: dict[str, Any]) -> float | None:
    return next((v for k, v in row.items() if k.endswith(".max_utilisation") and v == v and v is not None), None)


def _kv(point: Point) -> str:
    return "fp8" if point.kv_bits == 8 else "bf16"


def _yes(stable: bool | None) -> str:
    return "window too short" if stable is None else "yes" if stable else "no"


def _shown(found: Found, mode: str) -> bool:
    return found.point.kv_bits == 8 and (found.point.mode == mode or found.point.design == "recompute")


_CAPTIONS = {
    "expected": "E2E latency at 240 requests/s, expected mode (formula), fp8 KV. Recomputing is simulated as such.",
    "contention": "The same in contention mode. Dashed: not stable, the curve depends on how long requests arrive.",
}


def _findings(found: list[Found], rates: pd.DataFrame) -> list[str]:
    """Sentences from the tables."""
    out = []
    for mode in ("expected", "contention"):
        for population in dict.fromkeys(f.point.population for f in found):
            for past in PASTS:
                mine = [f for f in found if _shown(f, mode) and f.point.past == past
                        and (f.point.population == population or f.point.design == "recompute")]
                order = sorted(mine, key=lambda f: f.row["latency.e2e_s.p50"])
                text = ", ".join(f"{f.point.design} {f.row['latency.e2e_s.p50']:.1f} s"
                                 + ("" if f.stable else " (not stable)") for f in order)
                out.append(f"{mode}, {population}, {past:,} tokens: median E2E {text}.")
    stable = rates.dropna(subset=["stable /s"])
    for group, part in stable.groupby(["keys", "past"], sort=False):
        text = ", ".join(f"{row['design']} {row['stable /s']:.3g}" for _, row in part.iterrows())
        out.append(f"Highest stable rate, {' '.join(map(str, group))} tokens, requests/s: {text}.")
    out += [f"{row['design']}, {row['keys']}, {row['past']} tokens: no rate tried is stable."
            for _, row in rates[rates["stable /s"].isna()].iterrows()]
    return out

