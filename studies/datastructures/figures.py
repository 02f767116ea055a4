"""Figures of the paper beside the study's, each with its cause."""

from __future__ import annotations

from typing import Any

from hermes.study import Compared

__all__ = ["compared", "eviction"]


def compared(found: dict[str, Any], capacity: float, recency: str) -> list[Compared]:
    """Return every figure. found: the frame of each table by its name; capacity: in percent."""
    return [*_pages(found["savings"]), *eviction(found["zipf"], capacity, recency), *_p95(found["admission"]),
            *(_fusion(found["fusion"], found["strengths"]) if "fusion" in found else ()), *_powers(found["powers"]),
            *_heap(found["heap"])]


def eviction(frame: Any, capacity: float, recency: str) -> list[Compared]:
    """Return the figures of eviction, from the table `zipf`."""
    rows = frame[frame["capacity %"] == capacity].set_index("policy")
    lru, tamm = rows.loc["lru"], rows.loc[f"tamm {recency}"]
    return [
        Compared("2. TAMM, hits %", None, tamm["hit %"],
                 f"Recency is {recency}, at {capacity:g}% capacity; it saves {tamm['tokens saved %']:.1f}% of the "
                 "tokens.", 1),
        Compared("2. LRU, hits %", None, lru["hit %"],
                 f"At the same capacity; it saves {lru['tokens saved %']:.1f}% of the tokens.", 1),
        Compared("2. TAMM less LRU, hits, points", None, tamm["hit %"] - lru["hit %"],
                 f"A mean hit of TAMM saves {_mean(tamm):.2f} of the tokens of a mean access, one of LRU "
                 f"{_mean(lru):.2f}; the paper does not define recency.", 1),
        Compared("2. TAMM, budget in use %", 94.2, tamm["budget in use %"],
                 f"What is free is less than the last entry that was evicted; LRU uses {lru['budget in use %']:.1f}%. "
                 "The paper does not name its workload.", 1),
    ]


def _mean(row: Any) -> float:
    """Tokens of a mean hit over those of a mean access."""
    return float(row["tokens saved %"] / row["hit %"])


def _pages(frame: Any) -> list[Compared]:
    saved = frame.set_index(["page", "prefix"])["saved %"]
    return [
        Compared(f"1. pages of {page} saved, 500 of 1,000 tokens shared, %", 49.5, float(saved[page, 500]),
                 f"Whole pages of {page} tokens can be shared: {500 // page} of a prefix of 500.", 1)
        for page in (16, 512)]


def _p95(frame: Any) -> list[Compared]:
    rows = frame[frame["policy"] == "lru"]
    causes = {"admission": "fewer entries are written and evicted",
              "warming": "it reads from the disk that misses wait for"}
    found = []
    for name, cause in causes.items():
        mine = rows[rows["memory tier"] == name]
        less, busy = -mine["P95 change %"].astype(float), mine["disk busy %"]
        found.append(Compared(f"3. P95 of a fetch with {name}, % less", (20.0, 30.0), (less.min(), less.max()),
                              f"With the disk busy {busy.min():.0f} to {busy.max():.0f}% of the time; {cause}.", 0))
    return found


def _fusion(fusion: Any, strengths: Any) -> list[Compared]:
    recall = fusion.set_index("method")["recall@10"]
    gap = (strengths["dense"] - strengths["sparse"]).abs()
    alike = strengths.loc[gap.idxmin()]
    gain = alike["nasf"] - max(alike["dense"], alike["sparse"])
    return [Compared("4. NASF over dense search, recall@10", 0.11, recall["nasf"] - recall["dense"],
                     f"Dense search and BM25 find {recall['dense']:.2f} and {recall['sparse']:.2f} here; to two lists "
                     f"that are alike ({alike['dense']:.2f}, {alike['sparse']:.2f}) NASF adds {gain:.2f}.", 3)]


def _powers(frame: Any) -> list[Compared]:
    rows = frame[frame["time grows like"] == "N"]
    widest = rows.loc[(rows["to"] - rows["from"]).idxmax()]
    return [Compared("5. time of a graph search, exponent of N", 0.63, (widest["from"], widest["to"]),
                     f"95% interval of {widest['points']} searches, {widest['measured']}; the paper fits two points of "
                     "unlike parameters.", 2)]


def _heap(frame: Any) -> list[Compared]:
    times = frame[frame["structure"].str.startswith("indexed")]["times as much"]
    return [Compared("7. indexed heap, an operation at 10^5 over one at 10^3 entries", 1.67,
                     (times.min(), times.max()),
                     "log2(10^5) / log2(10^3) is 1.67; the rest is memory that no longer fits the CPU's caches.", 1)]
