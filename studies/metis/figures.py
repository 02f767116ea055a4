"""The paper's figures beside the study's: one row each, from the points of `compared_first` and `compared_second`."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from hermes.plugins.metis.profiler import PROFILERS
from hermes.study import Compared

from .points import Batch, Run
from .sections import COMPARATORS, Size
from .tables import TARGET_S, fixed_name, highest_rate, like_delay

__all__ = ["compared", "fixed_by_rule"]

By = dict[str, float]   # data set -> figure


def fixed_by_rule(size: Size, one: Batch) -> dict[str, dict[str, Run]]:
    """Return data set -> rule of `COMPARATORS` -> the fixed configuration that it selects, at the sustained rate and by
    the first seed."""
    grid, own = one["grid"], one["systems"]
    found = {}
    for dataset in size.datasets:
        rows = grid[grid["dataset"] == dataset]
        mine = own[(own["dataset"] == dataset) & (own["system"] == "METIS") & (own["seed"] == 1)].iloc[0]
        chosen = (rows.iloc[int(rows["f1"].argmax())], rows.iloc[int((rows["f1"] - mine["f1"]).abs().argmin())],
                  like_delay(rows, mine["delay_s"]))
        found[dataset] = {rule: row["run"] for rule, row in zip(COMPARATORS, chosen, strict=True)}
    return found


def compared(size: Size, one: Batch, two: Batch) -> list[Compared]:
    """Return every figure of the paper under the assumptions that the points were simulated with."""
    return [*_against_adaptive_rag(size, one), *_against_fixed(size, one, two), *_throughput(size, one, two),
            *_ladder(size, one, two), *_low_load(size, one, two), *_costs(size, one)]


def _against_adaptive_rag(size: Size, one: Batch) -> list[Compared]:
    own, lone = one["systems"], one["lone"]
    ratio = {d: _ratio(own, d, "AdaptiveRAG*", "METIS") for d in size.datasets}
    alone = {d: _ratio(lone, d, "AdaptiveRAG*", "METIS") for d in size.datasets}
    f1 = {d: 100 * (_mean(own, d, "METIS", "f1") / _mean(own, d, "AdaptiveRAG*", "f1") - 1) for d in size.datasets}
    grows = [d for d in size.datasets if not _keeps_up(own, d, "AdaptiveRAG*")]
    queue = f"; the queue of AdaptiveRAG* grows in some seeds of {', '.join(grows)}" if grows else ""
    more = {d: _mean(lone, d, "AdaptiveRAG*", "llm_out") / _mean(lone, d, "METIS", "llm_out") for d in size.datasets}
    return [
        Compared("delay of AdaptiveRAG* over METIS's, with queues", (1.64, 2.54), _span(ratio),
                 f"{_each(ratio)}{queue}.", 2),
        Compared("delay of AdaptiveRAG* over METIS's, one query at a time", None, _span(alone),
                 f"{_each(alone)}, as the configurations of AdaptiveRAG* generate {_each(more)} times as many tokens.",
                 2),
        Compared("F1 of METIS over AdaptiveRAG*'s, %", "no lower", _span(f1),
                 f"{_each(f1, 1)}: what METIS loses with chunks that it leaves out, against what AdaptiveRAG* loses "
                 "with one configuration for a class.", 1),
    ]


def _against_fixed(size: Size, one: Batch, two: Batch) -> list[Compared]:
    own, fixed = one["systems"], two["fixed"]
    gain = {d: 100 * (_mean(own, d, "METIS", "f1") / _mean(fixed, d, "vLLM fixed", "f1") - 1) for d in size.datasets}
    return [Compared("F1 of METIS over the fixed configuration of like delay, %", (12, 18), _span(gain),
                     f"{_each(gain, 1)}: the rule reads up to 3n chunks wherever the needed ones rank.", 1)]


def _throughput(size: Size, one: Batch, two: Batch) -> list[Compared]:
    paper = (1.8, 4.5)
    same = dict.fromkeys(size.datasets, TARGET_S)
    twice = {d: 2 * _mean(one["lone"], d, "METIS", "delay_s") for d in size.datasets}
    return [_rates(f"throughput at {when} over fixed of {rule}", None if rule == "like delay" else paper, rule, target,
                   one, two)
            for when, target in ((f"{TARGET_S:g} s", same), ("twice METIS's delay alone", twice))
            for rule in COMPARATORS]


def _rates(name: str, paper: tuple[float, float] | None, rule: str, target: By, one: Batch, two: Batch) -> Compared:
    known, words = {}, []
    for dataset, seconds in target.items():
        mine, other = (highest_rate(frame[(frame["dataset"] == dataset) & (frame["system"] == system)], seconds)
                       for frame, system in ((pd.concat([one["lone"], one["rates"]]), "METIS"),
                                             (pd.concat([two["fixed lone"], two["fixed rates"]]), f"fixed of {rule}")))
        if isinstance(mine, float) and isinstance(other, float):
            known[dataset] = mine / other
        words.append(f"{dataset} {_rate(mine)} against {_rate(other)}")
    return Compared(name, paper, _span(known), f"Queries/s: {', '.join(words)}.", 2)


def _rate(rate: float | str) -> str:
    return rate if isinstance(rate, str) else f"{rate:.2f}"


def _ladder(size: Size, one: Batch, two: Batch) -> list[Compared]:
    own = one["systems"]
    steps = pd.concat([one["rungs"], two["fixed rungs"], own[(own["system"] == "METIS") & (own["seed"] <= size.few)]])
    constrained = max(_mean(own, d, "METIS", "constrained") for d in size.datasets)

    def step(before: str, after: str) -> By:
        return {d: _ratio(steps, d, before, after) for d in size.datasets}

    best = step("fixed of highest F1", "profile + median")
    closest = step("fixed of closest F1", "profile + median")
    batching, fit = step("profile + median", "+ batching"), step("+ batching", "METIS")
    more = {d: 100 * (_mean(steps, d, "METIS", "f1") / _mean(steps, d, "+ batching", "f1") - 1) for d in size.datasets}
    return [
        Compared("ladder: fixed of highest F1 over profile + median, delay", (1.4, 1.68), _span(best),
                 f"{_each(best)}; fixed: {_named(steps, size, 'highest F1')}.", 2),
        Compared("ladder: fixed of closest F1 over profile + median, delay", (1.4, 1.68), _span(closest),
                 f"{_each(closest)}; fixed: {_named(steps, size, 'closest F1')}.", 2),
        Compared("ladder: batching, delay before over after", (1.1, 1.2), _span(batching),
                 f"{_each(batching)}: the calls of a query come together, so that without batching they also run "
                 "together unless the queue is long.", 2),
        Compared("ladder: best fit, delay before over after", (1.45, 1.75), _span(fit),
                 f"{_each(fit)}: memory changes at most {constrained:.1%} of a data set's decisions; best fit takes "
                 f"the largest configuration that fits, for F1 {_each(more, 1)}% above the median's.", 2),
    ]


def _named(steps: pd.DataFrame, size: Size, rule: str) -> str:
    """Return the fixed configurations that a rule selects, by data set."""
    return ", ".join(f"{d} {fixed_name(_of(steps, d, f'fixed of {rule}')['run'].iloc[0])}" for d in size.datasets)


def _low_load(size: Size, one: Batch, two: Batch) -> list[Compared]:
    lone = pd.concat([one["lone"], two["fixed lone"]])
    papers: dict[str, tuple[float, float] | None] = {"highest F1": (1.48, 1.56), "closest F1": (1.48, 1.56),
                                                     "like delay": None}
    rows = []
    for rule, paper in papers.items():
        ratio = {d: _ratio(lone, d, f"fixed of {rule}", "METIS") for d in size.datasets}
        rows.append(Compared(f"low load: fixed of {rule} over METIS, delay", paper, _span(ratio),
                             f"{_each(ratio)}, golden runs beside METIS included.", 2))
    return rows


def _costs(size: Size, one: Batch) -> list[Compared]:
    own, fed = one["systems"], one["feedback"]
    share = {d: 100 * _mean(own, d, "METIS", "profiler_share") for d in size.datasets}
    gain = {d: 100 * (_mean(fed, d, "large profiler, on", "f1") / _mean(fed, d, "large profiler, off", "f1") - 1)
            for d in dict.fromkeys(fed["dataset"])}
    used = float(own.loc[own["system"] == "METIS", "kv_used"].mean())
    large = PROFILERS["large"]
    good = large.confident * large.good_confident + (1 - large.confident) * large.good_unsure
    free = {d: _mean(own, d, "METIS", "free_tokens") / 1000 for d in size.datasets}
    return [
        Compared("share of the profiler in METIS's delay, %", (3, 6), _span(share),
                 f"{_each(share, 1)}: a profile takes {own['profiler_s'].mean():.2f} s, however short the query.", 1),
        Compared("F1 gained by feedback, %", (4, 6), _span(gain),
                 f"{_each(gain, 2)}: {good:.0%} of the profiles are good without it.", 2),
        Compared("free KV memory at METIS's decisions, thousand tokens", None, _span(free),
                 f"{_each(free, 0)}; the engine holds {own['point.kv_capacity_tokens'].max():,.0f} tokens, of which "
                 f"{used:.1%} are in use on average when METIS decides.", 0),
    ]


# -- from frames ---------------------------------------------------------------------------------------------------


def _of(frame: pd.DataFrame, dataset: str, system: str) -> pd.DataFrame:
    return frame[(frame["dataset"] == dataset) & (frame["system"] == system)].set_index("seed").sort_index()


def _mean(frame: pd.DataFrame, dataset: str, system: str, column: str) -> float:
    return float(_of(frame, dataset, system)[column].mean())


def _ratio(frame: pd.DataFrame, dataset: str, above: str, below: str) -> float:
    """Return the mean over seeds of one system's delay over another's."""
    over, under = (_of(frame, dataset, system)["delay_s"] for system in (above, below))
    return float((over / under).mean())


def _keeps_up(frame: pd.DataFrame, dataset: str, system: str) -> bool:
    return all(stable is not False for stable in _of(frame, dataset, system)["point.stable"].tolist())


def _span(by: Mapping[str, float]) -> tuple[float, float] | None:
    return (min(by.values()), max(by.values())) if by else None


def _each(by: Mapping[str, float], digits: int = 2) -> str:
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in by.items())
