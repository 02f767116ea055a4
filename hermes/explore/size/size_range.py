"""How far the answer of `hermes size` moves where step times lie at the ends of their range.

The answer's own simulation (`Sizing.run`) says how far its step times are trusted (`hermes.scenario.step_sources`).
With all of them at the low end, and at the high end, the search goes on from the answer, with the seed of its figures:
"28 (26 to 32)".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.explore.bracket import Bracket
from hermes.explore.certain_miss import CERTAIN
from hermes.explore.objective import is_ended, missed
from hermes.explore.trials import Trials

if TYPE_CHECKING:
    from hermes.explore.size import Sizing, Tried
    from hermes.explore.size.layouts import Kind
    from hermes.results import Results
    from hermes.scenario import Scenario

__all__ = ["StepRange", "of_others", "simulated", "with_range"]

Changes = Callable[["Kind", tuple[int, ...]], Mapping[str, Any]]

MOST_TRIALS = 12   # simulations for one end
NEAR = 16          # of a miss that is not by far: a sixteenth more clients


@dataclass(frozen=True)
class StepRange:
    """The answer with step times at the ends of their range.

    Attributes:
        kind: Class of the step times.
        low, high: Factors of them.
        fewest, most: Clients, prefill and decode together, with which the layout meets the SLO at those ends; None
            where the most allowed still miss.
        why: Why there was no search, or "".
    """

    kind: str
    low: float
    high: float
    fewest: int | None = None
    most: int | None = None
    why: str = ""


def with_range(trials: Trials, sizing: Sizing, changes: Changes, max_devices: int) -> StepRange | None:
    """Return the range of the cheapest layout's clients; None where nothing is known of its step times."""
    best = sizing.meets[0]
    steps = None if sizing.run is None else _trusted(*sizing.run)
    if steps is None:
        return None
    if why := _unsearched(best, changes):
        return replace(steps, why=why)
    fewest, most = (_clients(trials, best, changes, factor, best.kind.most(max_devices, len(best.clients)))
                    for factor in (steps.low, steps.high))
    # one seed may ask for more than the answer, which others confirm: shorter steps need no more, longer ones no less
    answer = sum(best.clients)
    return replace(steps, fewest=answer if fewest is None else min(fewest, answer),
                   most=None if most is None else max(most, answer))


def of_others(sizing: Sizing, changes: Changes) -> list[tuple[Tried, StepRange | None]]:
    """Return the cheapest layout of each other ranked device, with how far its step times are trusted."""
    best = {tried.kind.device: tried for tried in reversed(sizing.ranked)}
    best.pop(sizing.meets[0].kind.device, None)
    base = sizing.scenario.source.base_dir
    return [(tried, _trusted(*simulated({**sizing.document, **changes(tried.kind, tried.clients)}, base)))
            for tried in sizing.ranked if tried in best.values()]


def simulated(document: Mapping[str, object], base_dir: Path) -> tuple[Scenario, Results]:
    """Simulate a scenario's document in full, without the warnings that a search has issued."""
    from hermes.api import simulate
    from hermes.config.yaml_document import as_node
    from hermes.scenario import scenario_of

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scenario = scenario_of(as_node(document), base_dir)
        return scenario, simulate(scenario, whole=True)


def _trusted(scenario: Scenario, results: Results) -> StepRange | None:
    """Return the class and the range of a layout's step times, without clients; None where nothing is known."""
    from hermes.scenario.step_sources import step_sources

    found = step_sources(scenario, results)
    if not found:
        return None
    low, high = min(group["low"] for group in found), max(group["high"] for group in found)
    return StepRange(max(found, key=lambda group: group["high"] / group["low"])["class"], low, high)


def _unsearched(best: Tried, changes: Changes) -> str:
    """Return why step times of a layout are not varied, or ""."""
    if best.kind.pp * best.kind.dp > 1:
        return "step times of ranks and stages cannot be scaled"
    own = changes(best.kind, best.clients)["clients"][0]
    return "the scenario adjusts its step times itself" if "adjust" in own else ""


def _numbers(best: Tried, total: int) -> tuple[int, ...]:
    """Return so many clients in the answer's proportions, at least one for each phase."""
    if len(best.clients) == 1:
        return (total,)
    prefills = min(max(round(total * best.clients[0] / sum(best.clients)), 1), total - 1)
    return prefills, total - prefills


def _clients(trials: Trials, best: Tried, changes: Changes, factor: float, most: int) -> int | None:
    """Return the fewest clients that meet the SLO with step times so many times as long; None if `most` miss."""
    answer, least = sum(best.clients), len(best.clients)
    begin = min(max(round(answer * factor), least), most)   # clients in proportion to the time of a step
    bracket = Bracket(-begin, lowest=-most, highest=-least)
    if factor <= 1:   # what meets the SLO does so with shorter steps
        bracket = replace(bracket, known={-answer: True}, hint=-begin)
    while (level := bracket.choose()) is not None and len(bracket.known) < MOST_TRIALS:
        numbers = _numbers(best, -level)
        settings = changes(best.kind, numbers)
        adjust = {"adjust": {"prompts": factor, "decodes": factor}}
        engines = [{**one, **adjust} for one in settings["clients"][:len(numbers)]]
        label = f"{replace(best, clients=numbers).label}, steps x {factor:.4g}"
        wanted = {**settings, "clients": [*engines, *settings["clients"][len(numbers):]]}
        row = trials.run({label: (wanted, trials.scenario.seed if best.seed is None else best.seed)},
                         until_missed=CERTAIN)[label]
        bracket.known[level] = missed(row) is None
        if bracket.meets_up_to is None and not is_ended(row):   # what misses by far is ended
            bracket.hint = level - max(1, -level // NEAR)
    return None if bracket.meets_up_to is None else -bracket.meets_up_to
