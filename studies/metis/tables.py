"""Tables of the study, from frames of points."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pandas as pd

from hermes.study import Table

from .points import SETS
from .sections import READINGS, Reading

__all__ = [
    "GROWS",
    "LIKE",
    "PAPER",
    "TARGET_S",
    "alone",
    "by_rate",
    "feedback",
    "fixed_name",
    "gain",
    "highest_rate",
    "keeps_up",
    "ladder",
    "like_delay",
    "lone",
    "memory",
    "of",
    "pair",
    "paper_rate",
    "ratio",
    "readings",
    "spread",
    "throughput",
    "variants",
]

PAPER = (1.64, 2.54)
"""AdaptiveRAG*'s delay over METIS's in the paper."""
TARGET_S = 1.8
LIKE = 1.05   # a fixed configuration is of like delay up to 5% above
GROWS = "queue grows"
"""In place of a delay or a ratio that would grow with the length of the run."""


def like_delay(grid: pd.DataFrame, delay_s: float) -> Any:
    """The row of the fixed configuration with the best F1 of those no slower (the quickest, if all are)."""
    near = grid[grid["delay_s"] <= LIKE * delay_s]
    return near.iloc[int(near["f1"].argmax())] if len(near) else grid.iloc[int(grid["delay_s"].argmin())]


def fixed_name(point: Any) -> str:
    """Return a fixed configuration in a few words."""
    params = dict(point.params)
    words = f" x {params['words']} w" if params["method"] == "map_reduce" else ""
    return f"{params['method']} {params['chunks']}{words}"


def of(frame: pd.DataFrame, dataset: str, system: str) -> pd.DataFrame:
    """Return the rows of a system by seed."""
    return frame[(frame["dataset"] == dataset) & (frame["system"] == system)].set_index("seed").sort_index()


def keeps_up(*rows: pd.DataFrame) -> bool:
    """Whether no queue grows in any seed. A run too short to tell counts as one that keeps up."""
    return all(len(one) and all(stable is not False for stable in one["point.stable"].tolist()) for one in rows)


def ratio(above: pd.DataFrame, below: pd.DataFrame, column: str = "delay_s") -> pd.Series:
    """Return one system's figure over another's, by the seeds that both have."""
    return (above[column] / below[column]).dropna()


def gain(own: pd.DataFrame, other: pd.DataFrame, column: str = "f1") -> pd.Series:
    """Return by how many percent one system's F1 is above another's, by seed."""
    return 100 * (ratio(own, other, column) - 1)


def pair(frame: pd.DataFrame, dataset: str, one: str, other: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of two systems on a data set."""
    return of(frame, dataset, one), of(frame, dataset, other)


def spread(values: pd.Series, digits: int) -> str:
    """Return mean [lowest, highest]."""
    return f"{values.mean():.{digits}f} [{values.min():.{digits}f}, {values.max():.{digits}f}]"


def _delay(rows: pd.DataFrame) -> str:
    return spread(rows["delay_s"], 2) if keeps_up(rows) else GROWS


def alone(parts: dict[str, tuple[pd.DataFrame, str]]) -> Table:
    """METIS and AdaptiveRAG* with one query at a time. parts: reading -> (points, column of F1)."""
    rows = []
    for reading, (frame, f1) in parts.items():
        for dataset in dict.fromkeys(frame["dataset"]):
            own, rag = pair(frame, dataset, "METIS", "AdaptiveRAG*")
            per_query = own["run"].iloc[0].requests
            rows.append({
                "reading": reading, "data set": dataset, "METIS s": spread(own["delay_s"], 2),
                "AdaptiveRAG* s": spread(rag["delay_s"], 2), "delay ratio": spread(ratio(rag, own), 2),
                "F1 METIS": own[f1].mean(), "F1 AdaptiveRAG*": rag[f1].mean(),
                "METIS's F1 %": spread(gain(own, rag, f1), 1), "tokens out METIS": own["llm_out"].mean() / per_query,
                "tokens out AdaptiveRAG*": rag["llm_out"].mean() / per_query,
                "tokens in METIS": own["llm_in"].mean() / per_query,
                "tokens in AdaptiveRAG*": rag["llm_in"].mean() / per_query})
    return Table("alone", "METIS and AdaptiveRAG*, one query at a time", pd.DataFrame(rows),
                 "mean [lowest, highest] over the seeds, each with measurements of its own for AdaptiveRAG*; tokens "
                 "per query, golden runs included. METIS's F1 %: above that of AdaptiveRAG*.",
                 {"F1 METIS": 3, "F1 AdaptiveRAG*": 3, "tokens out METIS": 0, "tokens out AdaptiveRAG*": 0,
                  "tokens in METIS": 0, "tokens in AdaptiveRAG*": 0})


