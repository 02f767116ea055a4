"""The paper's figures beside the study's: one row each, from the points of `compared_first` and `compared_second`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hermes.plugins.metis.datasets import dataset as data_set
from hermes.plugins.metis.decision import MAX_CHUNKS, MAX_WORDS, configurations, prune
from hermes.study import Compared

from .points import SPEC_RATE, Batch, Run
from .sections import COMPARATORS, DATASETS, DILUTED, Size
from .tables import (
    GROWS,
    PAPER,
    TARGET_S,
    fixed_name,
    gain,
    highest_rate,
    keeps_up,
    like_delay,
    of,
    pair,
    ratio,
    spread,
)

__all__ = ["compared", "fixed_by_rule", "kept", "sweep_of", "throughput_row"]

By = dict[str, pd.Series]   # data set, or what else a figure is of -> values of the seeds
ALONE = "one query at a time"
LARGE_PAPER = (2.1, 2.4)
"""AdaptiveRAG*'s delay over METIS's with Llama-3.1-70B in the paper."""


def fixed_by_rule(size: Size, one: Batch) -> dict[str, dict[str, Run]]:
    """Return data set -> rule of `COMPARATORS` -> the fixed configuration that it selects, at the sustained rate and by
    the first seed."""
    grid, own = one["grid"], one["systems"]
    found = {}
    for dataset in size.datasets:
        rows = grid[grid["dataset"] == dataset]
        mine = of(own, dataset, "METIS").iloc[0]
        chosen = (rows.iloc[int(rows["f1"].argmax())], rows.iloc[int((rows["f1"] - mine["f1"]).abs().argmin())],
                  like_delay(rows, mine["delay_s"]))
        found[dataset] = {rule: row["run"] for rule, row in zip(COMPARATORS, chosen, strict=True)}
    return found


def sweep_of(size: Size, *parts: pd.DataFrame) -> pd.DataFrame:
    """Return points of METIS and the median with their KV memory and their multiple of the study's rate."""
    runs = pd.concat(parts).copy()   # one block: assigning to many is slow, and warned of
    runs = runs.assign(kv_tokens=runs["point.kv_capacity_tokens"], load=[
        round(rate / size.base(dataset), 2) for rate, dataset in zip(runs["rate"], runs["dataset"], strict=True)])
    return runs.drop_duplicates(["dataset", "system", "kv_tokens", "load", "seed"])


def compared(size: Size, one: Batch, two: Batch) -> list[Compared]:
    """Return every figure of the paper under the assumptions that the points were simulated with."""
    return [*_against_adaptive_rag(size, one), *_against_fixed(size, one, two), *_throughput(size, one, two),
            *_ladder(size, one, two), *_low_load(size, one, two), *_costs(size, one, two)]


def _row(name: str, paper: Any, by: By, why: str, where: str, digits: int = 2, of: int = len(DATASETS),
         **more: Any) -> Compared:
    """Return a figure as the lowest and highest of its means, with the lowest and highest of any seed.

    The paper gives each figure for its four data sets, unless `of` is another number.
    """
    means = [values.mean() for values in by.values()]
    seeds = [value for values in by.values() if len(values) > 1 for value in values]
    return Compared(name, paper, (min(means), max(means)) if by else None, why, digits, where,
                    interval=(min(seeds), max(seeds)) if seeds else None, of=of, cases=() if isinstance(paper, str)
                    else tuple(means), **more)


def _each(by: By, digits: int = 2) -> str:
    return ", ".join(f"{name} {spread(values, digits) if len(values) > 1 else f'{values.mean():.{digits}f}'}"
                     for name, values in by.items())


def kept(size: Size, frame: pd.DataFrame, above: str, below: str) -> tuple[By, str]:
    """Return one system's delay over another's where no queue grows, and the same in words."""
    pairs = {d: pair(frame, d, above, below) for d in size.datasets}
    by = {d: ratio(*rows) for d, rows in pairs.items() if keeps_up(*rows)}
    grows = [d for d in size.datasets if d not in by]
    return by, "; ".join(part for part in (_each(by), f"{GROWS}: {', '.join(grows)}" if grows else "") if part)


