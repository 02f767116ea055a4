"""Scenarios: their schema, loading, overrides, checks and resolved form."""

from hermes.scenario.document import Overrides, load_scenario, resolved_yaml, scenario_of, with_settings
from hermes.scenario.loading import builtin_scenarios, builtin_sweeps
from hermes.scenario.schema import Scenario, Source

__all__ = [
    "Overrides", "Scenario", "Source", "builtin_scenarios", "builtin_sweeps", "load_scenario", "resolved_yaml",
    "scenario_of", "with_settings",
]
