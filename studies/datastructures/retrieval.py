"""Fusions of real rankings, seeded graphs, and the cost of measured searches."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from evidence.retrieval import (
    MEASURES,
    Corpus,
    CorpusConfig,
    Graph,
    Judged,
    exact_rankings,
    judge,
    make_corpus,
    rankings_of,
)
from hermes.config.data_files import resource_dir
from hermes.core.noise import spread
from hermes.plugins.retrieval.searches import load_searches
from hermes.plugins.structures.fusion import fuse
from hermes.services.retrieval_costs import Bm25, HnswGraph
from hermes.services.retrieval_profile import load_retrieval_profile
from hermes.study import Plot, Table

from .powers import power_law

__all__ = ["evaluation", "graph_seeds", "graph_sweep", "hybrid_latency", "powers", "strengths", "strengths_plot"]

PAPER = {"nasf": 0.72, "learned": 0.70, "rrf": 0.69, "z_score": 0.67, "naive": 0.65, "dense": 0.61, "sparse": 0.58}
PARTS = (("normalisation alone", "normalised", "naive"), ("adaptive weights alone", "adaptive", "naive"),
         ("both", "nasf", "naive"), ("weights, once normalised", "nasf", "normalised"),
         ("NASF to dense search", "nasf", "dense"), ("NASF to BM25", "nasf", "sparse"))


def evaluation(config: CorpusConfig) -> tuple[Table, Table, Corpus, Judged]:
    """All methods on the top 50 of an HNSW graph and the top 50 of BM25, and what NASF's two parts contribute."""
    corpus = make_corpus(config)
    dense, sparse = rankings_of(corpus, 50, Graph(corpus.embeddings, 16, 200, config.seed), 100)
    judged = judge(corpus.queries, dense, sparse)
    rows = []
    for method in sorted(judged.scores, key=lambda name: -judged.mean(name, "recall@10")):
        test = judged.against("nasf", method, "recall@10")
        rows.append({"method": method, **{name: judged.mean(method, name) for name in MEASURES},
                     "NASF better by": test.difference, "from": test.low, "to": test.high, "p": test.p,
                     "paper (FIQA) recall@10": PAPER.get(method)})
    columns = dict.fromkeys((*MEASURES, "NASF better by", "from", "to"), 3)
    judged_on = len(corpus.queries) - len(corpus.queries) // 2
    table = Table("fusion", f"4. Fusions: {judged_on} queries to a generated corpus of {config.documents:,} documents",
                  pd.DataFrame(rows),
                  "Not FIQA. NASF better by: recall@10, paired t test over the queries with its 95% interval.", columns)
    parts = []
    for measure in MEASURES:
        for name, a, b in PARTS:
            test = judged.against(a, b, measure)
            parts.append({"measure": measure, "adds": name, "difference": test.difference, "from": test.low,
                          "to": test.high, "p": test.p})
    ablation = Table("ablation", "4. What the parts of NASF add to the naive sum, and NASF to either list",
                     pd.DataFrame(parts),
                     "Paired t tests, 95% intervals. Two lists of 50 hold 100 documents at most, so recall@100 is "
                     "that of both together, whatever their order.", {"difference": 3, "from": 3, "to": 3})
    return table, ablation, corpus, judged


def strengths(
    documents: int, queries: int, synonyms: tuple[int, ...], noises: tuple[float, ...]
) -> tuple[Table, Table]:
    """Gain of fusion by the quality of either list: more synonyms weaken BM25, more noise the embeddings.

    Noise averaged over 8 words for every query takes away the reason to weigh by length.
    """
    rows, tests = [], []
    for words in (None, 8):
        for count in synonyms:
            for noise in noises:
                corpus = make_corpus(CorpusConfig(documents=documents, queries=queries, synonyms=count,
                                                  word_noise=noise, noise_words=words))
                judged = judge(corpus.queries, *rankings_of(corpus, 50))
                which = {"synonyms": count, "word noise": noise,
                         "averaged over": "own words" if words is None else f"{words} words"}
                rows.append(which | {name: judged.mean(name, "recall@10") for name in (
                    "dense", "sparse", "nasf", "normalised", "learned", "z_score", "rrf", "naive")})
                for other in ("dense", "normalised", "rrf"):
                    for measure in ("recall@10", "MRR@10"):
                        test = judged.against("nasf", other, measure)
                        tests.append(which | {"measure": measure, "NASF against": other, "difference": test.difference,
                                              "from": test.low, "to": test.high, "p": test.p})
    title = f"{queries - queries // 2} queries, {documents:,} documents"
    frame = pd.DataFrame(rows)
    return (
        Table("strengths", f"4. recall@10 on lists of other strengths: {title}", frame, "Exact dense search.",
              dict.fromkeys(frame.columns[3:], 3)),
        Table("strength_tests", f"4. NASF on lists of other strengths: {title}", pd.DataFrame(tests),
              "Paired t tests over the queries, 95% intervals.", dict.fromkeys(("difference", "from", "to"), 3)),
    )


def strengths_plot(table: Table) -> Plot:
    """NASF's gain over the better of its two lists, against the difference of the lists."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for words, mine in table.frame.groupby("averaged over", sort=False):
        better = np.maximum(mine["dense"], mine["sparse"])
        for method, marker, color in (("nasf", "o", "C0"), ("normalised", "s", "C1"), ("rrf", "^", "C2")):
            axis.plot(mine["dense"] - mine["sparse"], mine[method] - better, marker, alpha=0.75, color=color,
                      markerfacecolor=color if words == "own words" else "none", label=f"{method}, noise over {words}")
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set(xlabel="recall@10 of dense search less that of BM25", ylabel="recall@10 above the better of the two")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    return Plot("lists", "What fusing adds to the better of two lists, by how far apart they are", figure)


def _timed(act: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of `act`, and its CPU seconds. The garbage collector waits: it would visit all documents."""
    gc.disable()
    try:
        started = time.process_time()
        found = act()
        return found, time.process_time() - started
    finally:
        gc.enable()


