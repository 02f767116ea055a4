"""Tables of the study, from frames of points."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pandas as pd

from hermes.plugins.metis.quality import FORMULAS
from hermes.study import Table

__all__ = [
    "LIKE", "TARGET_S", "by_rate", "dollars", "feedback", "fixed_name", "gains", "headline", "highest_rate", "knobs",
    "ladder", "large", "like_delay", "lone", "measured", "overhead", "paired", "pressure", "readings", "shapes",
    "throughput", "variants",
]

TARGET_S = 1.8
LIKE = 1.05   # a fixed configuration is of like delay up to 5% above


def like_delay(grid: pd.DataFrame, delay_s: float) -> Any:
    """The row of the fixed configuration with the best F1 of those no slower (the quickest, if all are)."""
    near = grid[grid["delay_s"] <= LIKE * delay_s]
    return near.iloc[int(near["f1"].argmax())] if len(near) else grid.iloc[int(grid["delay_s"].argmin())]


def _range(values: Any, digits: int) -> str:
    return f"{values.mean():.{digits}f} [{values.min():.{digits}f}, {values.max():.{digits}f}]"


def fixed_name(point: Any) -> str:
    """Return a fixed configuration in a few words."""
    params = dict(point.params)
    words = f" x {params['words']} w" if params["method"] == "map_reduce" else ""
    return f"{params['method']} {params['chunks']}{words}"


def _by_seed(frame: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    for column, value in wanted.items():
        frame = frame[frame[column] == value]
    return frame.set_index("seed").sort_index()


def _stable(values: Any) -> str:
    said = {True: "yes", False: "no"}
    return "/".join(sorted({said.get(value, "?") if value is not None else "?" for value in values.tolist()}))


def headline(runs: pd.DataFrame) -> Table:
    """METIS beside AdaptiveRAG* and the fixed configuration of like delay, over seeds."""
    rows = []
    for dataset, rate in dict.fromkeys(zip(runs["dataset"], runs["rate"], strict=True)):
        here = runs[(runs["dataset"] == dataset) & (runs["rate"] == rate)]
        own, rag = (_by_seed(here, system=name) for name in ("METIS", "AdaptiveRAG*"))
        like, parrot = (_by_seed(here, system=name) for name in ("vLLM fixed", "Parrot*"))
        rows.append({
            "data set": dataset, "rate": rate, "METIS s": _range(own["delay_s"], 2),
            "AdaptiveRAG* s": _range(rag["delay_s"], 2), "delay ratio": _range(rag["delay_s"] / own["delay_s"], 2),
            "F1 METIS": _range(own["f1"], 3), "F1 AdaptiveRAG*": _range(rag["f1"], 3),
            "fixed": fixed_name(like["run"].iloc[0]),
            "fixed s": _range(like["delay_s"], 2), "Parrot* s": _range(parrot["delay_s"], 2),
            "F1 gain %": _range(100 * (own["f1"] / like["f1"] - 1), 1),
            "constrained %": 100 * own["constrained"].mean(), "KV at decisions %": 100 * own["kv_used"].mean(),
            "KV peak %": 100 * own["point.kv_peak_share"].max(), "engine busy %": 100 * own["busy"].mean(),
            "rejected": int(own["point.rejected"].sum() + rag["point.rejected"].sum()),
            "stable: METIS, AdaptiveRAG*": f"{_stable(own['point.stable'])}, {_stable(rag['point.stable'])}",
        })
    note = (f"mean [lowest, highest] over {runs['seed'].nunique()} seeds. The paper: AdaptiveRAG* 1.64-2.54 times as "
            "slow at no higher F1; 12-18% more F1 than fixed configurations of like delay. KV capacity "
            f"{int(runs['point.kv_capacity_tokens'].iloc[0]):,} tokens. stable: over the seeds, ? where the window is "
            "short.")
    return Table("headline", "Headline", pd.DataFrame(rows), note, {
        "constrained %": 1, "KV at decisions %": 2, "KV peak %": 1, "engine busy %": 1})


def readings(runs: pd.DataFrame) -> Table:
    """AdaptiveRAG* by how small a difference of F1 it still chases."""
    rows = []
    for dataset, own in runs.groupby("dataset", sort=False):
        mine = _by_seed(own, system="METIS")
        for name in (s for s in dict.fromkeys(own["system"]) if s != "METIS"):
            rag = _by_seed(own, system=name)
            rows.append({
                "data set": dataset, "baseline": name, "delay s": rag["delay_s"].mean(),
                "over METIS's": _range(rag["delay_s"] / mine["delay_s"], 2), "F1": rag["f1"].mean(),
                "F1 METIS": mine["f1"].mean(), "chunks": rag["chunks"].mean(),
                "LLM tokens out per query": rag["llm_out"].mean() / rag["run"].iloc[0].requests,
                "engine busy %": 100 * rag["busy"].mean(), "KV at decisions %": 100 * rag["kv_used"].mean(),
                "stable": _stable(rag["point.stable"])})
    return Table("readings", "What best F1 means", pd.DataFrame(rows),
                 "sustained rates, all seeds. AdaptiveRAG*: the best measured F1; exact: the best F1 of the quality "
                 "model; 0.1%, 1%: the quickest of the configurations within so much of it.", {
                     "delay s": 2, "F1": 3, "F1 METIS": 3, "chunks": 1, "LLM tokens out per query": 0,
                     "engine busy %": 0, "KV at decisions %": 1})


def gains(grid: pd.DataFrame, chosen: pd.DataFrame) -> Table:
    """Compare each per-query choice with the best fixed configuration by F1 that is no slower."""
    rows = []
    order = {name: place for place, name in enumerate(dict.fromkeys(grid["dataset"]))}
    for own in sorted((row for _, row in chosen.iterrows()), key=lambda row: order[row["dataset"]]):
        like = like_delay(grid[grid["dataset"] == own["dataset"]], own["delay_s"])
        rows.append({"data set": own["dataset"], "chosen by": own["system"], "delay s": own["delay_s"], "F1": own["f1"],
                     "fixed": fixed_name(like["run"]), "fixed s": like["delay_s"], "fixed F1": like["f1"],
                     "F1 gain %": 100 * (own["f1"] / like["f1"] - 1)})
    return Table("gains", "Choices per query against fixed configurations of like delay", pd.DataFrame(rows),
                 "sustained rates, one seed; the paper: 12-18% for METIS.", {
                     "delay s": 2, "F1": 3, "fixed s": 2, "fixed F1": 3, "F1 gain %": 1})


def large(runs: pd.DataFrame) -> Table:
    """Llama-3.1-70B on two cards: the headline's comparison, with the median and hindsight beside it."""
    rows = []
    for dataset, rate in dict.fromkeys(zip(runs["dataset"], runs["rate"], strict=True)):
        here = runs[(runs["dataset"] == dataset) & (runs["rate"] == rate)]
        own, rag, median, best, like = (_by_seed(here, system=name) for name in (
            "METIS", "AdaptiveRAG*", "+ batching", "hindsight", "vLLM fixed"))
        row = {"data set": dataset, "rate": rate, "METIS s": _range(own["delay_s"], 1),
               "AdaptiveRAG* s": _range(rag["delay_s"], 1), "delay ratio": _range(rag["delay_s"] / own["delay_s"], 2),
               "median s": median["delay_s"].mean(), "hindsight s": best["delay_s"].mean(),
               "F1 METIS": own["f1"].mean(), "F1 AdaptiveRAG*": rag["f1"].mean(), "F1 median": median["f1"].mean(),
               "F1 hindsight": best["f1"].mean()}
        row |= {"fixed": fixed_name(like["run"].iloc[0]), "fixed s": like["delay_s"].mean(),
                "F1 gain %": _range(100 * (own["f1"] / like["f1"] - 1), 1)} if len(like) else {
                    "fixed": "-", "fixed s": None, "F1 gain %": "-"}
        rows.append(row | {
            "constrained %": 100 * own["constrained"].mean(), "KV at decisions %": 100 * own["kv_used"].mean(),
            "KV peak %": 100 * own["point.kv_peak_share"].max(), "engine busy %": 100 * own["busy"].mean(),
            "stable: METIS, AdaptiveRAG*": f"{_stable(own['point.stable'])}, {_stable(rag['point.stable'])}"})
    one = dict.fromkeys(("median s", "hindsight s", "fixed s", "constrained %", "KV at decisions %"), 1)
    return Table("large", "Llama-3.1-70B on two A40", pd.DataFrame(rows),
                 f"mean [lowest, highest] over {runs['seed'].nunique()} seeds; KV capacity "
                 f"{int(runs['point.kv_capacity_tokens'].iloc[0]):,} tokens; the fixed configuration of like delay at "
                 "the sustained rate.", one | dict.fromkeys(
                     ("F1 METIS", "F1 AdaptiveRAG*", "F1 median", "F1 hindsight"), 3) | dict.fromkeys(
                         ("KV peak %", "engine busy %"), 0))


