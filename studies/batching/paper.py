"""The paper's figures 10 to 12 and Table III (arXiv 2504.09775), beside those of the grid."""

from __future__ import annotations

import pandas as pd

from hermes.study import Compared, Table

from ..common.table_3 import NEAR, OBJECTIVES, agrees, best_systems, kind, recommended
from .tables import BANDS, BY, highest_rates

__all__ = ["compared", "part_of_peak", "table_3"]

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
PARAMETERS = 70.55e9          # of Llama-3.1-70B
BF16_PEAK = 2 * 989.5e12      # FLOP/s of two H100 SXM, dense


def table_3(grid: pd.DataFrame, ttft: str, ranked: str) -> Table:
    """Return Table III cell by cell."""
    return Table("table-3", "Table III, cell by cell", cells(grid, ttft, ranked),
                 f"here: systems that meet all six SLOs and are within {NEAR:.0%} of the best, best first; "
                 f"TTFT: {ttft.rpartition('.')[2]}.")


def cells(grid: pd.DataFrame, ttft: str, ranked: str) -> pd.DataFrame:
    """Compare Table III with a grid that has one budget of chunked batching (`choose_budget`).

    Args:
        ttft: Column of the TTFT.
        ranked: Column of the SLOs that a system must meet to be ranked by its TTFT.
    """
    found = []
    for (lengths, pipeline, system), texts in TABLE_3.items():
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
                    "rates": band, "paper": ", ".join(paper), "here": ", ".join(best) or "none meets the SLOs",
                    "at": rate, "agrees": agrees(best, paper)})
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


def compared(grid: pd.DataFrame, ttft: str, ranked: str) -> list[Compared]:
    """Return the paper's figures. grid: normalised, with one budget of chunked batching; the others as in `cells`."""
    rows = []
    highest = highest_rates(grid, BY)
    for number, pipeline, lengths, paper in (
        ("10", "plain", "code", "chunked and disaggregated"), ("10", "plain", "conv", "20P/12D"),
        ("11", "rag", "code", "chunked and 20P/12D"), ("11", "rag", "conv", "chunked and 20P/12D"),
        ("12", "kv-retrieval", "code", "chunked"), ("12", "kv-retrieval", "conv", "chunked"),
    ):
        rates = _row(highest, "large", pipeline, lengths)
        if len(rates):
            rows.append(Compared(f"Fig. {number}, {lengths}: highest rate, requests/s and client", paper,
                                 ", ".join(f"{name} {rate:g}" for name, rate in rates.items()), _why(rates)))
            split = max(rate for name, rate in rates.items() if kind(str(name)) == "disaggregated")
            rows.append(Compared(f"Fig. {number}, {lengths}: highest rate, chunked over the best split",
                                 "1 or more" if "chunked" in paper else "below 1",
                                 float(rates.get("chunked", 0.0)) / split if split else None, _why(rates), 2))
    for lengths, paper in (("code", "20P/12D"), ("conv", "20P/12D")):
        mine = grid[(grid.system == "large") & (grid.pipeline == "plain") & (grid.lengths == lengths)
                    & grid["slo.pass"].astype(bool)]
        if len(mine):
            top = mine.groupby("strategy")["rel_tpj"].max().sort_values(ascending=False)
            rows.append(Compared(f"Fig. 10, {lengths}: tokens per joule, of continuous at the lowest rate", paper,
                                 ", ".join(f"{name} {value:.2f}" for name, value in top.items()),
                                 "idle cards draw 70 W: whoever takes the highest rate spreads them over most tokens"))
            low = mine[mine.rate == 2].set_index("strategy")[ttft].sort_values()
            if lengths == "conv" and len(low):
                rows.append(Compared("Fig. 10, conv: TTFT at 2 requests/s and client, ms", paper,
                                     ", ".join(f"{name} {1e3 * value:.0f}" for name, value in low.items()),
                                     "a prompt waits for other prompts alone where no client decodes beside it"))
    whole = set(grid.pipeline) == {pipeline for _, pipeline, _ in TABLE_3}
    found = cells(grid, ttft, ranked)
    for objective in OBJECTIVES if whole else ():
        mine = found[found.objective == objective]
        met = mine[mine.agrees != "-"]
        agree = int((met.agrees == "yes").sum())
        rows.append(Compared(f"Table III, {objective}: share of the cells that agree", 1.0,
                             agree / len(met) if len(met) else None,
                             f"{agree} of {len(met)} cells, nothing meets the SLOs in {len(mine) - len(met)} more; "
                             + _disagree(met[met.agrees == "no"]), 2))
    for lengths in ("conv", "code"):
        rates = _row(highest, "small", "plain", lengths)
        if len(rates):
            rows.append(Compared(f"small, plain, {lengths}: highest rate, requests/s and client", None,
                                 ", ".join(f"{name} {rate:g}" for name, rate in rates.items()), _why(rates)))
    return rows


def _row(highest: pd.DataFrame, *key: str) -> pd.Series:
    """Return the rates of a system, pipeline and lengths by strategy, highest first; empty if they were not asked."""
    for row in highest.to_dict("records"):
        if tuple(row[name] for name in BY) == key:
            rates = pd.Series({name: rate for name, rate in row.items() if name not in BY}, dtype=float)
            return rates.dropna().sort_values(ascending=False, kind="stable")
    return pd.Series(dtype=float)


def _why(rates: pd.Series) -> str:
    split = max((float(rate) for name, rate in rates.items() if "D" in str(name)), default=0.0)
    shared = max((float(rate) for name, rate in rates.items() if "D" not in str(name)), default=0.0)
    if split > shared:
        return "a decode waits for no prompt in a split; sharing ends by TPOT"
    if shared > split:
        return "all clients compute prompts and hold KV; a split ends by the kind of which it has too few"
    return "both end at the same rate of the grid"


def _disagree(wrong: pd.DataFrame) -> str:
    """Return the kinds that are best here where the paper has another."""
    if wrong.empty:
        return "the same everywhere"
    counts = pd.Series([f"{kind(row['here'].split(', ')[0])} for {row['paper'].replace(', ', ' or ')}"
                        for row in wrong.to_dict("records")]).value_counts()
    return "here " + ", ".join(f"{name} ({count})" for name, count in counts.items())
