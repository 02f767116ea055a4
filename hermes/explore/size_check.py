"""Check of the answer of `hermes size`: other seeds, longer arrivals, and one client less.

A simulation is one sample. Near a limit its p99 misses with one seed and holds with the next. So the cheapest layout is
simulated with three other seeds (two, if it is near a limit and both miss), and with arrivals up to three times as long
where there are less than 20,000 requests. If a seed misses the SLO and others meet it, or the share of requests beyond
the limit is too near to the allowed one, three more seeds and longer arrivals decide. If one of them misses, the layout
gets a client more, and the layout that is then the cheapest is checked. If all seeds meet it, one client less is
simulated likewise, until a seed misses, unless the search saw it miss for certain; if all seeds meet the SLO with it,
it is the answer. What certainly misses is simulated no further.

The search has one seed. Another layout whose answer is a client more than it needs must not lose by that: where it
would cost no more than the answer with one client less, and the search did not see it miss for certain, it is simulated
with the other seeds too.

Bursts that take a latency beyond its limit may be so rare that these simulations have none of them. So an answer of
little headroom, of load or of a latency, is simulated with three seeds more, for up to three times as long. These do
not change it, but say whether it is within noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from hermes.explore.certain_miss import BY_FAR, CERTAIN
from hermes.explore.objective import Row, grows, is_ended, missed, nearest_to_limit
from hermes.explore.trials import Trials
from hermes.sums import float_sum

if TYPE_CHECKING:
    from hermes.explore.size import Kind, Sizing, Tried

__all__ = [
    "ENOUGH",
    "ENOUGH_LONG",
    "Beyond",
    "Check",
    "Verdicts",
    "check_answer",
    "misses_by_far",
    "near_limit",
    "pooled_beyond",
    "times_as_long",
    "with_longer",
]

Changes = Callable[["Kind", tuple[int, ...]], Mapping[str, Any]]
Extended = Callable[["Sizing"], "Sizing"]

SEEDS = 3
TIMES, ENOUGH = 3.0, 20_000   # arrivals at most so many times as long, as far as that makes so many requests
ENOUGH_LONG = 60_000          # the same of the longer simulations
DOUBTFUL = 0.8                # share of its limit that a latency has, beyond which other seeds often miss
LITTLE = 0.05                 # headroom, relative, below which there are longer simulations
MOST_ROUNDS = 12


@dataclass(frozen=True)
class Verdicts:
    """What one layout misses with each of the other seeds; None where it meets the SLO.

    Attributes:
        near: The limit that the pooled share of requests is too near to for a verdict; None if there is none.
        times: Factor on the length of their arrivals (`Trials.run`).
        used: Largest share that a latency has of its limit, over the seeds; 0 without limits of latency.
    """

    tried: Tried
    misses: list[str | None]
    near: str | None
    times: float = 1.0
    used: float = 0.0

    @property
    def met(self) -> int:
        return sum(miss is None for miss in self.misses)

    @property
    def arrivals_s(self) -> float:
        """For how long requests arrived."""
        return float(self.tried.row.get("settling.arrivals_s") or 0.0)


@dataclass(frozen=True)
class Check:
    """The check of an answer.

    Attributes:
        fewer: The verdicts on layouts with one client less; empty if they were not simulated.
        longer: The verdicts of longer simulations with more seeds; None where the answer has headroom.
    """

    answer: Verdicts
    fewer: list[Verdicts]
    longer: Verdicts | None = None

    @property
    def near(self) -> str | None:
        """The limit that the longest simulations are too near to for a verdict; None if there is none."""
        return (self.longer or self.answer).near

    @property
    def within_noise(self) -> bool:
        """Whether other seeds might give another answer."""
        last = self.longer or self.answer
        return last.near is not None or last.met < len(last.misses)


def check_answer(trials: Trials, sizing: Sizing, changes: Changes, max_devices: int,
                 bounds: Mapping[Kind, int] | None = None, extended: Extended = lambda sizing: sizing) -> Sizing:
    """Return the answers with the cheapest one checked, and changed where the check changes it.

    Args:
        bounds: Closed-form bound on the mixed clients of a kind; fewer are not simulated.
        extended: Adds the answers of layouts that may cost no more than the cheapest one now. Called before each round.
    """
    seen: dict[str, Verdicts] = {}

    def verdicts(tried: Tried, *, all_seeds: bool = True) -> Verdicts:
        known = seen.get(tried.label)
        if known is None or (all_seeds and known.met == len(known.misses) < SEEDS):
            known = _verdicts(trials, tried, changes, all_seeds)
            if known.met < len(known.misses) and (known.met or known.near is not None):
                known = _longer(trials, known, changes)   # a miss within noise must not make the answer larger
            seen[tried.label] = known
        return known

    def open_(one: Tried) -> bool:
        """Whether the search leaves it open that these clients, one less than an answer, meet the SLO."""
        return not _misses_by_far(sizing, one) and (
            len(one.clients) > 1 or one.clients[0] >= (bounds or {}).get(one.kind, 1))

    for _ in range(MOST_ROUNDS):
        sizing = extended(sizing)
        if not sizing.meets:
            return sizing
        best = sizing.meets[0]
        now = verdicts(best)
        if now.met < len(now.misses):
            more, rest = _more(now, max_devices), _changed(sizing, best, None).meets
            if more is not None and rest and _no_dearer(rest[0], more):   # its check may not be needed
                sizing = _changed(sizing, best, _run(trials, more, changes, [_seeds(trials)[:1]], 1.0, 0.0))
            else:
                sizing = _changed(sizing, best, None if more is None else verdicts(more))
            continue
        fewer = [verdicts(one, all_seeds=False) for one in _fewer(best) if open_(one)]
        better = next((one for one in fewer if one.met == SEEDS), None)
        if better is None:
            cheaper = next(((other, found) for other in sizing.meets[1:] for one in _fewer(other)
                            if _no_dearer(one, best) and open_(one)
                            and (found := verdicts(one, all_seeds=False)).met == SEEDS), None)
            if cheaper is not None:
                sizing = _changed(sizing, *cheaper)
                continue
            own = _searched(sizing, best)   # the figures of the scenario's own seed, if it meets the SLO with it
            sizing = _changed(sizing, best, now if own is None or own.misses else replace(now, tried=own))
            clear = [Verdicts(known, [known.misses], None) for one in _fewer(best)
                     if _misses_by_far(sizing, one) and (known := _searched(sizing, one)) is not None]
            return replace(sizing, check=Check(now, [*fewer, *clear]))
        sizing = _changed(sizing, best, better)
    return sizing


def with_longer(trials: Trials, sizing: Sizing, changes: Changes, headroom: float) -> Check | None:
    """Return the check, with longer simulations of an answer of little headroom. headroom: How much more load it takes.
    """
    check = sizing.check
    if check is None or check.answer.times > TIMES:
        return check
    if headroom >= LITTLE and max(check.answer.used, _used(sizing.meets[0].row)) <= 1.0 - LITTLE:
        return check
    return replace(check, longer=_longer(trials, check.answer, changes))


def _longer(trials: Trials, verdicts: Verdicts, changes: Changes) -> Verdicts:
    """Return the verdicts of longer simulations of a layout, with more seeds: one after the other, until one misses,
    where no seed met the SLO before."""
    first = trials.scenario.seed + 1 + SEEDS
    seeds = range(first, first + SEEDS)
    times = verdicts.times * times_as_long(verdicts.tried.row.get("requests.total"), ENOUGH_LONG)
    return _run(trials, verdicts.tried, changes, [seeds] if verdicts.met else [[seed] for seed in seeds], times)


def _verdicts(trials: Trials, tried: Tried, changes: Changes, all_seeds: bool) -> Verdicts:
    """Simulate a layout with the other seeds: with one after the other until one misses, or with all of them; the last
    is left out where the layout is near a limit and the first two miss."""
    seeds = _seeds(trials)
    times = times_as_long(tried.row.get("requests.total"), ENOUGH)
    batches = [[seed] for seed in seeds] if not all_seeds else (
        [seeds[:2], seeds[2:]] if _used(tried.row) > DOUBTFUL else [seeds])
    return _run(trials, tried, changes, batches, times)


def _seeds(trials: Trials) -> range:
    return range(trials.scenario.seed + 1, trials.scenario.seed + 1 + SEEDS)


def times_as_long(requests: float | None, enough: int) -> float:
    """Return how many times as long as those of a simulation of so many requests arrivals are to be."""
    return min(max(enough / float(requests or enough), 1.0), TIMES)


def _run(trials: Trials, tried: Tried, changes: Changes, batches: Sequence[Sequence[int]], times: float,
         until_missed: float = CERTAIN) -> Verdicts:
    """Simulate a layout with batches of seeds, until all of a batch miss. The figures are those of the first that
    misses, or of the first."""
    settings = changes(tried.kind, tried.clients)
    found: list[Tried] = []
    for batch in batches:
        labels = {f"{tried.label}, seed {seed}": seed for seed in batch}
        rows = trials.run({label: (settings, seed) for label, seed in labels.items()}, times, until_missed=until_missed)
        found += [replace(tried, misses=missed(rows[label]), row=rows[label], seed=seed, length=trials.lengths[label])
                  for label, seed in labels.items()]
        if all(one.misses is not None for one in found[-len(batch):]):
            break
    shown = next((one for one in found if one.misses is not None), found[0])
    return Verdicts(shown, [one.misses for one in found], near_limit([one.row for one in found]), times,
                    max(_used(one.row) for one in found))


def _used(row: Row) -> float:
    """Return the share of its limit that the latency nearest to its own has; 0 without limits of latency."""
    nearest = nearest_to_limit(row)
    return 0.0 if nearest is None else nearest[1]


def _searched(sizing: Sizing, tried: Tried) -> Tried | None:
    """Return the simulation of these clients in the search, with the scenario's own seed."""
    return next((one for one in sizing.tried if (one.kind, one.clients, one.seed) == (tried.kind, tried.clients, None)),
                None)


