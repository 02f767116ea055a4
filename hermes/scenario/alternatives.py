"""The defaults that decide the answer of one run, with what their alternatives would change.

First order (`hermes.scenario.repricing`) goes through all of them. What it finds to move a headline by 2%, or to turn
the verdict, is then simulated if the run was short, and so is what it cannot price: the largest first, until the
simulations have taken about a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hermes.core.record import RunRecord
from hermes.errors import InputError
from hermes.results.assumes import Assumed, changes_between, headlines, ordered
from hermes.scenario.assumption import Assumption, Change
from hermes.scenario.assumptions import assumptions
from hermes.scenario.repricing import Repricing
from hermes.scenario.seeds import of_one_seed, spreads

if TYPE_CHECKING:
    from hermes.results.results import Results
    from hermes.scenario.schema import Scenario

__all__ = ["Again", "assumes_of"]

Again = Callable[[Mapping[str, Any]], "Results"]
"""Simulates the scenario with other settings; raises `InputError` if they do not fit it."""

MOST = 6         # alternatives that are simulated
ROWS = 30_000    # of stages and runs of steps in all of these simulations: about a second
WORTH = 0.02     # first-order change of a headline from which on an alternative is simulated
TIMES = 3.0      # a simulated change of at most so many times the first-order one is no noise


def assumes_of(scenario: Scenario, results: Results, again: Again | None = None, *, rows: float = ROWS
               ) -> list[dict[str, Any]]:
    """Return the entries of `assumes` in summary.json, the largest effect first.

    Args:
        again: Simulates an alternative; None for first order alone.
        rows: Most stages and runs of steps in all simulations of alternatives.
    """
    record, run = results.record, Repricing(scenario, results)
    found: dict[str, tuple[Assumption, Assumed]] = {}
    for one in assumptions(scenario):
        first = run.effect(one) if one.change != Change() else _unpriced(one, record)
        if first is not None:
            found[one.name] = one, first
    entries = {name: first for name, (_, first) in found.items()}
    noise = _noise(scenario, results)
    if again is not None and not results.meta.get("interrupted"):
        most = min(MOST, rows // max(len(record.runs["client"]) + len(record.stages["client"]), 1))
        for one, first in sorted(found.values(), key=lambda pair: (pair[1].method == "not simulated",
                                                                   -pair[1].largest)):
            if most > 0 and _worth(one, first, known=noise is not None):
                simulated = _simulated(one, first, results, again, noise or {})
                entries[one.name] = simulated or first
                most -= simulated is not None
    seed = of_one_seed(scenario, record, results.metrics, results.slo)
    return [dict(entry) for entry in ordered([one.plain() for one in (
        *entries.values(), *([seed] if seed is not None else []))])]


def _unpriced(one: Assumption, record: RunRecord) -> Assumed | None:
    """Return the entry of an alternative that only a simulation tells; None if this run has nothing that it acts on."""
    if one.decides == "prefix hits" and not record.stages["cached_tokens"].any():
        return None
    if one.decides == "KV memory" and not _short_of_memory(record, one.bytes):
        return None
    return Assumed(one.name, one.default, one.alternative, method="not simulated")


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


def _simulated(one: Assumption, first: Assumed, results: Results, again: Again, noise: Mapping[str, float]
               ) -> Assumed | None:
    """Return what a simulation of the alternative finds; None if the scenario does not take it."""
    try:
        after = again(one.settings).summary_of_run
    except InputError:
        return None
    before = results.summary_of_run
    effect = changes_between(headlines(before), headlines(after))
    within = tuple(name for name, change in effect.items() if not (
        abs(change) >= noise.get(name, np.inf) or 0 < change / (first.effect.get(name) or -change) <= TIMES))
    return Assumed(one.name, one.default, one.alternative, effect, after["slo"]["pass"] != before["slo"]["pass"],
                   "simulated", within)


def _noise(scenario: Scenario, results: Results) -> dict[str, float] | None:
    """Return how far chance may move each headline, relative; None for a run too short to tell."""
    found = spreads(scenario, results.record, results.metrics)
    if found is None:
        return None
    headline = results.summary_of_run.get("headline") or {}
    served, low, high = (headline.get(f"served{part}_per_s") for part in ("", "_low", "_high"))
    rate = 0.0 if not found else (high - low) / 2.0 / served if served and low is not None else np.inf
    rates = dict.fromkeys(("served_per_s", "goodput_per_s", "dollars_per_million", "tokens_per_j"), rate)
    return rates | dict.fromkeys(("ttft_p99", "tpot_p99", "e2e_p99"), 0.0 if not found else np.inf) | found