def ladder(runs: pd.DataFrame) -> Table:
    """From a fixed configuration to METIS, step by step; means over seeds."""
    rows = []
    for (dataset, rate, system), own in runs.groupby(["dataset", "rate", "system"], sort=False):
        rows.append({"data set": dataset, "rate": rate, "system": system, "delay s": own["delay_s"].mean(),
                     "p90 s": own["delay_p90_s"].mean(), "F1": own["f1"].mean(), "chunks": own["chunks"].mean(),
                     "map_rerank %": 100 * own["method.map_rerank"].mean(), "stuff %": 100 * own["method.stuff"].mean(),
                     "map_reduce %": 100 * own["method.map_reduce"].mean(), "stable": _stable(own["point.stable"])})
    return Table("ladder", "Ablation ladder", pd.DataFrame(rows),
                 f"means over {runs['seed'].nunique()} seeds at the sustained rates, one seed at 2/s and for Parrot*; "
                 "best fit is the last step, METIS.", {
        "delay s": 2, "p90 s": 2, "F1": 3, "chunks": 1, "map_rerank %": 0, "stuff %": 0, "map_reduce %": 0})


def lone(runs: pd.DataFrame) -> Table:
    """One query at a time."""
    rows = [{"data set": dataset} | {
        f"{system} {unit}": one[column].mean() for system, one in own.groupby("system", sort=False)
        for unit, column in (("s", "delay_s"), ("F1", "f1"))} for dataset, own in runs.groupby("dataset", sort=False)]
    frame = pd.DataFrame(rows)
    return Table("low_load", "Low load: one query at a time", frame,
                 f"means over {runs['seed'].nunique()} seeds; golden runs included in METIS and the median.",
                 {c: 3 if c.endswith("F1") else 2 for c in frame.columns if c != "data set"})


