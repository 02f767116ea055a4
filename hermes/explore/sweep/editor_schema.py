"""JSON Schema of sweep files, for editors."""

from __future__ import annotations

from typing import Any

from hermes.explore.sweep.config import SweepConfig
from hermes.scenario.editor_schema import DIALECT, PART, json_schema

__all__ = ["sweep_schema"]


def sweep_schema() -> dict[str, Any]:
    """Return the JSON Schema of a sweep file. A scenario inside it may lack the keys that every point sets."""
    schema = SweepConfig.model_json_schema()
    scenario = schema["properties"]["scenario"]
    whole = {"$ref": f"#/$defs/Scenario{PART}"}
    scenario["anyOf"] = [whole if option.get("type") == "object" else option for option in scenario["anyOf"]]
    definitions = json_schema()["$defs"] | schema.pop("$defs", {})
    return {"$schema": DIALECT, **schema, "title": "hermes sweep", "$defs": definitions}