def readings(frame: pd.DataFrame, tried: list[Reading] = READINGS) -> Table:
    """Delay and F1 with one query at a time by what the paper leaves open: data sets, F1, what AdaptiveRAG* measures.

    The last columns count data sets: mean delay within the paper's range; mean F1 of METIS not below AdaptiveRAG*'s, to
    0.1%; both.
    """
    rows = []
    own_set = frame["dataset"].str.endswith(SETS["3n"])
    for reading in tried:
        here = frame[own_set == (reading.datasets == "3n")]
        rag = here[[_measures(one, reading) for one in here["run"]]]
        row: dict[str, Any] = {"data sets": reading.datasets, "quality": reading.quality, "grid": reading.grid,
                               "noise": reading.noise, "tolerance": reading.tolerance}
        delays, f1s = [], []
        for dataset in dict.fromkeys(here["dataset"]):
            mine, other = of(here, dataset, "METIS"), of(rag, dataset, "AdaptiveRAG*")
            delay, more = ratio(other, mine), gain(mine, other, f"f1_{reading.quality}")
            name = dataset.removesuffix(SETS["3n"])
            row |= {name: spread(delay, 2), f"{name} F1 %": round(more.mean(), 1)}
            delays.append(delay.mean())
            f1s.append(more.mean())
        within = [PAPER[0] <= delay <= PAPER[1] for delay in delays]
        no_lower = [round(f1, 1) >= 0 for f1 in f1s]
        rows.append(row | {"lowest": min(delays), "highest": max(delays), "delay within": sum(within),
                           "F1 no lower": sum(no_lower),
                           "both": sum(a and b for a, b in zip(within, no_lower, strict=True))})
    return Table("readings", "AdaptiveRAG*'s delay over METIS's by reading, one query at a time", pd.DataFrame(rows),
                 f"mean [lowest, highest] over {frame['seed'].nunique()} seeds; F1 %: METIS's above AdaptiveRAG*'s. "
                 f"delay within: data sets whose mean is within the paper's {PAPER[0]} to {PAPER[1]}. noise: standard "
                 "deviation of the F1 of one of the 150 answers that AdaptiveRAG* measures; grid and tolerance as the "
                 "assumptions.",
                 {"lowest": 2, "highest": 2, "noise": 2, "tolerance": 2})


def _measures(run: Any, reading: Reading) -> bool:
    """Whether a run is AdaptiveRAG* under a reading."""
    params = dict(run.params)
    return all(params.get(name) == getattr(reading, name) for name in ("quality", "grid", "noise", "tolerance"))


def by_rate(rates: pd.DataFrame) -> Table:
    """METIS beside AdaptiveRAG* by rate: delays and ratios where no queue grows."""
    rows = []
    for (dataset, rate), here in rates.groupby(["dataset", "rate"], sort=False):
        own, rag = pair(here, str(dataset), "METIS", "AdaptiveRAG*")
        both = keeps_up(own, rag)
        rows.append({"data set": dataset, "rate": rate, "METIS s": _delay(own),
                     "AdaptiveRAG* s": _delay(rag) if len(rag) else "-",
                     "delay ratio": spread(ratio(rag, own), 2) if both else GROWS if len(rag) else "-",
                     "F1 METIS": own["f1"].mean(), "F1 AdaptiveRAG*": rag["f1"].mean(),
                     "constrained %": 100 * own["constrained"].mean(), "KV at decisions %": 100 * own["kv_used"].mean(),
                     "engine busy %": 100 * own["busy"].mean()})
    return Table("by_rate", "METIS and AdaptiveRAG* by rate", pd.DataFrame(rows),
                 f"mean [lowest, highest] over {rates['seed'].nunique()} seeds; {GROWS}: in at least one of them.", {
        "F1 METIS": 3, "F1 AdaptiveRAG*": 3, "constrained %": 1, "KV at decisions %": 1, "engine busy %": 0})


