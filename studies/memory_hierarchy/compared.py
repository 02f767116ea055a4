"""Claims of papers with the study's figures, and what an architect asks, which no paper answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from hermes.study import Compared

__all__ = ["compared", "pays_up_to"]

SIGNIFICANT = 0.15   # of the TTFT, as a number's verdict (hermes.study.compared.NEAR)


def compared(
    lone: pd.DataFrame, places: pd.DataFrame, kv: pd.DataFrame, off: pd.DataFrame, found: pd.DataFrame | None = None,
    gaps: pd.DataFrame | None = None,
) -> list[Compared]:
    """Return the figures; `found` and `gaps` are None in a quick run."""
    rows = [*_of_papers(lone, off, found), *_break_even(lone), *_rag(places, kv)]
    if found is not None and gaps is not None:
        rows += _designs(found, gaps)
    return rows


def _of_papers(lone: pd.DataFrame, off: pd.DataFrame, found: pd.DataFrame | None) -> list[Compared]:
    worst = 100 * float(lone["load share"].max())
    kept = {(row["turns run on"], row["design"], row["off"]): row for row in off.to_dict("records")}
    box, own = (kept["any replica", "CXL box", what] for what in ("nothing", "sharing of bandwidth"))
    per: Any = None if found is None else found.set_index("design")["$/1000 turns"]
    ratio = None if per is None else float(per["CXL box"] / per["host 128"])
    return [
        Compared("share of the TTFT that a lone load from host DRAM takes, %", 99.0, worst,
                 "four H100 load at 256 GB/s, 60 times the break-even; as many tokens are new as are loaded",
                 1, "arXiv 2601.19910, abstract: of latency spent on transfers"),
        Compared("dollars of a turn with the CXL box over those with 128 GB of host DRAM a GPU, x",
                 "the cost of pools outweighs any savings", ratio,
                 "the same rate; 16 TB at the price of DRAM against 3 TB, without cables and switches", 3,
                 "A Case Against CXL Memory Pooling, HotNets 2023, abstract", neutral=1.0,
                 agrees=None if ratio is None else ratio >= 1, settled=ratio is not None),
        Compared("TTFT p90 with one shared CXL box over that with a box for each replica, x",
                 "interference in the shared path", float(box["ttft_p90"] / own["ttft_p90"]),
                 f"{box['ttft_p90']:.2f} s and {own['ttft_p90']:.2f} s, turns on any replica; the box moves "
                 f"{box['moved_per_s'] / 1e9:.0f} of 60 GB/s", 2,
                 "MemChannel, NSDI 2026, abstract: significant", neutral=1.0,
                 agrees=bool(box["ttft_p90"] / own["ttft_p90"] > 1 + SIGNIFICANT),
                 settled=abs(box["ttft_p90"] / own["ttft_p90"] - 1 - SIGNIFICANT) > SIGNIFICANT / 3),
    ]


def _break_even(lone: pd.DataFrame) -> list[Compared]:
    return [Compared(f"bandwidth at which loading {row['tokens']:,} tokens breaks even, GB/s", None,
                     float(row["simulated GB/s"]), f"by hand {row['by hand GB/s']:.2f}", 2)
            for row in lone.to_dict("records")]


def _rag(places: pd.DataFrame, kv: pd.DataFrame) -> list[Compared]:
    index = places.set_index("index in")
    rows = [Compared(f"RAG: share of the TTFT that a search takes with the index in {name}, %", None,
                     float(row["of TTFT %"]), f"waits by hand {row['waits by hand, ms']:.2f} ms, ${row['$']:,.0f}", 1)
            for name, row in index.iterrows()]
    hits = kv.set_index("KV in")["found %"]
    return [*rows, Compared("RAG: prompt tokens that a rack pool finds beyond the devices, points", None,
                            float(hits["rack pool"] - hits["HBM alone"]),
                            f"HBM alone finds {hits['HBM alone']:.1f}%", 1)]


def _designs(found: pd.DataFrame, gaps: pd.DataFrame) -> list[Compared]:
    best = {str(row["design"]): row for row in found.to_dict("records")}
    alone = best["HBM alone"]
    rows = [Compared(f"turns/s within the limits with {name} over HBM alone, x", None,
                     float(row["turns/s"] / alone["turns/s"]),
                     f"${row['$/1000 turns']:.3f} for 1,000 turns, HBM alone ${alone['$/1000 turns']:.3f}", 2,
                     neutral=1.0) for name, row in best.items() if name != "HBM alone"]
    rows += [Compared(f"price of its memory up to which {name} pays, times that of the study", None,
                      pays_up_to(row, alone), f"memory ${row['memory $/h']:.2f} an hour, by hand", 1)
             for name, row in best.items() if name != "HBM alone"]
    later = gaps.set_index("design")["ttft_p90"]
    return [*rows, *[Compared(f"TTFT p90 with {name}, 120 s between turns, s", None, float(value), "", 2)
                     for name, value in later.items()]]


def pays_up_to(row: Mapping[Any, Any], alone: Mapping[Any, Any]) -> float:
    """Return the factor of a memory's price at which a turn costs as much as on the devices alone."""
    devices = row["$/h"] - row["memory $/h"]
    return float(devices * (row["turns/s"] / alone["turns/s"] - 1) / row["memory $/h"])
