"""Figures of the paper beside the study's, each with its cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hermes.core.noise import classify, t_quantile
from hermes.study import Compared

from .memory import copied_pages
from .retrieval import PAPER

__all__ = ["compared", "eviction"]

PAGES, TAMM, SKETCH, FUSION = "paged KV cache", "token-aware LRU", "Count-Min sketch", "NASF, FIQA 10k"
GRAPH, NOISE, HEAP = "seeded HNSW", "SVAB", "indexed heap"


def compared(found: dict[str, Any], repeats: Sequence[Any], capacity: float, recency: str, quick: bool,
             ) -> list[Compared]:
    """Return every figure.

    Args:
        found: The frame of each table by its name.
        repeats: Frames of eviction, one for each seed.
        capacity: In percent.
        quick: Whether the corpus is the small one, which settles no fusion, and two seeds settle no P95.
    """
    fusion = _fusion(found["fusion"], found["strengths"], found["ablation"], not quick) if "fusion" in found else []
    return [*_pages(found["savings"]), *eviction(repeats, capacity, recency), *_sketch(found["sketch"]),
            *_p95(found["admission"], not quick), *fusion, *_powers(found["powers"]),
            *(_seeds(found["seeds"]) if "seeds" in found else ()), *_noise(),
            *_heap(found["comparisons"], found["heap"])]


def eviction(repeats: Sequence[Any], capacity: float, recency: str) -> list[Compared]:
    """Return the figures of eviction from a frame of LRU and TAMM for each seed."""
    frames = [frame[frame["capacity %"] == capacity].set_index("policy") for frame in repeats]
    lru, tamm = ([frame.loc[name] for frame in frames] for name in ("lru", f"tamm {recency}"))
    hits, others, used = ([row[column] for row in rows] for rows, column in (
        (tamm, "hit %"), (lru, "hit %"), (tamm, "budget in use %")))
    gains = [mine - other for mine, other in zip(hits, others, strict=True)]
    return [
        Compared("2. TAMM, hits %", None, hits[0],
                 f"Recency is {recency}, at {capacity:g}% capacity; it saves {tamm[0]['tokens saved %']:.1f}% of the "
                 "tokens.", 1, TAMM, _interval(hits)),
        Compared("2. LRU, hits %", None, others[0],
                 f"At the same capacity; it saves {lru[0]['tokens saved %']:.1f}% of the tokens.", 1, TAMM,
                 _interval(others)),
        Compared("2. TAMM less LRU, hits, points", None, gains[0],
                 f"A mean hit of TAMM saves {_mean(tamm[0]):.2f} of the tokens of a mean access, one of LRU "
                 f"{_mean(lru[0]):.2f}; the paper does not define recency.", 1, TAMM, _interval(gains)),
        Compared("2. TAMM, budget in use %", 94.2, used[0],
                 f"What is free is less than the last entry that was evicted; LRU uses {lru[0]['budget in use %']:.1f}"
                 "%. The paper does not name its workload.", 1, TAMM, _interval(used)),
    ]


def _interval(values: Sequence[float]) -> tuple[float, float]:
    return float(min(values)), float(max(values))


def _mean(row: Any) -> float:
    """Tokens of a mean hit over those of a mean access."""
    return float(row["tokens saved %"] / row["hit %"])


MEASURED = {100: 4.8, 200: 9.8, 500: 24.5, 800: 39.2}
"""Percent of memory that the paper measures as saved, by tokens shared of 1,000."""


def _pages(frame: Any) -> list[Compared]:
    saved = frame.set_index(["page", "prefix"])
    return [
        Compared(f"1. pages of {page} saved, {prefix} of 1,000 tokens shared, paper's {kind}, %", paper,
                 float(saved.loc[(page, prefix), "saved %"]),
                 f"Whole pages of {page} tokens can be shared: {prefix // page} of a prefix of {prefix}." + (
                     "" if kind == "theory" else " The paper measures the memory of a process."), 1, PAGES,
                 qualifier="" if kind == "theory" and page == 16 else "paper wrong")
        for page in (16, 512) for prefix, measured in MEASURED.items()
        for kind, paper in (("theory", 100 * prefix / 1000 * 99 / 100), ("measurement", measured))] + [
        Compared("1. pages of 16, 10 of 100 sharers change the last 512 of 1,024 tokens", (1024 + 10 * 512) / 16,
                 copied_pages(), "L_s + K L_m, counted from the first token that differs: KV depends on all before.",
                 where=PAGES)]


def _sketch(frame: Any) -> list[Compared]:
    rows = frame[frame["depth"] == 4]
    above = 100 * rows["above the bound"].max()
    return [
        Compared("3. sketch of 2048 x 4, epsilon", 0.00133, float(rows["epsilon"].iloc[0]), "e / 2048.", 5, SKETCH,
                 qualifier="given"),
        Compared("3. sketch of 2048 x 4, delta", 0.0183, float(rows["delta"].iloc[0]), "exp(-4).", 4, SKETCH,
                 qualifier="given"),
        Compared("3. estimates above f + epsilon N, %", "at most 1.83", f"{above:.2f}",
                 f"The worst is {rows['worst error / counts'].max():.5f} of the counts too high: the bound holds for "
                 "any keys, and these are not the worst.", where=SKETCH, agrees=bool(above <= 1.83)),
        Compared("3. estimates below the truth", "none", f"{rows['below the truth'].sum():.0f}",
                 "Collisions only add.", where=SKETCH, agrees=bool(rows["below the truth"].sum() == 0)),
    ]


def _p95(frame: Any, settled: bool) -> list[Compared]:
    rows = frame[frame["policy"] == "lru"]
    causes = {"admission": "fewer entries are written and evicted",
              "warming": "it reads from the disk that misses wait for"}
    found = []
    for name, cause in causes.items():
        mine = rows[rows["memory tier"] == name]
        less, reach, busy = -mine["P95 change %"].astype(float), mine["+/-"].astype(float), mine["disk busy %"]
        found.append(Compared(f"3. P95 of a fetch with {name}, % less", (20.0, 30.0), (less.min(), less.max()),
                              f"At {mine['rate/s'].min()} to {mine['rate/s'].max()} requests/s, the disk busy "
                              f"{busy.min():.0f} to {busy.max():.0f}% of the time; {cause}.", 0, SKETCH,
                              (float((less - reach).min()), float((less + reach).max())), 0.0,
                              settled=settled))
    return found


def _fusion(fusion: Any, strengths: Any, ablation: Any, settled: bool) -> list[Compared]:
    recall = fusion.set_index("method")["recall@10"]
    gap = (strengths["dense"] - strengths["sparse"]).abs()
    alike = strengths.loc[gap.idxmin()]
    gain = alike["nasf"] - max(alike["dense"], alike["sparse"])
    test = ablation[(ablation["adds"] == "NASF to dense search") & (ablation["measure"] == "recall@10")].iloc[0]
    best, paper_best = recall[list(PAPER)].idxmax(), max(PAPER, key=lambda name: PAPER[name])
    found = [Compared(
        "4. NASF over dense search, recall@10", 0.11, recall["nasf"] - recall["dense"],
        f"Dense search and BM25 find {recall['dense']:.2f} and {recall['sparse']:.2f} here; to two lists that are "
        f"alike ({alike['dense']:.2f}, {alike['sparse']:.2f}) NASF adds {gain:.2f}.", 3, FUSION,
        (float(test["from"]), float(test["to"])), 0.0, settled=settled, qualifier="not comparable")]
    found.append(Compared(
        "4. best recall@10", paper_best, best, f"NASF {recall['nasf']:.3f}, learned {recall['learned']:.3f}; the "
        "corpus is generated, not FIQA.", where=FUSION, agrees=best == paper_best, settled=settled,
        qualifier="not comparable"))
    for name, paper in PAPER.items():
        found.append(Compared(
            f"4. recall@10, {name}", paper, float(recall[name]),
            f"A generated corpus, not FIQA; {strengths[name].min():.2f} to {strengths[name].max():.2f} on "
            f"{len(strengths)} others. NASF less this: {recall['nasf'] - recall[name]:.3f} here, "
            f"{PAPER['nasf'] - paper:.2f} in the paper.", 3, FUSION, settled=settled, qualifier="not comparable"))
    return found


def _powers(frame: Any) -> list[Compared]:
    rows = frame[frame["time grows like"] == "N"].set_index("measured")
    sizes = {name: [int(value.replace(",", "")) for value in str(row["values"]).split()]
             for name, row in rows.iterrows()}
    widest = max(sizes, key=lambda name: max(sizes[name]) / min(sizes[name]))
    row, others = rows.loc[widest], rows.drop(widest)
    said = "; ".join(f"{name}: {other['exponent']:.2f} ({other['from']:.2f} to {other['to']:.2f})"
                     for name, other in others.iterrows())
    why = f"{row['points']} searches of {min(sizes[widest]):,} to {max(sizes[widest]):,} vectors, {widest}; {said}."
    return [
        Compared(f"5. time of a graph search, exponent of N, {name}", paper, float(row["exponent"]), why + more, 2,
                 GRAPH, (float(row["from"]), float(row["to"])))
        for name, paper, more in (
            ("two points", 0.63, " The paper's two points have unlike parameters."),
            ("pairs of like parameters", (0.3, 0.7), ""))]


def _seeds(frame: Any) -> list[Compared]:
    same = frame.set_index("built again with").iloc[:, 0]
    return [Compared("5. queries with the same neighbours, same seed and order, %", "all",
                     f"{same['same seed, same order']:.0f}",
                     f"Another seed: {same['another seed']:.1f}%; another order: "
                     f"{same['same seed, another order']:.1f}%.", where=GRAPH,
                     agrees=bool(same["same seed, same order"] == 100))]


def _noise() -> list[Compared]:
    classes = [classify(cv) for cv in (0.09, 0.11, 0.21, 0.51)]
    names = ["excellent", "good", "flaky", "rejected"]
    return [
        Compared("6. classes of a CV of 9, 11, 21, 51%", ", ".join(names), ", ".join(classes),
                 "The same bounds in calibration, benchmarks and regression checks.", where=NOISE,
                 agrees=list(classes) == names, qualifier="given"),
        Compared("6. half width of 31 repetitions, standard errors", 1.96, t_quantile(31),
                 "Student's t at every count; the paper's is 1.96 from 30 on.", 2, NOISE),
    ]


def _heap(counts: Any, times: Any) -> list[Compared]:
    more = counts["times as many"]
    took = times[times["structure"].str.startswith("indexed")]["times as much"]
    lists = times[times["structure"] == "sorted list"]["times as much"].iloc[0]
    return [
        Compared("7. indexed heap, comparisons at 10^5 over those at 10^3 entries", "O(log n): 1.67",
                 f"{more.min():.2f} to {more.max():.2f}", "log2(10^5) / log2(10^3) is 1.67.", where=HEAP,
                 agrees=bool(abs(more / 1.67 - 1).max() <= 0.15)),
        Compared("7. indexed heap, time at 10^5 over that at 10^3 entries", None, (took.min(), took.max()),
                 f"Entries no longer fit the CPU's caches; a sorted list: {lists:.1f}.", 1, HEAP),
    ]
