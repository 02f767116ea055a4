"""Study of the memory hierarchy: which memory for KV and for a retrieval index pays.

One sweep of memories on a multi-turn assistant: the highest rate of each within limits of TTFT and TPOT, and its
dollars; longer gaps between turns; mechanisms of the simulator switched off one at a time; break-even points by hand.
The RAG load: places of the index, and KV that requests share.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from hermes.study import Context, Point, Report, Search, Table, run_points, run_searches
from hermes.sums import float_sum

from .compared import compared
from .figures import TPOT_S, TTFT_S, figures
from .hand import KV_BYTES, found_share, gap_kept
from .lone import break_even
from .plots import front, pareto
from .points import ALONE, DESIGNS, DEVICES, Design, point
from .rag import index_places, shared_kv

__all__ = ["run"]

LADDER = [round(1.8 * 1.15**step, 2) for step in range(10)]   # conversations/s: 1.8 to 6.33
FIRST = 7   # rates up to which a search bisects, to 4.16; beyond, one after the other
SOUGHT = ("HBM alone", "host 32", "host 64", "host 128", "host 256", "CXL box", "DCN flash", "flash 100G")
GAPPED = ("HBM alone", "host 64", "host 256", "CXL box", "DCN flash", "flash 100G")
LONG_GAP_S, LONG_RATE, TRIED = 120.0, 4.4, 3.62
NEW_TOKENS, ANSWER_S = 1800, 8.0   # of a turn: a message and an answer, and how long that takes
ANY = {"kind": "least_loaded", "load": "input_tokens"}   # a turn may run on any replica


def run(context: Context) -> Report:
    lone, places, kv = break_even(context), index_places(context), shared_kv(context)
    off = ablation(context)
    tables = [_hand(lone), _index(places), _shared(kv), _ablation(off)]
    if context.quick:
        return Report(tables, findings=_findings(off), compared=compared(lone, places, kv, off))
    found, gaps = sought(context), gapped(context)
    tables = [_designs(found), _gaps(gaps), _kept(found), *tables]
    return Report(tables, [pareto(found, gaps)], _findings(off), compared=compared(lone, places, kv, off, found, gaps))


# -- points ------------------------------------------------------------------------------------------------------------


def sought(context: Context) -> pd.DataFrame:
    """Return for each design the figures at its highest rate within the limits, and its dollars."""
    searches = {name: Search(name, LADDER, lambda row: bool(row["meets"]), high=FIRST) for name in SOUGHT}
    for place in range(FIRST, len(LADDER)):
        name = "highest" if place == FIRST else f"from-{place}"
        run_searches(list(searches.values()), partial(_rates, context, name))
        for search in searches.values():
            if search.low == place - 1:
                search.high = place + 1
    rows = []
    for name, search in searches.items():
        dollars = DESIGNS[name].dollars_per_hour(context, context["gpu_dollars"])
        best = search.rows[search.low] if search.low >= 0 else {}
        rows.append({"design": name, "rate": search.highest, "turns/s": best.get("turns_per_s"),
                     "GB": float_sum(store.total_gb for store in DESIGNS[name].stores),
                     "$/h": dollars, "memory $/h": dollars - DEVICES * context["gpu_dollars"],
                     "$/1000 turns": dollars / 3.6 / best["turns_per_s"] if best else None,
                     "TTFT p90 s": best.get("ttft_p90"), "found": best.get("hits"),
                     "read GB/s": best.get("read_per_s", 0.0) / 1e9,
                     "written GB/s": best.get("written_per_s", 0.0) / 1e9,
                     "contradictions": search.contradictions})
    found = pd.DataFrame(rows)
    return found.assign(front=front(found["$/h"], found["turns/s"]))


def _rates(
    context: Context, name: str, number: int, wanted: list[tuple[Any, float]],
) -> list[dict[str, Any]]:
    frame = _simulate(context, f"{name}-{number}", [point(context, DESIGNS[design], rate) for design, rate in wanted])
    rows: list[dict[str, Any]] = frame.to_dict("records")   # type: ignore[assignment]
    return rows


def gapped(context: Context) -> pd.DataFrame:
    """Return each design's figures at one rate with the longer gap."""
    frame = _simulate(context, "gap", [point(context, DESIGNS[name], LONG_RATE, LONG_GAP_S) for name in GAPPED])
    dollars = [DESIGNS[name].dollars_per_hour(context, context["gpu_dollars"]) for name in GAPPED]
    return frame.assign(dollars=dollars)