def measured(runs: pd.DataFrame) -> Table:
    """AdaptiveRAG* by the grid that it measures and by the noise of an answer, beside METIS; one row for each data set,
    grid and load."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for (dataset, system), here in runs[runs["system"] != "METIS"].groupby(["dataset", "system"], sort=False):
        dataset, (_, grid, noise) = str(dataset), str(system).split(" ")
        for load, alone in (("alone", True), ("with queues", False)):
            mine, rag = (_by_seed(frame[frame["rate"].isna() == alone]) for frame in (
                runs[(runs["dataset"] == dataset) & (runs["system"] == "METIS")], here))
            if len(rag):
                row = rows.setdefault((dataset, load, grid), {"data set": dataset, "load": load, "grid": grid})
                row[f"delay, noise {noise}"] = (rag["delay_s"] / mine["delay_s"]).mean()
                row[f"F1 %, noise {noise}"] = 100 * (mine["f1"] / rag["f1"]).mean() - 100
    frame = pd.DataFrame([rows[key] for key in sorted(rows, key=lambda key: (key[1], key[0].endswith("-3n")))])
    frame = frame[["data set", "load", "grid", *sorted(frame.columns[3:], key=lambda name: (name[0] == "F", name))]]
    return Table("measured", "AdaptiveRAG* by the grid that it measures and the noise of one answer", frame,
                 "Delay of AdaptiveRAG* over METIS's, and METIS's F1 over its own, one query at a time (alone) and at "
                 f"the study's rates (with queues); means over {runs.loc[runs['rate'].isna(), 'seed'].nunique()} "
                 "seeds, each measured anew. noise: standard deviation of the F1 of one answer.",
                 {c: 1 if "%" in c else 2 for c in frame.columns[3:]})


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
                 "none: even one query at a time takes longer (of + batching: at the lowest rate).")


def by_rate(rates: pd.DataFrame) -> Table:
    """METIS beside AdaptiveRAG* from a quarter of the sustained rate to more than the card keeps up with."""
    rows = []
    for (dataset, rate), here in rates.groupby(["dataset", "rate"], sort=False):
        own, rag = (here[here["system"] == name].iloc[0] for name in ("METIS", "AdaptiveRAG*"))
        rows.append({"data set": dataset, "rate": rate, "METIS s": own["delay_s"], "AdaptiveRAG* s": rag["delay_s"],
                     "delay ratio": rag["delay_s"] / own["delay_s"],
                     "F1 METIS": own["f1"], "F1 AdaptiveRAG*": rag["f1"],
                     "constrained %": 100 * own["constrained"], "KV at decisions %": 100 * own["kv_used"],
                     "engine busy %": 100 * own["busy"],
                     "stable: METIS, AdaptiveRAG*": ", ".join(
                         _stable(pd.Series([one["point.stable"]], dtype=object)) for one in (own, rag))})
    return Table("by_rate", "By rate, the whole card's memory", pd.DataFrame(rows), "one seed.", {
        "METIS s": 2, "AdaptiveRAG* s": 2, "delay ratio": 2, "F1 METIS": 3, "F1 AdaptiveRAG*": 3, "constrained %": 0,
        "KV at decisions %": 1, "engine busy %": 0})


def knobs(runs: pd.DataFrame) -> Table:
    """Knobs added one by one to the fixed configuration of like delay."""
    rows = [{"data set": row["dataset"], "set per query": row["system"], "delay s": row["delay_s"], "F1": row["f1"],
             "chunks": row["chunks"]} for _, row in runs.iterrows()]
    return Table("knobs", "Knobs added one by one", pd.DataFrame(rows), "", {"delay s": 2, "F1": 3, "chunks": 1})


def overhead(runs: pd.DataFrame) -> Table:
    """Cost of profiling, with an API and with a served model."""
    rows = [{"data set": row["dataset"], "profiler": row["system"], "delay s": row["delay_s"], "F1": row["f1"],
             "profiler s": row["profiler_s"], "share of the delay %": 100 * row["profiler_share"],
             "highest %": 100 * row["profiler_share_max"],
             "tokens in a query": row["profile_in"] / row["run"].requests}
            for _, row in runs.iterrows()]
    return Table("profiler", "The profiler", pd.DataFrame(rows), "The paper: 3-6% of the delay, 10% at most.", {
        "delay s": 2, "F1": 3, "profiler s": 3, "share of the delay %": 1, "highest %": 1, "tokens in a query": 0})


def feedback(runs: pd.DataFrame) -> Table:
    """Golden runs on and off."""
    rows = []
    for (dataset, system), own in runs.groupby(["dataset", "system"], sort=False):
        rows.append({"data set": dataset, "feedback": system, "F1": own["f1"].mean(), "delay s": own["delay_s"].mean(),
                     "golden runs": own["golden_runs"].mean(), "golden tokens in": own["golden_in"].mean(),
                     "golden tokens out": own["golden_out"].mean(),
                     "share of the LLM's prompts %": 100 * (own["golden_in"] / own["llm_in"]).mean()})
    frame = pd.DataFrame(rows)
    return Table("feedback", "Feedback: 350 queries, a golden run every 30", frame, "The paper: 4-6% more F1.", {
        "F1": 4, "delay s": 2, "golden runs": 1, "golden tokens in": 0, "golden tokens out": 0,
        "share of the LLM's prompts %": 1})


def paired(sweep: pd.DataFrame, system: str, other: str) -> pd.DataFrame:
    """Points with less memory, means over the seeds that both systems have: `delay_s`, `f1`, those of the other with
    `_other`, and `ratio`, the mean of the other's delay over the system's, with `ratio_low` and `ratio_high`."""
    keys = ["dataset", "kv_tokens", "load", "seed"]
    columns = [*keys, "rate", "delay_s", "f1", "constrained", "point.rejected"]
    both = sweep.loc[sweep["system"] == system, columns].merge(
        sweep.loc[sweep["system"] == other, columns], on=keys, suffixes=("", "_other"))
    both["ratio"] = both["delay_s_other"] / both["delay_s"]
    groups = both.groupby(["dataset", "kv_tokens", "load"], sort=False)
    return groups.mean(numeric_only=True).assign(
        ratio_low=groups["ratio"].min(), ratio_high=groups["ratio"].max()).reset_index()


def pressure(sweep: pd.DataFrame) -> Table:
    """Rate and KV budget, into the regime where memory decides: METIS, AdaptiveRAG* and the median, over seeds."""
    rows = []
    rag, near, median = (paired(sweep, "METIS", name) for name in ("AdaptiveRAG*", "AdaptiveRAG*, 1%", "+ batching"))
    for (_, one), (_, quick), (_, other) in zip(rag.iterrows(), near.iterrows(), median.iterrows(), strict=True):
        here = sweep[(sweep["dataset"] == one["dataset"]) & (sweep["kv_tokens"] == one["kv_tokens"])
                     & (sweep["load"] == one["load"])]
        mine = here[here["system"] == "METIS"]
        rows.append({
            "data set": one["dataset"], "KV tokens": one["kv_tokens"], "rate": one["rate"],
            "constrained %": 100 * one["constrained"], "partial %": 100 * mine["how.partial"].mean(),
            "fallback %": 100 * mine["how.fallback"].mean(), "queued %": 100 * mine["how.queued"].mean(),
            "KV at decisions %": 100 * mine["kv_used"].mean(), "METIS s": one["delay_s"], "F1 METIS": one["f1"],
            "AdaptiveRAG* s": one["delay_s_other"], "F1 AdaptiveRAG*": one["f1_other"],
            "delay ratio": f"{one['ratio']:.2f} [{one['ratio_low']:.2f}, {one['ratio_high']:.2f}]",
            "F1 AdaptiveRAG*, 1%": quick["f1_other"],
            "delay ratio, 1%": f"{quick['ratio']:.2f} [{quick['ratio_low']:.2f}, {quick['ratio_high']:.2f}]",
            "median s": other["delay_s_other"], "F1 median": other["f1_other"],
            "preemptions": int(mine["point.preemptions"].sum()),
            "rejected": "/".join(str(int(here.loc[here["system"] == name, "point.rejected"].sum()))
                                 for name in ("METIS", "AdaptiveRAG*", "+ batching")),
            "stable": ", ".join(_stable(here.loc[here["system"] == name, "point.stable"])
                                for name in ("METIS", "AdaptiveRAG*", "+ batching"))})
    return Table("pressure", "Less memory, more load", pd.DataFrame(rows),
                 f"means over {sweep['seed'].nunique()} seeds; delay ratio: AdaptiveRAG* over METIS, seed by seed; 1%: "
                 "AdaptiveRAG* takes the quickest within 1% of the best F1; "
                 "rejected and stable: METIS, AdaptiveRAG*, median. A rejected query has no F1 and no delay.", {
        **dict.fromkeys(("METIS s", "AdaptiveRAG* s", "median s"), 2),
        **dict.fromkeys(("F1 METIS", "F1 AdaptiveRAG*", "F1 AdaptiveRAG*, 1%", "F1 median"), 3),
        **dict.fromkeys(("constrained %", "partial %", "fallback %", "queued %", "KV at decisions %"), 0)})


def variants(sweep: pd.DataFrame) -> Table:
    """METIS with other answers to the paper's open questions, beside METIS as it is; the first seed."""
    rows = []
    own = sweep[(sweep["seed"] == 1) & sweep["system"].str.startswith("METIS")]
    for (dataset, tokens, load), here in own.groupby(["dataset", "kv_tokens", "load"], sort=False):
        if len(here) > 1:
            rows += [{"data set": dataset, "KV tokens": tokens, "load": load, "system": one["system"],
                      "delay s": one["delay_s"], "F1": one["f1"], "constrained %": 100 * one["constrained"],
                      "partial %": 100 * one["how.partial"], "fallback %": 100 * one["how.fallback"],
                      "queued %": 100 * one["how.queued"]} for _, one in here.iterrows()]
    return Table("variants", "What counts as free, whether part of the mappers may start, what queues",
                 pd.DataFrame(rows), "load: multiple of the sustained rate; one seed.", {
                     "delay s": 2, "F1": 3, **dict.fromkeys(
                         ("constrained %", "partial %", "fallback %", "queued %"), 0)})


