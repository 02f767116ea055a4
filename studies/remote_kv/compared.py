"""The paper's claims on Fig. 15 beside the study's figures: the best store by T90, and the price of recomputing.

T90 is the 90th percentile of the end-to-end latency. The order depends on the mode: all three are in one cell, or in
rows of their own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hermes.study import Compared

from .points import MODES, Setup, context_bytes, dcn_used, hit_share, store_of
from .runs import PASTS, POPULATIONS, Found

__all__ = ["compared"]

STORES = ("A", "B", "C", "C+DCN")
PAPER = {"private": "B", "shared": "C"}
TIE = 0.01   # designs whose T90 differ by less are not told apart


def compared(found: list[Found], folder: Path) -> list[Compared]:
    """Return the rows of each claim; folder: of the designs' scenarios."""
    t90 = {(f.setup.population, f.setup.past, f.setup.mode, f.setup.design): f for f in found}
    every = [(population, past) for population in POPULATIONS for past in PASTS]
    return [*(_best(t90, *where, folder) for where in every),
            *(_recompute(t90, past, mode) for past in PASTS for mode in MODES),
            *(_dcn(t90, past, mode, folder) for past in PASTS for mode in MODES)]


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


def _recompute(points: Points, past: int, mode: str) -> Compared:
    """Return T90 of recomputing over that of the best store, lowest and highest of both populations."""
    mine = _recomputing(points, past)
    best = [_ranked(points, population, past, mode)[0] for population in POPULATIONS]
    ratios = [_s(mine) / best_s for _, best_s in best]
    state = {True: "sustains the rate", False: "does not sustain the rate, so that its T90 grows with the window",
             None: "has a window too short to tell whether it sustains the rate"}[mine.stable]
    return Compared(f"T90 of recomputing over the best store's, {_short(past)}, {mode}",
                    "competitive" if past == PASTS[0] else "prohibitive", (min(ratios), max(ratios)),
                    f"Recomputing takes {_s(mine):.1f} s and {state}; the best store takes "
                    f"{best[0][1]:.1f} s (private, {best[0][0]}) and {best[1][1]:.1f} s (shared, {best[1][0]}).")


def _dcn(points: Points, past: int, mode: str, folder: Path) -> Compared:
    """Return T90 of C+DCN over that of C, lowest and highest of both populations."""
    ratios, used, more = [], [], []
    for population in POPULATIONS:
        remote, near = (points[population, past, mode, design] for design in ("C+DCN", "C"))
        ratios.append(_s(remote) / _s(near))
        store = store_of(remote.setup, folder)
        assert store is not None
        used.append(dcn_used(remote.setup, store, folder) or 0.0)
        more.append(hit_share(remote.setup, store) - hit_share(near.setup, store))
    return Compared(f"T90 of C+DCN over C's, {_short(past)}, {mode}", "unattractive", (min(ratios), max(ratios)),
                    "Three of four fetches cross the links between racks, which takes 20 ms and up to "
                    f"{100 * max(used):.0f}% of the links' bandwidth; each shared context lies in one rack only, so "
                    f"that C+DCN's stores hold {100 * max(more):.0f} points more of what is asked for.")
