"""The paper's claims on Fig. 15 beside the study's figures: the best store by T90, and the price of recomputing.

T90 is the 90th percentile of the end-to-end latency. Each cell gives the three modes, since the order depends on them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hermes.study import Compared

from .points import MODES, Setup, context_bytes, dcn_used, store_of
from .runs import PASTS, POPULATIONS, Found

__all__ = ["compared"]

STORES = ("A", "B", "C", "C+DCN")
PAPER = {"private": "B", "shared": "C"}
TIE = 0.01   # designs whose T90 differ by less are not told apart


def compared(found: list[Found], folder: Path) -> list[Compared]:
    """Return one row per claim; folder: of the designs' scenarios."""
    t90 = {(f.setup.population, f.setup.past, f.setup.mode, f.setup.design): f for f in found}
    every = [(population, past) for population in POPULATIONS for past in PASTS]
    return [*(_best(t90, *where, folder) for where in every), *(_recompute(t90, past) for past in PASTS),
            _dcn(t90, folder)]


Points = dict[tuple[str, int, str, str], Found]


def _s(found: Found) -> float:
    return float(found.row["latency.e2e_s.p90"])


def _ranked(points: Points, population: str, past: int, mode: str) -> list[tuple[str, float]]:
    """Return (store, T90) of a system, the best first."""
    pairs = [(design, _s(points[population, past, mode, design])) for design in STORES]
    return sorted(pairs, key=lambda pair: pair[1])


def _recomputing(points: Points, past: int) -> Found:
    return points["private", past, "contention", "recompute"]   # simulated once: it has neither store nor mode


def _short(past: int) -> str:
    return f"{past // 1024}K"


def _best(points: Points, population: str, past: int, folder: Path) -> Compared:
    """Return the best store of a population, with the next one, in each mode."""
    cells, agree, ties = [], [], []
    for mode in MODES:
        (first, best_s), (second, next_s), *_ = _ranked(points, population, past, mode)
        cells.append(f"{mode}: {first} {best_s:.1f} s ({second} {next_s:.1f})")
        near = [d for d, t in _ranked(points, population, past, mode) if t <= (1 + TIE) * best_s]
        if PAPER[population] in near:
            agree.append(mode)
        if len(near) > 1:
            ties.append(f"{mode} does not tell {', '.join(near)} apart")
    paper = PAPER[population]
    said = (f"{paper} is best, or within {TIE:.0%} of it, in {', '.join(agree)}" if agree
            else "No mode has the paper's order")
    growing = [mode for mode in MODES
               if points[population, past, mode, _ranked(points, population, past, mode)[0][0]].stable is False]
    if growing:
        ties.append(f"the best is not stable in {', '.join(growing)}, so that T90 grows with the window")
    cause = _served(points[population, past, "computed", "A"].setup, folder)
    if population == "shared":
        cause = f"{_hits(points, past)}; {cause}"
    return Compared(f"best T90, {population}, {_short(past)}", paper, "; ".join(cells),
                    "; ".join([said, *ties, cause]) + ".")


def _served(setup: Setup, folder: Path) -> str:
    """Return what a store's distance costs: the time of a read by itself."""
    reads = []
    for design in STORES[:3]:
        store = store_of(replace(setup, design=design), folder)
        assert store is not None
        reads.append(f"{design} {1e3 * context_bytes(setup) / store['bandwidth']:.0f} ms")
    return f"a read alone takes {', '.join(reads)}" + (
        "; A ties a user to one client, B to four, C to 32" if setup.population == "private" else "")


def _hits(points: Points, past: int) -> str:
    rates = {design: points["shared", past, "computed", design].row["fetch.found"] for design in STORES}
    return "found: " + ", ".join(f"{design} {100 * rate:.0f}%" for design, rate in rates.items())


def _recompute(points: Points, past: int) -> Compared:
    """Return T90 of recomputing over that of the best store, for private and shared contexts."""
    mine = _recomputing(points, past)
    cells = []
    for mode in MODES:
        ratios = [_s(mine) / _ranked(points, population, past, mode)[0][1] for population in POPULATIONS]
        cells.append(f"{mode}: {ratios[0]:.2f} private, {ratios[1]:.2f} shared")
    state = "sustains the rate" if mine.stable else "does not sustain the rate, so that its T90 grows with the window"
    return Compared(f"T90 of recomputing over the best store's, {_short(past)}",
                    "competitive" if past == PASTS[0] else "prohibitive", "; ".join(cells),
                    f"Recomputing takes {_s(mine):.1f} s and {state}.")


def _dcn(points: Points, folder: Path) -> Compared:
    """Return T90 of C+DCN over that of C, lowest and highest of both populations, in each mode."""
    cells, used = [], []
    for past in PASTS:
        ratios = {mode: [_s(points[pop, past, mode, "C+DCN"]) / _s(points[pop, past, mode, "C"])
                         for pop in POPULATIONS] for mode in MODES}
        cells.append(f"{_short(past)}: " + ", ".join(
            f"{mode} {min(each):.2f} to {max(each):.2f}" for mode, each in ratios.items()))
        setups = [points[population, past, "computed", "C+DCN"].setup for population in POPULATIONS]
        shares = [dcn_used(setup, store, folder) for setup in setups if (store := store_of(setup, folder)) is not None]
        used.append(f"{100 * max(share or 0.0 for share in shares):.0f}% ({_short(past)})")
    return Compared("T90 of C+DCN over C's", "unattractive", "; ".join(cells),
                    "Three of four fetches cross the links between racks, which takes 20 ms and "
                    f"{', '.join(used)} of the links' bandwidth; a shared context lies in one rack only, so that "
                    "C+DCN finds at least as many as C.")
