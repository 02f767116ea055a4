"""What the user writes: the scenario's schema, how it is loaded, overridden, checked and written out again."""

from hermes.scenario.document import json_schema, load_scenario, resolved_yaml
from hermes.scenario.loading import builtin_scenarios
from hermes.scenario.schema import Scenario, Source

__all__ = ["Scenario", "Source", "builtin_scenarios", "json_schema", "load_scenario", "resolved_yaml"]