def _against_adaptive_rag(size: Size, one: Batch) -> list[Compared]:
    rows = []
    for frame, f1, label in ((one["alone"], "f1", ""),
                             (one["diluted"], f"f1_{DILUTED.quality}", ", 3n data sets, mappers diluted")):
        pairs = {str(d): pair(frame, str(d), "METIS", "AdaptiveRAG*") for d in dict.fromkeys(frame["dataset"])}
        delay = {d: ratio(rag, own) for d, (own, rag) in pairs.items()}
        more = {d: gain(own, rag, f1) for d, (own, rag) in pairs.items()}
        tokens = {d: rag["llm_out"].mean() / own["llm_out"].mean() for d, (own, rag) in pairs.items()}
        rows += [
            _row(f"delay of AdaptiveRAG* over METIS's, {ALONE}{label}", PAPER, delay,
                 f"{_each(delay)}: AdaptiveRAG* generates {min(tokens.values()):.1f} to {max(tokens.values()):.1f} "
                 "times as many tokens.", "abstract", neutral=1),
            _row(f"F1 of METIS over AdaptiveRAG*'s, {ALONE}{label}, %", "no lower", more,
                 f"{_each(more, 1)}.", "abstract", 1,
                 agrees=all(round(values.mean(), 1) >= 0 for values in more.values()), neutral=0,
                 settled=not size.quick),
        ]
    large = {d: ratio(*pair(one["large"], d, "AdaptiveRAG*", "METIS")) for d in size.datasets}
    return [
        *rows,
        _row(f"delay of AdaptiveRAG* over METIS's, {ALONE}, Llama-3.1-70B on two A40", LARGE_PAPER, large,
             f"{_each(large)}.", "Fig. 15", neutral=1),
    ]


def _against_fixed(size: Size, one: Batch, two: Batch) -> list[Compared]:
    pairs = {d: (of(one["systems"], d, "METIS"), of(two["fixed"], d, "fixed of like delay")) for d in size.datasets}
    more = {d: gain(*both) for d, both in pairs.items()}
    chunks = {d: own["chunks"].mean() for d, (own, _) in pairs.items()}
    best = {}
    for d in size.datasets:
        row, grid = of(one["hindsight"], d, "hindsight").iloc[0], one["grid"]
        best[d] = pd.Series([100 * (row["f1"] / like_delay(grid[grid["dataset"] == d], row["delay_s"])["f1"] - 1)])
    return [
        _row("F1 of METIS over the fixed configuration of like delay, %", (12, 18), more,
             f"{_each(more, 1)}: METIS reads {_plain(chunks, 1)} chunks on average; fixed: "
             f"{_named(two['fixed'], size, 'like delay')}.", "evaluation", 1, neutral=0, settled=not size.quick),
        _row("F1 of the best configuration of each query over the fixed one of like delay, %", "at least 10", best,
             f"{_each(best, 1)}, with hindsight; the quality model was chosen to show it.", "motivation", 1,
             agrees=all(values.mean() >= 10 for values in best.values()), settled=not size.quick, qualifier="given"),
    ]


def _plain(by: dict[str, float], digits: int) -> str:
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in by.items())


def _throughput(size: Size, one: Batch, two: Batch) -> list[Compared]:
    same = dict.fromkeys(size.datasets, TARGET_S)
    twice = {d: 2 * float(of(one["alone"], d, "METIS")["delay_s"].mean()) for d in size.datasets}
    own, fixed = pd.concat([one["alone"], one["rates"]]), pd.concat([two["fixed alone"], two["fixed rates"]])
    return [throughput_row(f"throughput at {when} over fixed of {rule}", (1.8, 4.5) if rule != "like delay" else None,
                           rule, target, own, fixed, size)
            for when, target in ((f"{TARGET_S:g} s", same), ("twice METIS's delay alone", twice))
            for rule in COMPARATORS]


