"""JSON Schema of scenario files, for editors, made from the models that validate them.

A file that extends another may leave out what the other file gives, at any depth. The schema therefore has every
definition twice: as it is, and without required keys (`PART`) for files with `extends`.
"""

from __future__ import annotations

from typing import Any

from hermes.scenario.schema import Scenario

__all__ = ["json_schema"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PART = "-part"
"""Suffix of the names of definitions without required keys."""
_REF = "#/$defs/"
_DROPPED = ("required", "discriminator")


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a scenario file, with all registered and installed components."""
    whole = Scenario.model_json_schema()
    definitions: dict[str, Any] = whole.pop("$defs")
    properties = whole["properties"]
    workloads = properties["workload"]
    description = workloads.pop("description", "")
    properties["workload"] = {"anyOf": [workloads["items"], workloads], "description": description}
    definitions["Scenario"] = whole
    whole["properties"] = {**whole["properties"], "defaults": {
        "type": "array", "items": {"type": "string"},
        "description": "Of a resolved scenario: keys that hold a default, not a choice."}}
    _require_kinds(whole, definitions)
    for definition in list(definitions.values()):
        _require_kinds(definition, definitions)
    without = [definitions.get("LLMClientConfig", {})]   # a client without a kind is an LLM's
    start_ups = definitions["FleetConfig"]["properties"]["start_up"]["discriminator"]["mapping"]
    without += [definitions[start_ups[kind].removeprefix(_REF)] for kind in ("fixed", "phases")]   # known by `total`
    for definition in without:
        definition["required"] = [key for key in definition.get("required", ()) if key != "kind"]
    parts = {name + PART: _part(definition) for name, definition in definitions.items()}
    parts["Scenario" + PART]["properties"] = {
        "extends": {"type": "string", "description": "Another scenario, relative to this file. This file overrides "
                                                     "it."},
        **parts["Scenario" + PART]["properties"],
    }
    return {
        "$schema": DIALECT, "title": "hermes scenario", "description": whole.get("description", ""), "type": "object",
        "if": {"required": ["extends"]}, "then": {"$ref": f"{_REF}Scenario{PART}"}, "else": {"$ref": f"{_REF}Scenario"},
        "$defs": definitions | parts,
    }


def _require_kinds(schema: Any, definitions: dict[str, Any]) -> None:
    """Require the `kind` of components: pydantic's schema does not if it has a default."""
    if isinstance(schema, list):
        for item in schema:
            _require_kinds(item, definitions)
    elif isinstance(schema, dict):
        for target in schema.get("discriminator", {}).get("mapping", {}).values():
            component = definitions[target.removeprefix(_REF)]
            component["required"] = list(dict.fromkeys(["kind", *component.get("required", ())]))
        for item in schema.values():
            _require_kinds(item, definitions)


def _part(schema: Any, *, names: bool = False) -> Any:
    """Return a copy that requires nothing. names: the keys are names of a user's keys, not words of JSON Schema."""
    if isinstance(schema, list):
        return [_part(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if names:
        return {key: _part(value) for key, value in schema.items()}
    out = {}
    for key, value in schema.items():
        if key in _DROPPED:
            continue
        if key == "$ref":
            out[key] = value + PART
        elif key == "oneOf":   # without a kind, several may match
            out["anyOf"] = _part(value)
        elif key in ("default", "const", "enum", "examples"):
            out[key] = value
        else:
            out[key] = _part(value, names=key == "properties")
    return out
