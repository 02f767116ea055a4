"""The defaults that decide an answer of `hermes size`, found by simulating their alternatives.

The best layout is simulated once more. An alternative that first order (`hermes.scenario.repricing`) finds to move a
headline by 2% or to turn the verdict is simulated, too, and so are those that first order cannot price.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from hermes.api import simulate
from hermes.config.yaml_document import as_node
from hermes.explore.size import Sizing
from hermes.results.assumes import Assumed, changes_between, headlines, ordered
from hermes.scenario import scenario_of
from hermes.scenario.assumptions import assumptions
from hermes.scenario.loading import overridden

__all__ = ["assumes_of_best"]

WORTH = 0.02   # first-order change of a headline from which on an alternative is simulated


def assumes_of_best(sizing: Sizing) -> list[dict[str, Any]]:
    """Return the defaults behind the best layout, the largest effect first, as in summary.json; none without one."""
    if not sizing.meets:
        return []
    node, base_dir = as_node(sizing.settings(sizing.meets[0])), sizing.scenario.source.base_dir
    scenario = scenario_of(node, base_dir)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")   # `size` has said them
        summary = simulate(scenario).summary
        entries = {entry["name"]: entry for entry in summary["assumes"]}
        for one in assumptions(scenario):
            entry = entries.get(one.name)
            if entry is None or entry["turns_verdict"] or _largest(entry["effect"]) >= WORTH:
                if entry is not None and entry["method"] == "exact":
                    continue
                after = simulate(scenario_of(overridden(node, one.settings, base_dir), base_dir)).summary
                effect = changes_between(headlines(summary), headlines(after))
                turns = after["slo"]["pass"] != summary["slo"]["pass"]
                if entry is not None or effect:
                    entries[one.name] = Assumed(
                        one.name, one.default, one.alternative, effect, turns, "simulated").plain()
    return [dict(entry) for entry in ordered(list(entries.values()))]


def _largest(effect: Mapping[str, float]) -> float:
    return max((abs(change) for change in effect.values()), default=0.0)