def graph_sweep(corpus: Corpus, links: tuple[int, ...], efs: tuple[int, ...], repetitions: int = 5) -> Table:
    """M x efSearch: neighbours found, recall of the relevant after fusion, and CPU time of a query on this machine."""
    queries = np.array([query.embedding for query in corpus.queries])
    exact = exact_rankings(corpus.embeddings, queries, 50)
    _, sparse = rankings_of(corpus, 50)
    recall, half = MEASURES["recall@10"], len(corpus.queries) // 2
    rows = []
    for m in links:
        graph = Graph(corpus.embeddings, m, 200)
        for ef in efs:
            timed = [_timed(partial(graph.search, queries, min(50, ef), ef)) for _ in range(repetitions)]
            found, took = timed[-1][0], spread(seconds / len(queries) for _, seconds in timed)
            near = np.mean([len(set(a.documents[:10]) & set(b.documents[:10])) / 10
                            for a, b in zip(found, exact, strict=True)])
            fused = np.mean([recall(fuse("nasf", d, s, len(q.words), 10), q.relevant)
                             for d, s, q in zip(found[half:], sparse[half:], corpus.queries[half:], strict=True)])
            rows.append({"M": m, "efSearch": ef, "neighbours found@10": near, "NASF recall@10": fused,
                         "us a query": 1e6 * took.mean, "+/-": 1e6 * took.ci95, "class": took.verdict})
    return Table("sweep", "4. M x efSearch on the same corpus (top 50 of both lists fused)", pd.DataFrame(rows),
                 f"{graph.library}, CPU time of one thread on this machine, {repetitions} repetitions, 95% interval. "
                 "efSearch below 50 gives shorter lists.",
                 {"neighbours found@10": 3, "NASF recall@10": 3, "us a query": 1, "+/-": 1})


def hybrid_latency(corpus: Corpus) -> Table:
    """A hybrid query's time from the shipped profile of measured searches: the sum and the maximum."""
    profile = load_retrieval_profile("amd-epyc-zen5")
    dense, sparse = rankings_of(corpus, 50)
    _, seconds = _timed(lambda: [fuse("nasf", d, s, len(query.words), 10)
                                 for query, d, s in zip(corpus.queries, dense, sparse, strict=True)])
    fusion_s = seconds / len(corpus.queries)
    rows = []
    for vectors in (20_000, 50_000, 100_000):
        for ef in (64, 256):
            graph = profile.seconds(HnswGraph(vectors=vectors, dim=128, hnsw_m=16), ef)
            words = profile.seconds(Bm25(vectors=vectors), 8)
            rows.append({"N": vectors, "efSearch": ef, "HNSW us": 1e6 * graph, "BM25 us (8 words)": 1e6 * words,
                         "one after the other us": 1e6 * (graph + words), "side by side us": 1e6 * max(graph, words)})
    return Table("hybrid", "4. Time of a hybrid query, from the measured profile amd-epyc-zen5", pd.DataFrame(rows),
                 f"Without the fusion, which takes {1e6 * fusion_s:.0f} us in Python here.")


def graph_seeds(vectors: int) -> Table:
    """Whether equal seeds give equal neighbours, and other seeds or orders different ones."""
    rng = np.random.default_rng(13)
    data = np.asarray(rng.standard_normal((vectors, 32)), dtype=np.float32)
    queries = np.asarray(rng.standard_normal((200, 32)), dtype=np.float32)

    def found(seed: int, order: Any) -> list[list[int]]:
        graph = Graph(np.ascontiguousarray(data[order]), 8, 40, seed)
        return [[int(order[d]) for d in ranking.documents] for ranking in graph.search(queries, 10, 10)]

    straight = np.arange(vectors)
    first = found(0, straight)
    rows = []
    for name, again in (("same seed, same order", found(0, straight)), ("another seed", found(1, straight)),
                        ("same seed, another order", found(0, straight[::-1].copy()))):
        same = np.mean([a == b for a, b in zip(first, again, strict=True)])
        rows.append({"built again with": name, "queries with the same ten neighbours %": 100 * same})
    return Table("seeds", f"5. An HNSW graph of {vectors:,} vectors, built twice (M 8, efSearch 10)",
                 pd.DataFrame(rows), digits={"queries with the same ten neighbours %": 1})


def powers() -> Table:
    """Exponents of measured graph searches with their intervals."""
    folder = resource_dir("traces") / "hardware"
    rows = []
    for name in ("retrieval-hnsw-sizes", "retrieval-amd-epyc-zen5"):
        searches = load_searches(folder / f"{name}.yaml")
        law = power_law(searches)
        for what, power in law.powers.items():
            rows.append({"measured": name, "time grows like": what, "exponent": power.exponent, "from": power.low,
                         "to": power.high, "values": " ".join(f"{value:,}" for value in power.values),
                         "points": law.points, "residual %": 100 * law.residual,
                         "paper": "0.63; matched pairs 0.3 to 0.7" if what == "N" else None})
    return Table("powers", "5. Time of a graph search: t ~ N^a M^b efSearch^c, 95% intervals", pd.DataFrame(rows),
                 "CPU time of one thread, medians of repetitions; other work ran on the machine meanwhile.",
                 {"exponent": 3, "from": 3, "to": 3, "residual %": 1})