def shapes(runs: pd.DataFrame) -> Table:
    """F1 by each shape of the quality model: gain over the fixed configuration, and over AdaptiveRAG* by that shape."""
    rows = []
    for dataset, own in runs.groupby("dataset", sort=False):
        for name in FORMULAS:
            column = f"f1_{name}"
            f1 = {s: own[own["system"] == s][column].mean() for s in (
                "METIS", "vLLM fixed", "profile + median", f"AdaptiveRAG* {name}", f"hindsight {name}")}
            rag = own[own["system"] == f"AdaptiveRAG* {name}"]["delay_s"].mean()
            delay = own[own["system"] == "METIS"]["delay_s"].mean()
            rows.append({
                "data set": dataset, "quality model": name, "METIS": f1["METIS"],
                "fixed of like delay": f1["vLLM fixed"], "median": f1["profile + median"],
                "AdaptiveRAG*": f1[f"AdaptiveRAG* {name}"], "hindsight": f1[f"hindsight {name}"],
                "gain over fixed %": 100 * (f1["METIS"] / f1["vLLM fixed"] - 1),
                "delay ratio to AdaptiveRAG*": rag / delay,
            })
    return Table("shapes", "Other quality models", pd.DataFrame(rows),
                 "the fixed configuration is the best of like delay by each model; AdaptiveRAG* and hindsight choose "
                 "by it.", {
                     "METIS": 3, "fixed of like delay": 3, "median": 3, "AdaptiveRAG*": 3, "hindsight": 3,
                     "gain over fixed %": 1, "delay ratio to AdaptiveRAG*": 2})


def dollars(runs: pd.DataFrame) -> Table:
    """Dollars per query of serving time and profiler."""
    rows = [{"data set": row["dataset"], "system": row["system"], "served by": row["run"].serving,
             "LLM $/1000": 1000 * row["dollars_llm"], "profiler $/1000": 1000 * row["dollars_profiler"],
             "together $/1000": 1000 * (row["dollars_llm"] + row["dollars_profiler"]), "delay s": row["delay_s"],
             "F1 by configuration": row["f1"]} for _, row in runs.iterrows()]
    return Table("dollars", "Dollars per 1000 queries", pd.DataFrame(rows),
                 "GPU: time in which the engine was busy, at the device's price; API: list prices. The quality model "
                 "knows nothing of the size of a model: F1 is what the configuration allows.", {
                     "LLM $/1000": 3, "profiler $/1000": 3, "together $/1000": 3, "delay s": 2,
                     "F1 by configuration": 3})