def throughput_row(name: str, paper: Any, rule: str, target: dict[str, float], own: pd.DataFrame, fixed: pd.DataFrame,
                   size: Size) -> Compared:
    """Return METIS's rate at a delay over that of a fixed configuration, seed by seed, where both have one."""
    known: By = {}
    words = []
    for dataset, seconds in target.items():
        sides = (own[(own["dataset"] == dataset) & (own["system"] == "METIS")],
                 fixed[(fixed["dataset"] == dataset) & (fixed["system"] == f"fixed of {rule}")])
        seeds = [[highest_rate(side[side["seed"] == seed], seconds) for side in sides]
                 for seed in range(1, size.few + 1)]
        ratios = [mine / other for mine, other in seeds if isinstance(mine, float) and isinstance(other, float)]
        if len(ratios) == len(seeds):
            known[dataset] = pd.Series(ratios)
        words.append(f"{dataset} {_rate(seeds[0][0])} against {_rate(seeds[0][1])}")
    each = f"{_each(known)}; q" if known else "Q"
    return _row(name, paper, known, f"{each}ueries/s of the first seed: {', '.join(words)}.", "evaluation", neutral=1,
                settled=not size.quick)


def _rate(rate: float | str) -> str:
    return rate if isinstance(rate, str) else f"{rate:.2f}"


def _ladder(size: Size, one: Batch, two: Batch) -> list[Compared]:
    steps = pd.concat([one["systems"], two["fixed"]])
    found = []
    for rule in COMPARATORS:
        by, words = kept(size, steps, f"fixed of {rule}", "profile + median")
        found.append(_row(f"ladder: fixed of {rule} over profile + median, delay",
                          (1.4, 1.68) if rule != "like delay" else None, by,
                          f"{words}; fixed: {_named(steps, size, rule)}.", "ablation", neutral=1,
                          settled=not size.quick))
    by, words = kept(size, steps, "profile + median", "+ batching")
    found.append(_row("ladder: batching, delay before over after", (1.1, 1.2), by, f"{words}.", "ablation", neutral=1,
                      settled=not size.quick))
    sweep = sweep_of(size, steps, one["memory"])
    assumed = int(one["systems"]["point.kv_capacity_tokens"].max())
    for tokens in dict.fromkeys((assumed, *sorted(set(one["memory"]["point.kv_capacity_tokens"]), reverse=True))):
        here = sweep[sweep["kv_tokens"] == tokens]
        by, words = kept(size, here, "+ batching", "METIS")
        changed = {d: 100 * of(here, d, "METIS")["constrained"].mean() for d in size.datasets}
        more = {d: gain(*pair(here, d, "METIS", "+ batching")).mean() for d in size.datasets}
        name = "" if tokens == assumed else f" with {tokens:,.0f} KV tokens"
        found.append(_row(f"ladder: best fit{name}, delay before over after", (1.45, 1.75), by,
                          f"{words}; with {tokens:,.0f} KV tokens memory changes {_percent(changed)} of the decisions, "
                          f"and METIS's F1 is {_plain(more, 1)}% above the median's.", "ablation", neutral=1,
                          settled=not size.quick))
    return found


def _percent(by: dict[str, float]) -> str:
    return f"{min(by.values()):.0f} to {max(by.values()):.0f}%"


def _named(steps: pd.DataFrame, size: Size, rule: str) -> str:
    """Return the fixed configurations that a rule selects, by data set."""
    return ", ".join(f"{d} {fixed_name(of(steps, d, f'fixed of {rule}')['run'].iloc[0])}" for d in size.datasets)


def _low_load(size: Size, one: Batch, two: Batch) -> list[Compared]:
    frame = pd.concat([one["alone"], two["fixed alone"]])
    rows = []
    for rule in COMPARATORS:
        by = {d: ratio(*pair(frame, d, f"fixed of {rule}", "METIS")) for d in size.datasets}
        rows.append(_row(f"low load: fixed of {rule} over METIS, delay", (1.48, 1.56) if rule != "like delay" else None,
                         by, f"{_each(by)}, golden runs beside METIS included.", "sensitivity: low load", neutral=1,
                         settled=not size.quick))
    return rows


