"""The paper's claims on Fig. 15 beside the study's figures: the best store by T90, the price of recomputing, and what
the network between racks brings.

T90 is the 90th percentile of the end-to-end latency, in the mode that the study assumes. Ratios are of means over
seeds; their intervals are the lowest and highest of one seed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hermes.study import Compared
from hermes.sums import float_sum

from .points import Setup, context_bytes, dcn_used, hit_share, store_of
from .runs import PASTS, POPULATIONS, Found

__all__ = ["compared"]

STORES = ("A", "B", "C", "C+DCN")
PAPER = {"private": "B", "shared": "C"}
COMPETITIVE = 2.0    # times the best store's T90
GAIN = 0.02          # of T90, for which a network between racks is worth its while
AXIS_S = 7.5         # where the axes of figure 15 end
MARGIN = 0.01        # nearer to a limit, one seed does not say on which side it is

Points = dict[tuple[str, int, str], Found]


def compared(found: list[Found], mode: str, folder: Path) -> list[Compared]:
    """Return a row for each claim, population and length; folder: of the designs' scenarios."""
    points = {(f.setup.population, f.setup.past, f.setup.design): f for f in found
              if mode == f.setup.mode or f.setup.design == "recompute"}
    every = [(population, past) for population in POPULATIONS for past in PASTS]
    return [_corpus(points), *(_best(points, *where, folder) for where in every),
            *(_recompute(points, *where) for where in every), *(_dcn(points, *where, folder) for where in every)]


def _corpus(points: Points) -> Compared:
    keys = [points["shared", past, "A"].setup.keys for past in PASTS]
    tokens = [float(past * count) for past, count in zip(PASTS, keys, strict=True)]
    return Compared("tokens of all shared contexts", 1e10, tokens[0] if min(tokens) == max(tokens) else
                    (min(tokens), max(tokens)), " or ".join(
        f"{count:,} contexts of {_short(past)} tokens" for past, count in zip(PASTS, keys, strict=True)),
        where="section V.B", qualifier="given")


def _ratios(over: Found, under: Found) -> tuple[float, tuple[float, float] | None]:
    """Return the ratio of two mean T90, and the lowest and highest of one seed; None for a single seed."""
    each = [a / b for a, b in zip(over.t90, under.t90, strict=True)]
    return float_sum(over.t90) / float_sum(under.t90), (min(each), max(each)) if len(each) > 1 else None


def _told(ratio: float, interval: tuple[float, float] | None, limit: float) -> bool:
    """Whether the ratio lies on one side of the limit: with every seed, or by `MARGIN` with one."""
    return abs(ratio / limit - 1) > MARGIN if interval is None else not interval[0] <= limit <= interval[1]


def _regime(*found: Found) -> str:
    """Return "not comparable" for growing queues, and for a T90 beyond the axes of the paper's figure."""
    return "not comparable" if any(f.stable is False or float_sum(f.t90) / len(f.t90) > AXIS_S for f in found) else ""


def _stores(points: Points, population: str, past: int) -> list[Found]:
    """Return the stores of a system, that of the lowest T90 first."""
    return sorted((points[population, past, design] for design in STORES), key=lambda found: float_sum(found.t90))


def _s(found: Found) -> str:
    return f"{found.setup.design} {float_sum(found.t90) / len(found.t90):.1f} s" + (
        " (not stable)" if found.stable is False else "")


def _short(past: int) -> str:
    return f"{past // 1024}K"


def _best(points: Points, population: str, past: int, folder: Path) -> Compared:
    """Return T90 of the store that the paper calls best over that of the best of the others."""
    ranked, name = _stores(points, population, past), PAPER[population]
    mine = points[population, past, name]
    second = next(f for f in ranked if f is not mine)
    ratio, interval = _ratios(mine, second)
    found = ", ".join(f"{d} {100 * points[population, past, d].mean('fetch.found'):.0f}%" for d in STORES)
    return Compared(
        f"T90 of {name} over the best of the other stores', {population}, {_short(past)}", f"{name} is best", ratio,
        f"{', '.join(map(_s, ranked))}; found: {found}; a read alone: {_reads(mine.setup, folder)}", 3, "Fig. 15",
        interval, agrees=ratio <= 1, settled=_told(ratio, interval, 1.0), qualifier=_regime(mine, second))


def _reads(setup: Setup, folder: Path) -> str:
    """Return the time of a read by itself in each design."""
    reads = []
    for design in STORES[:3]:
        store = store_of(replace(setup, design=design), folder)
        assert store is not None
        reads.append(f"{design} {1e3 * context_bytes(setup) / store['bandwidth']:,.0f} ms")
    return ", ".join(reads)


def _recompute(points: Points, population: str, past: int) -> Compared:
    """Return T90 of recomputing over that of the best store."""
    mine = points["private", past, "recompute"]   # it has no store, so that the population does not matter
    best = _stores(points, population, past)[0]
    ratio, interval = _ratios(mine, best)
    paper = "competitive" if past == PASTS[0] else "prohibitive"
    return Compared(
        f"T90 of recomputing over the best store's, {population}, {_short(past)}", paper, ratio,
        f"{_s(mine)}, {_s(best)}; competitive is taken as at most {COMPETITIVE:g} times", 2, "Fig. 15", interval,
        agrees=(ratio <= COMPETITIVE) == (paper == "competitive"), settled=_told(ratio, interval, COMPETITIVE),
        qualifier=_regime(mine, best))


def _dcn(points: Points, population: str, past: int, folder: Path) -> Compared:
    """Return T90 of C+DCN over that of C."""
    remote, near = (points[population, past, design] for design in ("C+DCN", "C"))
    ratio, interval = _ratios(remote, near)
    store = store_of(remote.setup, folder)
    assert store is not None
    more = hit_share(remote.setup, store) - hit_share(near.setup, store)
    return Compared(
        f"T90 of C+DCN over C's, {population}, {_short(past)}", "unattractive", ratio,
        f"its fetches ask for {100 * (dcn_used(remote.setup, store, folder) or 0):.0f}% of the links' bandwidth; its "
        f"stores hold {100 * more:.0f} points more of what is asked for; a gain below {GAIN:.0%} is taken as none",
        3, "Fig. 15", interval, agrees=ratio > 1 - GAIN, settled=_told(ratio, interval, 1 - GAIN),
        qualifier=_regime(remote, near))
