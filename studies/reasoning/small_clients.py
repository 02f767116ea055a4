"""Reasoning on clients of two H100, small and large: the rows of reasoning of Table III."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd

from hermes.scenario.loading import load_document
from hermes.study import Compared, Context, Point, Table, run_points

from ..common import table_3
from ..common.climb import climb
from ..common.llm_figures import llm_figures
from ..common.systems import System, arrange, routers
from ..common.table_3 import NEAR, OBJECTIVES, best_systems, recommended

__all__ = ["compared", "grid", "tables"]


SYSTEMS = (System("small", 4, ("1P/3D", "2P/2D")), System("large", 32, ("2P/30D", "4P/28D", "12P/20D")))
RATES = tuple(step / 40 for step in range(1, 25))   # requests/s and client
PAPER = {   # Table III, reasoning: (system, objective) -> recommendation
    ("small", "TTFT"): "continuous", ("large", "TTFT"): "continuous",
    ("small", "throughput"): "continuous",
    ("large", "throughput"): "disaggregated (low), continuous (medium)",
    ("small", "throughput per energy"): "disaggregated (low), continuous (medium)",
    ("large", "throughput per energy"): "disaggregated (low), continuous (medium)",
}
BANDS = ("low", "medium")
TTFT = "latency.ttft_s.p50"
OUTCOMES = ("agree", "tie", "disagree", "nothing meets the SLOs")
_WORDS = dict(zip((table_3.AGREE, table_3.TIE, table_3.DISAGREE, table_3.NONE_MEETS), OUTCOMES, strict=True))


def grid(context: Context, budgets: Sequence[int]) -> pd.DataFrame:
    """Simulate both systems at rising rates, until they miss the SLOs."""
    asked = [(system, strategy) for system in SYSTEMS
             for strategy in ("continuous", *(f"chunked {budget}" for budget in budgets), *system.splits)]
    found = climb(asked, RATES, partial(_at_rate, context))
    base = found[found.strategy == "continuous"].groupby("system", sort=False).first()["energy.output_tokens_per_j"]
    return found.assign(rel_tpj=found["energy.output_tokens_per_j"] / found.system.map(base))


def _at_rate(context: Context, rate: float, alive: Sequence[tuple[System, str]]) -> pd.DataFrame:
    scenario: Any = load_document(context.file("tp2.yaml")).plain()
    points = [Point(
        f"{system.name}, {strategy}, {rate:g}", {
            "clients": arrange(scenario["clients"], strategy, system.clients, max_num_seqs=context["max_num_seqs"]),
            "routers": routers(strategy, scenario["router"]), "workload.duration": f"{context['window_s'] / 2:g} s",
            "workload.branch_spread": context["branch_spread"],
            "workload.arrivals.rate": f"{rate * system.clients:g} /s",
        }, {"system": system.name, "strategy": strategy, "rate": rate}) for system, strategy in alive]
    return run_points(context, f"tp2-{rate:g}", points, scenario="tp2.yaml", extract=llm_figures)


def highest(found: pd.DataFrame) -> pd.DataFrame:
    """Return the highest rate (requests/s and client) whose point meets all six SLOs, by system and strategy."""
    met = found.assign(met=found["rate"].where(found["slo.pass"].astype(bool), 0.0))
    return met.groupby(["system", "strategy"], sort=False)["met"].max().reset_index()


def _chosen(found: pd.DataFrame) -> pd.DataFrame:
    """Return the grid with one budget of chunked batching for each system: that of the highest rate, and of the lowest
    TTFT there."""
    top = highest(found).merge(found, "left", left_on=["system", "strategy", "met"],
                               right_on=["system", "strategy", "rate"])
    chunked = top[top.strategy.str.startswith("chunked ")].sort_values(["met", TTFT], ascending=[False, True])
    best = set(chunked.groupby("system").head(1)[["system", "strategy"]].itertuples(index=False, name=None))
    keep = [not strategy.startswith("chunked ") or (system, strategy) in best
            for system, strategy in zip(found.system, found.strategy, strict=True)]
    return found[keep]


def cells(found: pd.DataFrame, parts: int) -> pd.DataFrame:
    """Return the rows of reasoning of Table III, cell by cell. Bands are the first two of `parts` equal parts of the
    rates up to the highest that any system of the size takes: the paper's rates are not given."""
    rows = []
    chosen = _chosen(found)
    for system in dict.fromkeys(chosen.system):
        group = chosen[chosen.system == system]
        good = group[group["slo.pass"].astype(bool)]
        top = float(good.rate.max()) if len(good) else 0.0
        for objective in OBJECTIVES:
            for place, band in enumerate(BANDS):
                inside = good[(good.rate > top * place / parts) & (good.rate <= top * (place + 1) / parts)]
                best, rate = best_systems(inside, objective, TTFT)
                paper = recommended(PAPER[system, objective], band)
                rows.append({"system": system, "objective": objective, "rates": band, "paper": ", ".join(paper),
                             "here": ", ".join(best) or "none meets the SLOs", "at": rate,
                             "outcome": outcome(best, paper), "values": _values(inside, objective, rate)})
    return pd.DataFrame(rows)


