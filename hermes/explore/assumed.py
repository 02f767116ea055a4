"""The defaults that decide the answers of `hermes size` and `hermes sweep`.

`size` simulates the alternatives that may decide its best layout (`hermes.scenario.alternatives`): three at least, and
up to six in about four seconds. The others have first order. A sweep has the first point's alternatives by first order.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hermes.api import simulate, simulate_again
from hermes.config.data_files import kept_within
from hermes.explore.size import Sizing
from hermes.explore.size.size_range import simulated
from hermes.explore.sweep.config import load_sweep
from hermes.explore.sweep.points import points, scenario
from hermes.explore.sweep.results import SweepResults
from hermes.results import Results
from hermes.results.assumes import assumed_lines
from hermes.scenario import Overrides, Scenario
from hermes.scenario.alternatives import assumes_of

__all__ = ["assumes_of_best", "assumes_of_document", "assumes_of_first_point"]

LEAST, ROWS = 3, 120_000   # alternatives simulated at least; stages and runs of steps in all of them otherwise
LARGEST = 20_000   # requests of a point that is simulated once more: ten seconds, and no output that depends on them


def assumes_of_best(sizing: Sizing) -> list[dict[str, Any]]:
    """Return the defaults behind the best layout, the largest effect first, as in summary.json; none without one."""
    return [] if sizing.run is None else _assumes(*sizing.run)


def assumes_of_document(document: Mapping[str, Any], base_dir: Path) -> list[dict[str, Any]]:
    """Return the defaults behind the answer of a scenario's document, by simulating their alternatives."""
    return _assumes(*simulated(document, base_dir))


def _assumes(scenario: Scenario, results: Results) -> list[dict[str, Any]]:
    rows = max(ROWS, LEAST * (len(results.record.runs["client"]) + len(results.record.stages["client"])))
    with warnings.catch_warnings(), kept_within({}):
        warnings.simplefilter("ignore")   # `size` has said them
        return assumes_of(scenario, results, partial(simulate_again, scenario), rows=rows)


def assumes_of_first_point(source: str | Path, overrides: Overrides, results: SweepResults) -> list[str]:
    """Return a line for each default that decides the first point of a sweep, or one that says there is none.

    Empty if that point failed, or has more than `LARGEST` requests.
    """
    outcome = results.outcome(0)
    if outcome is None or outcome["status"] != "ok" or outcome.get("requests.total", math.inf) > LARGEST:
        return []
    sweep = load_sweep(source, overrides)
    first = points(sweep)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")   # the sweep has said them
        found = assumed_lines(simulate(scenario(sweep, first), whole=True).summary["assumes"])
    return [f"first point ({first.label}): {line}" for line in found or ["no default moves a headline by 5%"]]