class Beyond(NamedTuple):
    """Share of the requests of several simulations beyond one limit; half: of its 95% interval."""

    name: str
    share: float
    half: float
    allowed: float

    @property
    def near(self) -> bool:
        """Whether the share is too near to the allowed one for a verdict."""
        return abs(self.share - self.allowed) < self.half


def pooled_beyond(rows: Sequence[Row]) -> Iterator[Beyond]:
    """Yield the pooled share of requests beyond each limit."""
    for key in rows[0]:
        name = key.removeprefix("settling.beyond.").removesuffix(".share")
        if key != f"settling.beyond.{name}.share":
            continue
        mine = [row for row in rows if isinstance(row.get(key), float)]
        share = float_sum(row[key] for row in mine) / len(mine)
        half = math.sqrt(float_sum((row[f"settling.beyond.{name}.high"] - row[key]) ** 2 for row in mine)) / len(mine)
        yield Beyond(name, share, half, mine[0][f"settling.beyond.{name}.allowed"])


def near_limit(rows: Sequence[Row]) -> str | None:
    """Return the limit for which the pooled share of requests beyond it is not known well enough; None if all are.

    A simulation that was ended missed its SLO by far, and has no share."""
    whole = [row for row in rows if not is_ended(row)]
    return next((one.name for one in pooled_beyond(whole) if one.near), None) if whole else None


