"""The paper's figures 10 to 12 and Table III (arXiv 2504.09775), beside those of the grid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hermes.study import Compared, Table
from hermes.sums import float_sum

from ..common.table_3 import (
    AGREE,
    DISAGREE,
    NEAR,
    NONE_MEETS,
    OBJECTIVES,
    best_systems,
    kind,
    outcome,
    recommended,
    share,
    tally,
)
from .tables import BANDS, BY, RATE_STEPS, highest_rates

__all__ = ["compared", "effort", "part_of_peak", "table_3"]

# Table III: (lengths, pipeline, system) -> recommendation by objective. A recommendation holds for all bands, or names
# its bands. Rows of reasoning are in the study of that name.
TABLE_3: dict[tuple[str, str, str], tuple[str, str, str]] = {
    ("code", "plain", "small"): ("continuous", "disaggregated (medium), chunked (high)", "disaggregated"),
    ("code", "plain", "large"): ("continuous (medium), disaggregated (high)",
                                 "disaggregated (medium), chunked (high)", "disaggregated"),
    ("code", "rag", "small"): ("continuous", "chunked", "disaggregated"),
    ("code", "rag", "large"): ("continuous", "chunked, disaggregated", "disaggregated"),
    ("code", "kv-retrieval", "small"): ("continuous", "disaggregated", "disaggregated"),
    ("code", "kv-retrieval", "large"): ("continuous (medium), disaggregated (high)",
                                        "disaggregated (medium), chunked (high)", "disaggregated"),
    ("conv", "plain", "small"): ("disaggregated", "disaggregated", "disaggregated"),
    ("conv", "plain", "large"): ("disaggregated", "disaggregated", "disaggregated"),
    ("conv", "rag", "small"): ("continuous", "chunked, disaggregated", "disaggregated"),
    ("conv", "rag", "large"): ("continuous", "chunked, disaggregated", "disaggregated"),
    ("conv", "kv-retrieval", "small"): ("continuous", "chunked, disaggregated", "disaggregated"),
    ("conv", "kv-retrieval", "large"): ("disaggregated", "disaggregated", "disaggregated"),
}
# Figures 10 to 12: (pipeline, lengths) -> systems with the highest throughput
HIGHEST = {
    ("plain", "code"): ("chunked", "disaggregated"), ("plain", "conv"): ("20P/12D",),
    ("rag", "code"): ("chunked", "20P/12D"), ("rag", "conv"): ("chunked", "20P/12D"),
    ("kv-retrieval", "code"): ("chunked",), ("kv-retrieval", "conv"): ("chunked",),
}
FIGURES = {"plain": "Fig. 10", "rag": "Fig. 11", "kv-retrieval": "Fig. 12"}
PAPER_GPU_HOURS = 5689
PAPER_NEAR = 0.15             # as a number's verdict (hermes.study.report.NEAR)
QUICK_NEAR = 0.1              # a lead in tokens per joule that a quick run is sure of
FULL = 0.98                   # peak share of the KV memory; blocks are handed out whole
PARAMETERS = 70.55e9          # of Llama-3.1-70B
BF16_PEAK = 2 * 989.5e12      # FLOP/s of two H100 SXM, dense


def table_3(grids: Sequence[pd.DataFrame], ttft: str, ranked: str) -> Table:
    """Return Table III cell by cell. grids: one for each seed; the outcomes of the others are in the last columns."""
    found, *others = (cells(grid, ttft, ranked) for grid in grids)
    for number, other in enumerate(others, 2):
        found[f"seed {number}"] = other.outcome
    return Table("table-3", "Table III, cell by cell", found,
                 f"here: systems that meet all six SLOs and are within {NEAR:.0%} of the best, best first; "
                 f"tie: some of them are what the paper recommends; TTFT: {ttft.rpartition('.')[2]}.")


def cells(grid: pd.DataFrame, ttft: str, ranked: str) -> pd.DataFrame:
    """Compare Table III with a grid that has one budget of chunked batching (`choose_budget`).

    Args:
        ttft: Column of the TTFT.
        ranked: Column of the SLOs that a system must meet to be ranked by its TTFT.
    """
    found = []
    simulated = set(grid.system)
    for (lengths, pipeline, system), texts in TABLE_3.items():
        if system not in simulated:
            continue
        every = grid[(grid.lengths == lengths) & (grid.pipeline == pipeline) & (grid.system == system)]
        for objective, text in zip(OBJECTIVES, texts, strict=True):
            mine = every[every[ranked if objective == "TTFT" else "slo.pass"].astype(bool)]
            for name, (low, high) in BANDS.items():
                band = name.split()[0]
                paper = recommended(text, band)
                if not paper or (pipeline == "rag" and low > 3):   # the paper's RAG rates end at 3.5
                    continue
                best, rate = best_systems(mine[(mine.rate >= low) & (mine.rate <= high)], objective, ttft)
                found.append({
                    "lengths": lengths, "pipeline": pipeline, "system": system, "objective": objective,
                    "rates": band, "paper": ", ".join(paper), "here": ", ".join(best) or "none",
                    "at": rate, "outcome": outcome(best, paper)})
    return pd.DataFrame(found)


def part_of_peak(grid: pd.DataFrame) -> Table:
    """Return the share of two H100's bf16 peak that each rate asks for: 2 FLOP a parameter and token, without
    attention."""
    rows = []
    for (pipeline, lengths), group in grid.groupby(["pipeline", "lengths"], sort=False):
        first = group.iloc[0]
        computed = first["tokens.prompt"] + first["tokens.output"] - _cached(first)
        flop = 2 * PARAMETERS * computed / first["requests.completed"]
        rows.append({"pipeline": pipeline, "lengths": lengths, "TFLOP a request": flop / 1e12,
                     **{f"{rate:g}/s": flop * rate / BF16_PEAK for rate in (1, 2, 3.5, 5, 6)},
                     "90% at": 0.9 * BF16_PEAK / flop})
    frame = pd.DataFrame(rows)
    return Table("peak", "Share of two H100's bf16 peak that a rate per client asks for", frame,
                 "Above 0.9 no bf16 system keeps up; fp8 has twice the peak. RAG rates of the paper end at 3.5.",
                 {name: 2 for name in frame.columns if name.endswith("/s") or name == "90% at"})


def _cached(row: pd.Series) -> float:
    cached = row.get("tokens.cached", 0)
    return float(cached) if cached == cached and cached is not None else 0.0


def compared(grid: pd.DataFrame, ttft: str, ranked: str, quick: bool = False) -> list[Compared]:
    """Return the paper's figures.

    Args:
        grid: Normalised, with one budget of chunked batching.
        ttft, ranked: As in `cells`.
        quick: Whether the windows are so short that they move a rate by a step: verdicts that this turns are not
            settled.
    """
    rows = []
    highest = highest_rates(grid, BY)
    for (pipeline, lengths), names in HIGHEST.items():
        rates = _row(highest, "large", pipeline, lengths)
        if len(rates):
            step, best = RATE_STEPS[pipeline], float(rates.iloc[0])
            behind = max(best - _of(rates, name) for name in names) / step
            rows.append(Compared(
                f"{pipeline}, {lengths}, 32 clients: highest rate, requests/s and client", " and ".join(names),
                _listed(rates), _ends(grid, "large", pipeline, lengths), 2, FIGURES[pipeline], (best, best),
                agrees=behind < 1.5, settled=not quick or abs(behind - 1.5) > 1))
            rows.append(Compared(
                f"{pipeline}, {lengths}, 32 clients: the same, chunked over the best split", None,
                _ratio(float(rates.get("chunked", 0.0)), _of(rates, "disaggregated")),
                f"rates are multiples of {step:g}", 2, FIGURES[pipeline], neutral=1))
    for lengths in ("code", "conv"):
        mine = _met(grid, "large", "plain", lengths)
        if len(mine):
            top = mine.groupby("strategy")["rel_tpj"].max().sort_values(ascending=False)
            lead = _of(top, "20P/12D") / float(top.drop("20P/12D", errors="ignore").max())
            rows.append(Compared(
                f"plain, {lengths}, 32 clients: most tokens per joule, of continuous at the lowest rate", "20P/12D",
                _listed(top, 2), _at_common_rate(mine), 2, "Fig. 10", (float(top.iloc[0]),) * 2,
                agrees=lead >= 1 - NEAR, settled=not quick or abs(lead - 1) > QUICK_NEAR))
            low = 1e3 * mine[mine.rate == 2].set_index("strategy")[ttft].sort_values()
            if lengths == "conv" and len(low):
                near = [str(name) for name in low[low <= low.iloc[0] * (1 + NEAR)].index]
                rows.append(Compared(
                    "plain, conv, 32 clients: TTFT at 2 requests/s and client, ms", "20P/12D lowest", _listed(low, 0),
                    f"within {NEAR:.0%} of the lowest: {', '.join(near)}", 1, "Fig. 10", (float(low.iloc[0]),) * 2,
                    agrees="20P/12D" in near,
                    settled=not quick or abs(low.get("20P/12D", np.inf) / low.iloc[0] - 1 - NEAR) > NEAR / 2))
    whole = set(grid.pipeline) == {pipeline for _, pipeline, _ in TABLE_3}
    found = cells(grid, ttft, ranked) if whole else pd.DataFrame()
    for objective in OBJECTIVES if whole else ():
        mine = found[found.objective == objective]
        part = share(list(mine.outcome))
        rows.append(Compared(
            f"Table III, {objective}: cells that agree (interval: of all cells)", "all",
            tally(list(mine.outcome)), _others(mine), 2, "Table III", (part, part), agrees=part >= 1 - PAPER_NEAR,
            settled=not quick))
    rows += [Compared(
        f"Table III, {cell['lengths']}, {cell['pipeline']}, {cell['system']}, {cell['rates']} rates: "
        f"{cell['objective']}", cell["paper"], cell["here"],
        cell["outcome"] + ("" if pd.isna(cell["at"]) else f", at {cell['at']:g} requests/s and client"),
        where="Table III", agrees=cell["outcome"] == AGREE,
        settled=not quick and cell["outcome"] in (AGREE, DISAGREE),
        qualifier="not comparable" if cell["outcome"] == NONE_MEETS and not quick else "")
        for cell in found.to_dict("records")]
    for lengths in ("conv", "code"):
        rates = _row(highest, "small", "plain", lengths)
        if len(rates):
            rows.append(Compared(
                f"plain, {lengths}, 4 clients: highest rate, requests/s and client", None, _listed(rates),
                _ends(grid, "small", "plain", lengths), 2, interval=(float(rates.iloc[0]),) * 2))
    return rows


def effort(grids: Sequence[pd.DataFrame], quick: bool) -> list[Compared]:
    """Return the size of the study, and how long it takes to simulate."""
    hours, core_s = (float_sum(float(grid[name].sum()) for grid in grids) for name in ("device_hours", "core_s"))
    return [
        Compared("size of the study, GPU-hours simulated", PAPER_GPU_HOURS, hours,
                 f"{sum(map(len, grids)):,} points; the paper does not give its windows", 0, "text",
                 settled=not quick),
        Compared("GPU-hours simulated per hour of a core, one digit", "44 (8 hours on 16 cores)",
                 float(f"{3600 * hours / core_s:.1g}"), f"{core_s:.0f} s of CPU time, of this machine", 0, "text",
                 agrees=3600 * hours / core_s >= PAPER_GPU_HOURS / (8 * 16)),
    ]


def _listed(values: pd.Series, digits: int | None = None) -> str:
    return ", ".join(f"{name} {value:g}" if digits is None else f"{name} {value:.{digits}f}"
                     for name, value in values.items())


def _ratio(one: float, other: float) -> float | None:
    return one / other if other else None


def _of(values: pd.Series, name: str) -> float:
    """Return the value of a system, or the highest of those of its kind."""
    return max((float(value) for system, value in values.items() if name in (system, kind(str(system)))), default=0.0)


def _met(grid: pd.DataFrame, *key: str) -> pd.DataFrame:
    """Return the points of a system, pipeline and lengths that meet all six SLOs."""
    mine = grid[grid["slo.pass"].astype(bool)]
    for name, value in zip(BY, key, strict=True):
        mine = mine[mine[name] == value]
    return mine


def _row(highest: pd.DataFrame, *key: str) -> pd.Series:
    """Return the rates of a system, pipeline and lengths by strategy, highest first; empty if they were not asked."""
    for row in highest.to_dict("records"):
        if tuple(row[name] for name in BY) == key:
            rates = pd.Series({name: rate for name, rate in row.items() if name not in BY}, dtype=float)
            return rates.dropna().sort_values(ascending=False, kind="stable")
    return pd.Series(dtype=float)


def _ends(grid: pd.DataFrame, *key: str) -> str:
    """Return what ends each system at the first rate past its highest: SLOs, and the KV memory if it is full."""
    mine = grid
    for name, value in zip(BY, key, strict=True):
        mine = mine[mine[name] == value]
    ended: dict[str, list[str]] = {}
    for strategy, group in mine.groupby("strategy", sort=False):
        good = group[group["slo.pass"].astype(bool)].rate.max()
        past = group[~(group.rate <= good)].sort_values("rate")
        if past.empty:
            continue
        at = past.iloc[0]
        missed = [name.upper() for name in ("ttft", "tpot")
                  if not all(at[f"slo.{name}_{p}.pass"] for p in ("p50", "p90", "p99"))]
        reason = " and ".join(missed) + (" with full KV memory" if at["kv.peak_share"] > FULL else "")
        ended.setdefault(reason, []).append(str(strategy))
    return "ends by " + "; by ".join(f"{reason}: {', '.join(names)}" for reason, names in ended.items())


def _at_common_rate(mine: pd.DataFrame) -> str:
    """Return the tokens per joule at the highest rate that most systems take."""
    counts = mine.groupby("rate").strategy.nunique()
    rate = float(counts[counts == counts.max()].index.max())
    same = mine[mine.rate == rate].set_index("strategy")["rel_tpj"].sort_values(ascending=False)
    return f"at {rate:g} requests/s, which {len(same)} take: {_listed(same, 2)}"


def _others(found: pd.DataFrame) -> str:
    """Return the kinds that are best here where the paper has another."""
    wrong = found[found.outcome == DISAGREE]
    if wrong.empty:
        return "no cell has another best"
    counts = pd.Series([f"{kind(row['here'].split(', ')[0])} for {row['paper'].replace(', ', ' or ')}"
                        for row in wrong.to_dict("records")]).value_counts()
    return "best here: " + ", ".join(f"{name} ({count})" for name, count in counts.items())