def ladder(runs: pd.DataFrame) -> Table:
    """From a fixed configuration to METIS, step by step."""
    rows = []
    for (dataset, rate, system), own in runs.groupby(["dataset", "rate", "system"], sort=False):
        rows.append({"data set": dataset, "rate": rate, "system": system, "delay s": _delay(own),
                     "F1": spread(own["f1"], 3), "chunks": own["chunks"].mean(),
                     "map_rerank %": 100 * own["method.map_rerank"].mean(), "stuff %": 100 * own["method.stuff"].mean(),
                     "map_reduce %": 100 * own["method.map_reduce"].mean(), "seeds": len(own)})
    return Table("ladder", "Ablation ladder at the study's rates", pd.DataFrame(rows),
                 "mean [lowest, highest] over the seeds; best fit is the step from batching to METIS.",
                 {"chunks": 1, "map_rerank %": 0, "stuff %": 0, "map_reduce %": 0})


def lone(runs: pd.DataFrame) -> Table:
    """One query at a time."""
    rows = [{"data set": dataset, "system": system, "delay s": spread(own["delay_s"], 2), "F1": spread(own["f1"], 3)}
            for (dataset, system), own in runs.groupby(["dataset", "system"], sort=False)]
    return Table("low_load", "Low load: one query at a time", pd.DataFrame(rows),
                 f"mean [lowest, highest] over {runs['seed'].nunique()} seeds; golden runs included in METIS and the "
                 "median.")


def highest_rate(line: pd.DataFrame, target_s: float) -> float | str:
    """Return the highest rate at which the mean delay is `target_s`, between the rates simulated, log-linearly; text if
    all are above or below. Rows without a rate are of one query at a time, the limit of low rates."""
    mean = line.assign(rate=line["rate"].fillna(0.0)).groupby("rate")["delay_s"].mean()
    pairs = sorted(zip(mean.index.tolist(), mean.tolist(), strict=True))
    if pairs[0][1] > target_s:
        return "none"
    for (r0, d0), (r1, d1) in pairwise(pairs):
        if d0 <= target_s < d1:
            return float(r0 + (r1 - r0) * math.log(target_s / d0) / math.log(d1 / d0))
    return f"> {pairs[-1][0]:g}"


def throughput(rates: pd.DataFrame) -> Table:
    """The highest rate at which the mean delay is 1.8 s."""
    rows = [{"data set": dataset} | {str(system): highest_rate(line, TARGET_S)
                                     for system, line in own.groupby("system", sort=False)}
            for dataset, own in rates.groupby("dataset", sort=False)]
    return Table("throughput", "Queries a second at a mean delay of 1.8 s", pd.DataFrame(rows),
                 "means over the seeds; none: even one query at a time takes longer.")


def paper_rate(runs: pd.DataFrame) -> Table:
    """METIS at the paper's rate."""
    rows = []
    for dataset, own in runs.groupby("dataset", sort=False):
        asked = own["run"].iloc[0].requests
        rows.append({"data set": dataset, "METIS s": _delay(own), "engine busy %": 100 * own["busy"].mean(),
                     "tokens in per query": own["llm_in"].mean() / asked,
                     "tokens out per query": own["llm_out"].mean() / asked,
                     "queries in the system, early": own["point.in_system_early"].mean(),
                     "late": own["point.in_system_late"].mean(), "constrained %": 100 * own["constrained"].mean(),
                     "F1": own["f1"].mean()})
    return Table("paper_rate", f"METIS at the paper's {runs['rate'].iloc[0]:g} queries a second", pd.DataFrame(rows),
                 f"means over {runs['seed'].nunique()} seeds; golden runs included.", {
        "engine busy %": 0, "tokens in per query": 0, "tokens out per query": 0, "queries in the system, early": 1,
        "late": 1, "constrained %": 0, "F1": 3})


