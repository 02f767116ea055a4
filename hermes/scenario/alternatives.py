"""The defaults that decide the result of one run, with the effects of their alternatives.

First order (`hermes.scenario.repricing`) goes through all of them. What it finds to move a headline by 2%, or to turn
the verdict, is then simulated if the run was short, and so is what it cannot price: the largest first, until the
simulations have taken about a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hermes.core.record import BELIEVED, RunRecord
from hermes.errors import InputError
from hermes.results.assumes import RATES, Assumed, changes_of_runs, ordered
from hermes.scenario.assumption import Assumption, Change
from hermes.scenario.assumptions import assumptions
from hermes.scenario.repricing import Repricing
from hermes.scenario.seeds import beyond_chance, intervals_of_latencies, of_one_seed, spreads
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    from hermes.results.results import Results
    from hermes.scenario.kv_range import KvEnds
    from hermes.scenario.schema import Scenario

__all__ = ["Again", "assumes_of"]

Again = Callable[[Mapping[str, Any]], "Results"]
"""Simulates the scenario with other settings; raises `InputError` if they do not fit it."""

MOST = 6         # alternatives that are simulated
ROWS = 30_000    # of stages and runs of steps in all of these simulations: about a second
MANY = 5000.0    # tokens/s of one client from which on its API server matters
WORTH = 0.02     # first-order change of a headline from which on an alternative is simulated
TIMES = 3.0      # a simulated change of at most so many times the first-order one is no noise


def assumes_of(scenario: Scenario, results: Results, again: Again | None = None, *, rows: float = ROWS,
               kv: KvEnds | None = None) -> list[dict[str, Any]]:
    """Return the entries of `assumes` in summary.json, the largest effect first.

    Args:
        again: Simulates an alternative; None for first order alone.
        rows: Most stages and runs of steps in all simulations of alternatives.
        kv: What the error of KV memory moves.
    """
    record, run = results.record, Repricing(scenario, results)
    found: dict[str, tuple[Assumption, Assumed]] = {}
    for one in assumptions(scenario):
        first = run.effect(one) if one.change != Change() else _unpriced(one, scenario, record)
        if first is not None:
            found[one.name] = one, first
    entries = {name: first for name, (_, first) in found.items()}
    spread = spreads(scenario, record, results.metrics)
    if again is not None and not results.meta.get("interrupted"):
        most = min(MOST, rows // max(len(record.runs["client"]) + len(record.stages["client"]), 1))
        for one, first in sorted(found.values(), key=lambda pair: (pair[1].method == "not simulated",
                                                                   -pair[1].largest)):
            if most > 0 and _worth(one, first, known=spread is not None):
                simulated = _simulated(one, first, results, again, chance=spread != {})
                entries[one.name] = simulated or first
                most -= simulated is not None
    more = (None if kv is None else kv.assumed(results), of_one_seed(scenario, record, results.metrics, results.slo))
    return [dict(entry) for entry in ordered([
        one.plain() for one in (*entries.values(), *more) if one is not None])]


def _unpriced(one: Assumption, scenario: Scenario, record: RunRecord) -> Assumed | None:
    """Return the entry of an alternative that needs a simulation; None if this run has nothing that it acts on."""
    if one.decides == "KV memory" and not _short_of_memory(record, one.bytes):
        return None
    if one.decides == "prefix caches" and not record.stages["cached_tokens"].any():
        noted = record.notes.get(BELIEVED)
        if noted is None or not (noted > 0).any():
            return None
    if one.decides == "API servers":
        sent = max(_most_sent(record, scenario.clients[int(path.split(".")[1])].names) for path in one.settings)
        if sent <= MANY:
            return None
        return Assumed(one.name, f"{one.default}; {sent:,.0f}/s are sent", one.alternative, method="not simulated",
                       listed=True)
    if one.decides == "rules":
        from hermes.scenario.unmet_rules import alike  # only schedulers with an engine's rules

        if alike(scenario, one.settings, record):
            return Assumed(one.name, one.default, one.alternative, method="exact")
    return Assumed(one.name, one.default, one.alternative, method="not simulated")


def _most_sent(record: RunRecord, names: Sequence[str]) -> float:
    """Return the tokens/s of the client, of these, that gives most, while it gives any."""
    runs = record.runs
    tokens = np.bincount(runs["client"], weights=runs["sampled"] * runs["num_steps"], minlength=len(record.clients))
    return max((float(tokens[client]) * NS_PER_S / max(int(ends[-1] - ends[0]), 1)
                for client, ends in enumerate(record.step_ends)
                if len(ends) > 1 and record.clients[client].name in names), default=0.0)


def _short_of_memory(record: RunRecord, less: float) -> bool:
    """Whether a client had more KV in use, or kept more for later prompts, than `less` bytes a device would leave."""
    if record.stages["cached_tokens"].any():
        return True
    left = np.array([info.num_blocks - less * info.num_devices / (info.block_size * info.kv_bytes_per_token)
                     if info.num_blocks and info.kv_bytes_per_token else np.inf for info in record.clients])
    peaks = np.array([info.peak_blocks_inside for info in record.clients], dtype=np.float64)
    np.maximum.at(peaks, record.runs["client"], record.runs["used_blocks"])
    return bool((peaks > left).any())


def _worth(one: Assumption, first: Assumed, *, known: bool) -> bool:
    """Whether an alternative is worth a simulation. known: Whether the noise of this run is known."""
    if not one.settings or first.method == "exact":
        return False
    if first.method == "not simulated":
        return known
    return first.turns_verdict or first.method == "rough" or first.largest >= WORTH


def _simulated(one: Assumption, first: Assumed, results: Results, again: Again, *, chance: bool) -> Assumed | None:
    """Return what a simulation of the alternative finds; first order if that is nothing but noise; None if the scenario
    does not take it.

    chance: Whether the scenario draws anything by chance.
    """
    try:
        other = again(one.settings)
    except InputError:
        return None
    before, after = results.summary_of_run, other.summary_of_run
    effect = changes_of_runs(before, after)
    if not one.hits:
        effect.pop("hits", None)
    beyond = _beyond_noise(one, results, other, effect) if chance else effect
    within = tuple(name for name, change in effect.items() if not _is_effect(
        change, first.effect.get(name, 0.0), beyond.get(name, 0.0)))
    turns = after["slo"]["pass"] != before["slo"]["pass"] and not _opposed(first, worse=bool(before["slo"]["pass"]))
    found = Assumed(one.name, first.default, one.alternative, effect, turns, "simulated", within, first.listed)
    return first if first.effect and within and not turns and not found.largest else found


def _is_effect(change: float, first: float, beyond: float) -> bool:
    """Whether a simulated change is the alternative's, and not noise.

    Args:
        change: Relative change of a headline over the whole run.
        first: The same by first order; 0 where it does not move.
        beyond: The same, where the simulation's own spread tells it from chance; otherwise 0.
    """
    if change * first < 0:
        return False
    return change * beyond > 0 or 0 < change * first <= TIMES * first**2


def _opposed(first: Assumed, *, worse: bool) -> bool:
    """Whether all latencies move against the verdict, to first order: another schedule turned it by chance."""
    moves = [change for name, change in first.effect.items() if name not in RATES]
    return bool(moves) and all(change < 0 if worse else change > 0 for change in moves)


def _beyond_noise(one: Assumption, before: Results, after: Results, changes: Mapping[str, float]) -> dict[str, float]:
    """Return the relative changes of headlines that are more than chance.

    Latencies are compared by the parts of the two runs, which share their arrivals; by the intervals of both if they do
    not, and rates by those of the served rates.
    """
    drawn_anew = any(key.endswith(".arrivals") for key in one.settings)
    found = {} if drawn_anew else beyond_chance(before, after)
    own, other = _intervals(before), _intervals(after)
    for name in changes if drawn_anew else set(RATES) & set(changes):
        noise = math.hypot(own.get(name, math.inf), (1.0 + changes[name]) * other.get(name, math.inf))
        if abs(changes[name]) > noise:
            found[name] = changes[name]
    return found


def _intervals(results: Results) -> dict[str, float]:
    """Return half of the 95% interval of each headline that has one, relative."""
    headline = results.summary_of_run["headline"]
    served, low, high = (headline.get(f"served{part}_per_s") for part in ("", "_low", "_high"))
    rates = dict.fromkeys(RATES, (high - low) / 2.0 / served) if served and low is not None else {}
    return rates | intervals_of_latencies(results.record, results.metrics)
