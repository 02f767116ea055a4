"""Table III of the paper (arXiv 2504.09775): the recommended batching by objective and band of rates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pandas as pd

__all__ = ["AGREE", "DISAGREE", "NEAR", "NONE_MEETS", "OBJECTIVES", "TIE", "agrees", "best_systems", "kind", "outcome",
           "recommended", "share", "tally"]

NEAR = 0.02
"""Systems within 2% of the best share its place: two windows differ by as much."""
OBJECTIVES = ("TTFT", "throughput", "throughput per energy")
AGREE, TIE, DISAGREE, NONE_MEETS = "agrees", "tie", "disagrees", "nothing meets the SLOs"
"""Outcomes of a cell."""


def kind(strategy: str) -> str:
    """Return the kind of batching of a system's name: continuous, chunked, or disaggregated for a split."""
    return "disaggregated" if "D" in strategy else strategy.split()[0]


def recommended(text: str, band: str) -> tuple[str, ...]:
    """Return the kinds that an entry recommends in a band: ("chunked",) of "chunked (high)". An entry without a band
    holds for all."""
    parts = [re.fullmatch(r"(\w+)(?: \((\w+)\))?", part.strip()) for part in text.split(",")]
    return tuple(part[1] for part in parts if part is not None and part[2] in (None, band))


def best_systems(inside: pd.DataFrame, objective: str, ttft: str) -> tuple[tuple[str, ...], float | None]:
    """Return the systems within `NEAR` of the best, best first, and the rate at which the best was found.

    Throughput and energy: the best over all rates. TTFT: at the highest rate that two systems sustain, or one; there
    all are asked the same.

    Args:
        inside: Points of a band that meet the SLOs.
        ttft: Column of the TTFT.
    """
    if inside.empty:
        return (), None
    if objective == "TTFT":
        count = inside.groupby("rate").strategy.nunique()
        rate = float(count[count >= min(2, count.max())].index.max())
        values = inside[inside.rate == rate].set_index("strategy")[ttft].sort_values()
        return tuple(values[values <= values.iloc[0] * (1 + NEAR)].index), rate
    column = "throughput.output_tokens_per_s" if objective == "throughput" else "energy.output_tokens_per_j"
    values = inside.groupby("strategy")[column].max().sort_values(ascending=False)
    rate = float(inside.sort_values(column).rate.iloc[-1])
    return tuple(values[values >= values.iloc[0] * (1 - NEAR)].index), rate


def agrees(best: Iterable[str], paper: Iterable[str]) -> str:
    """Return yes, no, or "-" if nothing meets the SLOs: whether one of the best is of a kind that the paper
    recommends."""
    return {AGREE: "yes", TIE: "yes", DISAGREE: "no", NONE_MEETS: "-"}[outcome(best, paper)]


def outcome(best: Iterable[str], paper: Iterable[str]) -> str:
    """Return the outcome of a cell: `AGREE` if all of the best are of kinds that the paper recommends, `TIE` if some
    are, `DISAGREE` if none is, `NONE_MEETS` if no system meets the SLOs."""
    found, wanted = {kind(name) for name in best}, set(paper)
    if not found:
        return NONE_MEETS
    if found <= wanted:
        return AGREE
    return TIE if found & wanted else DISAGREE


def share(outcomes: Sequence[str]) -> float:
    """Return the share of all cells that agree. Ties do not, nor do cells in which nothing meets the SLOs."""
    return outcomes.count(AGREE) / len(outcomes)


def tally(outcomes: Sequence[str]) -> str:
    """Return the outcomes in words, as in "17 of 21 agree, 1 tie, 3 disagree; in 11 nothing meets the SLOs"."""
    agree, tie, disagree, none = (outcomes.count(name) for name in (AGREE, TIE, DISAGREE, NONE_MEETS))
    words = f"{agree} of {agree + tie + disagree} agree, {tie} tie, {disagree} disagree"
    return words + (f"; in {none} nothing meets the SLOs" if none else "")