def _more(now: Verdicts, max_devices: int) -> Tried | None:
    """Return the layout with one client more, of a pd layout where it is short; None if there is no room."""
    tried = now.tried
    sides = len(tried.clients)
    if sum(tried.clients) >= tried.kind.most(max_devices, sides):
        return None
    if len(tried.clients) == 1:
        return replace(tried, clients=(tried.clients[0] + 1,))
    prefill, decode = tried.clients
    short_of_prefill = "TTFT" in (tried.misses or "") or tried.row.get("binds.where") == "prefill"
    return replace(tried, clients=(prefill + 1, decode) if short_of_prefill else (prefill, decode + 1))


def _fewer(tried: Tried) -> list[Tried]:
    smaller = [tuple(count - (i == side) for i, count in enumerate(tried.clients))
               for side in range(len(tried.clients))]
    return [replace(tried, clients=numbers) for numbers in smaller if min(numbers) >= 1]


def _no_dearer(tried: Tried, best: Tried) -> bool:
    """Whether these clients cost no more than the best ones; without prices: have no more devices."""
    prices = tried.kind.price, best.kind.price
    if None in prices:
        return prices == (None, None) and tried.devices <= best.devices
    return tried.devices * (tried.kind.price or 0.0) <= best.devices * (best.kind.price or 0.0)


def _misses_by_far(sizing: Sizing, tried: Tried) -> bool:
    """Whether the search saw these clients miss the SLO, by more than other seeds could change."""
    found = _searched(sizing, tried)
    return found is not None and misses_by_far(found.row)


def misses_by_far(row: Row) -> bool:
    """Whether a simulation misses the SLO by more than other seeds could change."""
    if is_ended(row):
        return bool(row["stopped.by_far"])
    if grows(row):
        return True
    far = BY_FAR if row["requests.total"] < ENOUGH else 1.0
    return any(row[key] > far * row[key.removesuffix("low") + "allowed"] for key in row
               if key.startswith("settling.beyond.") and key.endswith(".low"))


def _changed(sizing: Sizing, old: Tried, new: Verdicts | None) -> Sizing:
    """Return the answers with one layout's replaced; None: the layout has no answer."""
    found = []
    for one in sizing.found:
        if one.best is None or (one.best.kind, one.best.clients) != (old.kind, old.clients):
            found.append(one)
        elif new is None:
            found.append(replace(one, best=None, tried=[*one.tried, replace(old, misses="the SLO with another seed")]))
        else:
            tried = [seen for seen in one.tried if seen is not new.tried]
            found.append(replace(one, best=replace(new.tried, misses=None), tried=[*tried, new.tried]))
    return replace(sizing, found=found)