def _costs(size: Size, one: Batch, two: Batch) -> list[Compared]:
    own = {d: of(one["systems"], d, "METIS") for d in size.datasets}
    lone = {d: of(one["alone"], d, "METIS") for d in size.datasets}
    share = {d: 100 * rows["profiler_share"] for d, rows in own.items()}
    most = {d: 100 * rows["profiler_share_max"] for d, rows in own.items()}
    seconds = np.mean([rows["profiler_s"].mean() for rows in own.values()])
    fed = {d: gain(*pair(one["feedback"], d, "feedback on", "feedback off")) for d in size.datasets
           if d in set(one["feedback"]["dataset"])}
    synthesis = {d: (rows["delay_s"] - rows["profiler_s"] - rows["retrieval_s"]) / rows["retrieval_s"]
                 for d, rows in lone.items()}
    smaller = {d: pd.Series([_smaller(d)]) for d in size.datasets}
    dollars = {d: (of(two["dollars"], d, "vLLM fixed")["dollars_llm"]
                   / (rows["dollars_llm"] + rows["dollars_profiler"])).dropna() for d, rows in lone.items()}
    api = {d: 100 * (rows["dollars_profiler"] / (rows["dollars_llm"] + rows["dollars_profiler"])).mean()
           for d, rows in lone.items()}
    paper = {d: of(one["paper's rate"], d, "METIS") for d in size.datasets}
    sustains = [d for d, rows in paper.items() if keeps_up(rows)]
    free = {d: rows["free_tokens"] / 1000 for d, rows in own.items()}
    return [
        _row("share of the profiler in METIS's delay, %", (3, 6), share,
             f"{_each(share, 1)}: a profile takes {seconds:.2f} s, however short the query.", "overhead", 1,
             settled=not size.quick),
        _row("highest share of the profiler in a query's delay, %", "at most 10", most, f"{_each(most, 0)}.",
             "overhead", 1, agrees=all(values.max() <= 10 for values in most.values()), settled=not size.quick),
        _row("F1 gained by feedback, %", (4, 6), fed, f"{_each(fed, 2)}.", "feedback", 1, neutral=0, of=2,
             settled=not size.quick),
        _row("configurations over those of the pruned space", (50, 100), smaller,
             f"{_each(smaller, 0)}: mean of {DRAWN:,} queries; {ALL:,} configurations in all.", "pruning", 0),
        _row("synthesis over retrieval, seconds", "over 100", synthesis, f"{_each(synthesis, 0)}.", "set-up", 0,
             agrees=all(values.mean() > 100 for values in synthesis.values())),
        Compared("data sets whose queries METIS keeps up with at the paper's rate", len(size.datasets), len(sustains),
                 f"{', '.join(sustains) or 'none'}; the engine is busy "
                 f"{_plain({d: 100 * rows['busy'].mean() for d, rows in paper.items()}, 0)}% of the time at "
                 f"{SPEC_RATE:g} queries/s.", 0, "set-up", settled=not size.quick),
        _row(f"dollars of Llama-3.1-70B with the fixed configuration of like delay over METIS's, {ALONE}", 2.38,
             dollars, f"{_each(dollars)}; of METIS's dollars {_percent(api)} pay for the profiler.", "Fig. 13",
             neutral=1, settled=not size.quick),
        _row("free KV memory at METIS's decisions, thousand tokens", None, free,
             f"Of {one['systems']['point.kv_capacity_tokens'].max():,.0f}.", "", 0),
    ]


ALL = MAX_CHUNKS * (2 + MAX_WORDS)
"""Configurations of the whole range of the knobs."""
DRAWN = 1000
"""Queries over which the size of the pruned space is averaged."""


def _smaller(name: str) -> float:
    """Return all configurations over those that pruning leaves, on average over the queries of a data set."""
    rng, drawn = np.random.default_rng(0), data_set(name)
    left = [sum(1 for _ in configurations(prune(drawn.draw(rng).profile))) for _ in range(DRAWN)]
    return ALL / float(np.mean(left))