def feedback(runs: pd.DataFrame) -> Table:
    """Golden runs on and off."""
    rows = []
    for (dataset, system), own in runs.groupby(["dataset", "system"], sort=False):
        rows.append({"data set": dataset, "system": system, "F1": spread(own["f1"], 4), "delay s": _delay(own),
                     "golden runs": own["golden_runs"].mean(), "golden tokens in": own["golden_in"].mean(),
                     "golden tokens out": own["golden_out"].mean(),
                     "share of the LLM's prompts %": 100 * (own["golden_in"] / own["llm_in"]).mean()})
    return Table("feedback", "Feedback: a golden run every 30 queries", pd.DataFrame(rows), "", {
        "golden runs": 1, "golden tokens in": 0, "golden tokens out": 0, "share of the LLM's prompts %": 1})


def memory(sweep: pd.DataFrame) -> Table:
    """Best fit (METIS) and the median by KV memory and rate."""
    rows = []
    for (dataset, tokens, _), here in sweep.groupby(["dataset", "kv_tokens", "load"], sort=False):
        own, median = pair(here, str(dataset), "METIS", "+ batching")
        rows.append({
            "data set": dataset, "KV tokens": tokens, "rate": own["rate"].iloc[0],
            "constrained %": 100 * own["constrained"].mean(), "partial %": 100 * own["how.partial"].mean(),
            "fallback %": 100 * own["how.fallback"].mean(), "queued %": 100 * own["how.queued"].mean(),
            "KV at decisions %": 100 * own["kv_used"].mean(), "best fit s": _delay(own), "median s": _delay(median),
            "median over best fit": spread(ratio(median, own), 2) if keeps_up(own, median) else GROWS,
            "F1 best fit": own["f1"].mean(), "F1 median": median["f1"].mean(),
            "rejected": f"{int(own['point.rejected'].sum())}, {int(median['point.rejected'].sum())}",
            "seeds": len(own)})
    frame = pd.DataFrame(rows).sort_values(["rate", "KV tokens"], ascending=[True, False], kind="stable")
    frame = pd.concat([frame[frame["data set"] == name] for name in dict.fromkeys(sweep["dataset"])])
    return Table("memory", "Best fit and the median by KV memory", frame,
                 "mean [lowest, highest] over the seeds; rejected: of METIS, of the median; a rejected query has no F1 "
                 "and no delay. The most KV tokens are those of the whole card.", {
        "F1 best fit": 3, "F1 median": 3, **dict.fromkeys(
            ("constrained %", "partial %", "fallback %", "queued %", "KV at decisions %"), 0)})


def variants(runs: pd.DataFrame, own: pd.DataFrame) -> Table:
    """METIS with other answers to the paper's open questions, over METIS as it is. own: METIS, by KV memory."""
    rows = []
    for (dataset, tokens, system), here in runs.groupby(["dataset", "kv_tokens", "system"], sort=False):
        mine, other = of(own[own["kv_tokens"] == tokens], str(dataset), "METIS"), here.set_index("seed")
        rows.append({"data set": dataset, "KV tokens": tokens, "system": system,
                     "delay over METIS's": spread(ratio(other, mine), 2) if keeps_up(mine, other) else GROWS,
                     "F1": other["f1"].mean(), "F1 less METIS's": spread((other["f1"] - mine["f1"]).dropna(), 3),
                     "constrained %": 100 * here["constrained"].mean(), "partial %": 100 * here["how.partial"].mean(),
                     "fallback %": 100 * here["how.fallback"].mean(), "queued %": 100 * here["how.queued"].mean()})
    return Table("variants", "What counts as free, whether part of the mappers may start, what queues",
                 pd.DataFrame(rows), "at the study's rates; mean [lowest, highest] over the seeds.", {
                     "F1": 3, **dict.fromkeys(("constrained %", "partial %", "fallback %", "queued %"), 0)})
