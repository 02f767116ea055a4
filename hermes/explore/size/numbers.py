"""Which numbers of clients `hermes size` simulates of one layout: generators that yield them and get the results."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING

from hermes.explore.bracket import Bracket
from hermes.explore.objective import is_ended
from hermes.explore.size_check import misses_by_far

if TYPE_CHECKING:
    from hermes.explore.size import Tried

__all__ = ["Numbers", "Search", "least_split", "mixed", "split"]

MORE = 1.25           # clients after a miss, as a factor
OVERLOADED = 0.8      # served rate of the whole run, drain included, over the offered one, below which clients are full
MOST_PD = 16          # simulations of a pd layout

Numbers = tuple[int, ...]
Search = Generator[Numbers, "Tried", "Tried | None"]   # yields clients to try, takes the result, returns the best


def mixed(most: int, start: int = 1) -> Search:
    """Search for the fewest clients. start: A lower bound, from which the search begins."""
    bracket = Bracket(-min(start, most), 1, lowest=-most, highest=-1)
    results: dict[int, Tried] = {}
    while (level := bracket.choose()) is not None:
        tried = yield (-level,)
        results[level] = tried
        bracket.known[level] = tried.misses is None
        if tried.misses is not None:
            bracket.hint = -min(most, max(_needed(tried) or 0, math.ceil(MORE * -level), 1 - level))
    low = bracket.meets_up_to
    return None if low is None else results[low]


def _needed(tried: Tried) -> int | None:
    """Return how many such clients serve the offered rate, by what the overloaded ones served; None if that is not
    known."""
    if is_ended(tried.row):
        return None
    offered: float | None = tried.row.get("headline.offered_per_s")
    served: float | None = tried.row.get("throughput.requests_per_s")   # of the whole run: a queue that grows
    if not offered or not served or served > OVERLOADED * offered:
        return None
    return math.ceil(sum(tried.clients) * offered / served)


def split(start: Tried, most: int) -> Search:
    """Search for the fewest prefill and decode clients, from the mixed answer or the most that was tried."""
    total = max(2, min(sum(start.clients), most))
    prompts, answers = start.row.get("energy.prefill_j") or 0.0, start.row.get("energy.decode_j") or 0.0
    share = prompts / (prompts + answers) if prompts + answers else 0.5
    prefill = min(max(1, round(total * share)), total - 1)
    now: Numbers = (prefill, total - prefill)
    results: dict[Numbers, Tried] = {}
    best: Tried | None = None
    while len(results) < MOST_PD:
        tried = results[now] = yield now
        if tried.misses is None and (best is None or tried.devices < best.devices):
            best = tried
        following = _next_split(tried, best, results, most)
        if following is None:
            break
        now = following
    return best


def _next_split(tried: Tried, best: Tried | None, results: Mapping[Numbers, Tried], most: int) -> Numbers | None:
    """Return the split to try next: one more where something is missed, one less once the SLO is met."""
    if best is None:
        prefill, decode = tried.clients
        short = _short_side(tried)
        step = max(1, round((MORE - 1) * (prefill if short == "prefill" else decode)))
        moved = (prefill + 1, decode - 1) if short == "prefill" else (prefill - 1, decode + 1)
        if step == 1 and min(moved) >= 1 and not _hopeless(moved, results):
            return moved   # it would be tried after one more
        step = min(step, max(1, most - prefill - decode))   # as far as there is room
        now = (prefill + step, decode) if short == "prefill" else (prefill, decode + step)
        if sum(now) > most and min(tried.clients) > 1:   # no room for more
            now = moved
        return None if sum(now) > most or min(now) < 1 or now in results else now
    prefill, decode = best.clients
    for now in ((prefill - 1, decode), (prefill, decode - 1), (prefill - 2, decode + 1), (prefill + 1, decode - 2)):
        if min(now) >= 1 and now not in results and not _hopeless(now, results):
            return now
    return None


def least_split(fewest: float, tried: Sequence[Tried]) -> float:
    """Return the fewest prefill and decode clients together of which some split does not miss by far, as those with as
    many or more on both sides do. fewest: A lower bound."""
    far = {one.clients: one for one in tried if misses_by_far(one.row)}
    while fewest < math.inf and all(_hopeless((side, int(fewest) - side), far) for side in range(1, int(fewest))):
        fewest += 1
    return fewest


def _hopeless(now: Numbers, results: Mapping[Numbers, Tried]) -> bool:
    """Whether a split with as many or more clients on both sides was missed."""
    return any(tried.misses is not None and all(mine <= theirs for mine, theirs in zip(now, numbers, strict=True))
               for numbers, tried in results.items())


def _short_side(tried: Tried) -> str:
    """Return which side of a split needs more clients."""
    where = str(tried.row.get("binds.where")).rpartition("-")[2]   # of several groups: NAME-prefill
    if where in ("prefill", "decode"):
        return where
    return "prefill" if "TTFT" in (tried.misses or "") else "decode"