def unshared(design: Design) -> Design:
    """Return a design in which each replica has the whole bandwidth of a shared memory to itself."""
    stores = tuple(replace(store, memory=f"{store.memory}-unshared.yaml") if store.shared else store
                   for store in design.stores)
    return replace(design, stores=stores)


def ablation(context: Context) -> pd.DataFrame:
    """Return designs at one rate with mechanisms switched off one at a time."""
    box, flash = DESIGNS["CXL box"], DESIGNS["flash 100G"]
    shared = "sharing of bandwidth"
    cases: list[tuple[str, str, Design, dict[str, Any]]] = [
        ("same", "nothing", flash, {}), ("same", shared, unshared(flash), {}),
        ("any", "nothing", box, {}), ("any", shared, unshared(box), {})]
    if not context.quick:
        cases += [
            ("same", "overlap with prefill", flash, {"clients__0__tiers__overlap": False}),
            ("any", "nothing", flash, {}), ("same", "nothing", DESIGNS["host 256"], {}),
            ("any", "nothing", DESIGNS["host 256"], {}), ("same", "nothing", DESIGNS["host 64"], {}),
            ("same", "eviction", DESIGNS["host 64"], {"unlimited": True}), ("same", "nothing", ALONE, {})]
    points = []
    for routed, off, design, changes in cases:
        router: dict[str, Any] = {} if routed == "same" else {"router": ANY}
        made = point(context, design, TRIED, columns={"off": off, "turns run on": f"{routed} replica"}, **changes,
                     **router)
        points.append(replace(made, label=f"{made.label}, {routed} replica, without {off}"))
    return _simulate(context, "ablation", points)


def _simulate(context: Context, name: str, points: list[Point]) -> pd.DataFrame:
    return run_points(context, name, points, scenario="assistant.yaml", extract=figures)


# -- tables ------------------------------------------------------------------------------------------------------------


def _designs(found: pd.DataFrame) -> Table:
    frame = found.drop(columns=["contradictions", "front"]).assign(
        front=["yes" if one else "no" for one in found["front"]])
    return Table("designs", f"Highest rate with TTFT p90 up to {TTFT_S:g} s and TPOT p90 up to {1e3 * TPOT_S:g} ms, "
                 "30 s between turns", frame,
                 "rate: conversations/s, in steps of 15%; turns/s: of the turns that count; GB: of all memories; "
                 "front: none is at most as dear and has at least as many turns/s. host N: N GB for each GPU.",
                 {"rate": 2, "turns/s": 1, "$/h": 2, "memory $/h": 2, "$/1000 turns": 3, "TTFT p90 s": 2, "found": 3,
                  "read GB/s": 1, "written GB/s": 1, "GB": 0},
                 (("design", "rate", "turns/s", "GB", "$/h", "memory $/h", "$/1000 turns", "front"),
                  ("design", "TTFT p90 s", "found", "read GB/s", "written GB/s")))


def _gaps(gaps: pd.DataFrame) -> Table:
    frame = pd.DataFrame({
        "design": gaps["design"], "turns/s": gaps["turns_per_s"], "TTFT p50 s": gaps["ttft_p50"],
        "TTFT p90 s": gaps["ttft_p90"], "TPOT p90 ms": 1e3 * gaps["tpot_p90"], "found": gaps["hits"],
        "moved GB/s": gaps["moved_per_s"] / 1e9, "busy": gaps["busy"], "$/h": gaps["dollars"]})
    return Table("gaps", f"{LONG_GAP_S:g} s between turns, {LONG_RATE:g} conversations/s", frame,
                 "moved, busy: at the tiers, over the whole run.",
                 {"turns/s": 1, "TTFT p50 s": 2, "TTFT p90 s": 2, "TPOT p90 ms": 0, "found": 3, "moved GB/s": 1,
                  "busy": 3, "$/h": 2})