def outcome(best: Sequence[str], paper: Sequence[str]) -> str:
    """Return one of `OUTCOMES`; a tie: systems of the paper's kind and of others share the best place."""
    return _WORDS[table_3.outcome(best, paper)]


def _values(inside: pd.DataFrame, objective: str, rate: float | None) -> str:
    """Return the objective of every system of a band, the best first, as text."""
    if inside.empty:
        return "no system meets the six SLOs"
    if objective == "TTFT":
        values = (1e3 * inside[inside.rate == rate].set_index("strategy")[TTFT]).sort_values()
        return f"at {rate:g}/s and client: " + ", ".join(f"{name} {value:.0f} ms" for name, value in values.items())
    column, unit, text = (("throughput.output_tokens_per_s", "tokens/s", ",.0f") if objective == "throughput" else
                          ("energy.output_tokens_per_j", "tokens/J", ".3f"))
    values = inside.groupby("strategy")[column].max().sort_values(ascending=False)
    return ", ".join(f"{name} {value:{text}}" for name, value in values.items()) + f" {unit}"


def tables(found: pd.DataFrame, parts: int) -> list[Table]:
    rates = highest(found).pivot_table(index="strategy", columns="system", values="met", sort=False).reset_index()
    return [
        Table("tp2-highest-rate", "Clients of two H100: highest rate (requests/s per client) that meets all six SLOs",
              rates, "", {system.name: 3 for system in SYSTEMS}),
        Table("tp2-table-3", "Table III, reasoning, cell by cell", cells(found, parts).drop(columns="values"),
              f"here: systems within {NEAR:.0%} of the best; tie: the paper's kind shares that place with another. "
              f"Bands: the first two of {parts} parts of the rates up to the highest that any system takes."),
        Table("tp2-points", "Clients of two H100: every point", pd.DataFrame({
            "system": found.system, "batching": found.strategy, "rate": found.rate,
            "requests": found["requests.completed"], "peak": found["kv.peak_share"], "stable": found.stable,
            "TTFT p50 ms": 1e3 * found["latency.ttft_s.p50"], "TTFT p99 ms": 1e3 * found["latency.ttft_s.p99"],
            "TPOT p50 ms": 1e3 * found["latency.tpot_s.p50"], "TPOT p90 ms": 1e3 * found["latency.tpot_s.p90"],
            "tok/s": found["throughput.output_tokens_per_s"], "tok/J": found["energy.output_tokens_per_j"],
            "six SLOs": found["slo.pass"]}), "", {"rate": 3, "peak": 2}),
    ]


def compared(found: pd.DataFrame, parts: int) -> list[Compared]:
    """Return the rows of reasoning of Table III cell by cell, how many agree, and the highest rates."""
    rows = []
    table = cells(found, parts)
    for cell in table.to_dict("records"):
        rows.append(Compared(
            f"reasoning, {cell['system']}, {cell['rates']} rates: {cell['objective']}", cell["paper"],
            cell["here"], cell["values"], None, "Table III",
            agrees=cell["outcome"] == OUTCOMES[0], settled=cell["outcome"] in (OUTCOMES[0], OUTCOMES[2])))
    counts = [int((table.outcome == one).sum()) for one in OUTCOMES]
    rows.append(Compared("reasoning: share of all cells that agree", 1.0, counts[0] / len(table),
                         ", ".join(f"{one}: {count}" for one, count in zip(OUTCOMES, counts, strict=True))
                         + f"; of {len(table)} cells", 2, "Table III"))
    rates = highest(_chosen(found))
    for system in dict.fromkeys(rates.system):
        ordered = rates[rates.system == system].sort_values("met", ascending=False, kind="stable")
        rows.append(Compared(
            f"reasoning, {system}: highest rate that meets six SLOs, requests/s and client", None,
            ", ".join(f"{row['strategy']} {row['met']:.3g}" for row in ordered.to_dict("records")),
            "the paper gives none"))
    return rows