def _kept(found: pd.DataFrame) -> Table:
    """Return how long each amount of host memory remembers, by hand, and what it finds by hand and simulated."""
    best = {str(row["design"]): row for row in found.to_dict("records")}
    past, rows = best["host 256"]["found"], []
    for name in ("host 32", "host 64", "host 128", "host 256"):
        row = best[name]
        written, capacity = row["turns/s"] * NEW_TOKENS * KV_BYTES, 1e9 * row["GB"]
        rows.append({"design": name, "remembers, s": capacity / written,
                     "gap of which it finds 90%, s": gap_kept(capacity, written),
                     "found by hand": past * found_share(capacity, written, 30.0, ANSWER_S), "found": row["found"]})
    return Table("kept", "What the host's memory remembers", pd.DataFrame(rows),
                 f"By hand: capacity / (turns/s x {NEW_TOKENS:,} new tokens x {KV_BYTES:,} bytes); a share "
                 f"1 - exp(-memory / {30 + ANSWER_S:g} s) of what host 256 finds. HBM finds the rest.",
                 {"remembers, s": 0, "gap of which it finds 90%, s": 0, "found by hand": 3, "found": 3})


def _hand(lone: pd.DataFrame) -> Table:
    return Table("break-even", "Bandwidth at which a lone load takes as long as recomputing, for four H100", lone,
                 "By hand: 2 P n + 2 L h n^2 flops at half of the peak against n x 327,680 bytes. load share: of the "
                 "TTFT with host DRAM.",
                 {"KV GB": 2, "recompute by hand, s": 3, "TTFT recomputed, s": 3, "TTFT from host DRAM, s": 3,
                  "by hand GB/s": 2, "simulated GB/s": 2, "difference": 3, "load share": 4},
                 (("tokens", "KV GB", "recompute by hand, s", "TTFT recomputed, s", "TTFT from host DRAM, s"),
                  ("tokens", "by hand GB/s", "simulated GB/s", "difference", "load share")))


def _index(places: pd.DataFrame) -> Table:
    return Table("index", "Places of an HNSW index of 200 million vectors of 768, 642 GB", places,
                 "By hand: accesses of a search times their latency, and the network.",
                 {"waits by hand, ms": 2, "search, ms": 2, "TTFT p50, ms": 1, "of TTFT %": 1, "$": 0})


def _shared(kv: pd.DataFrame) -> Table:
    return Table("rag-kv", "KV of the RAGPulse day, requests dealt out in turn", kv, "",
                 {"found %": 1, "TTFT p50, ms": 1, "TTFT p90, ms": 1})


def _ablation(off: pd.DataFrame) -> Table:
    frame = pd.DataFrame({
        "turns run on": off["turns run on"], "design": off["design"], "switched off": off["off"],
        "TTFT p90 s": off["ttft_p90"], "TPOT p90 ms": 1e3 * off["tpot_p90"], "moved GB/s": off["moved_per_s"] / 1e9,
        "keeps the limits": ["yes" if one else "no" for one in off["meets"]]})
    return Table("ablation", f"Mechanisms switched off one at a time, {TRIED:g} conversations/s, 30 s between turns",
                 frame, "", {"TTFT p90 s": 2, "TPOT p90 ms": 0, "moved GB/s": 1})


def _findings(off: pd.DataFrame) -> list[str]:
    """Return what each mechanism turns round."""
    said = []
    for (routed, name), group in off.groupby(["turns run on", "design"], sort=False):
        as_is = group[group["off"] == "nothing"]
        for row in group[group["off"] != "nothing"].to_dict("records"):
            if len(as_is) and bool(row["meets"]) != bool(as_is["meets"].iloc[0]):
                said.append(f"{name}, turns on the {routed}: without {row['off']} TTFT p90 is {row['ttft_p90']:.2f} s "
                            f"instead of {as_is['ttft_p90'].iloc[0]:.2f} s, which turns the verdict.")
    return said or ["No mechanism turns a verdict."]
