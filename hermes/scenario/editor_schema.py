"""JSON Schema of scenario files, for editors: made of the models, so that it accepts what hermes accepts.

A file that extends another may leave out what that one says, at any depth. The schema therefore holds every definition
twice: as it is, and without required keys (`PART`), which is what a file with `extends` is checked against.
"""

from __future__ import annotations

from typing import Any

from hermes.scenario.schema import Scenario

__all__ = ["json_schema"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PART = "-part"
"""Ending of the names of definitions without required keys."""
_REF = "#/$defs/"
_DROPPED = ("required", "discriminator")


def json_schema() -> dict[str, Any]:
    """JSON Schema of a scenario file as a user may write it, with everything that is registered or installed."""
    whole = Scenario.model_json_schema()
    definitions: dict[str, Any] = whole.pop("$defs")
    properties = whole["properties"]
    workloads = properties["workload"]
    description = workloads.pop("description", "")
    properties["workload"] = {"anyOf": [workloads["items"], workloads], "description": description}
    definitions["Scenario"] = whole
    _require_kinds(whole, definitions)
    for definition in list(definitions.values()):
        _require_kinds(definition, definitions)
    llm = definitions.get("LLMClientConfig", {})
    llm["required"] = [key for key in llm.get("required", ()) if key != "kind"]   # a client without a kind is an engine
    parts = {name + PART: _part(definition) for name, definition in definitions.items()}
    parts["Scenario" + PART]["properties"] = {
        "extends": {"type": "string", "description": "Another scenario, relative to this file, that this one is put "
                                                     "over."},
        **parts["Scenario" + PART]["properties"],
    }
    return {
        "$schema": DIALECT, "title": "hermes scenario", "description": whole.get("description", ""), "type": "object",
        "if": {"required": ["extends"]}, "then": {"$ref": f"{_REF}Scenario{PART}"}, "else": {"$ref": f"{_REF}Scenario"},
        "$defs": definitions | parts,
    }


def _require_kinds(schema: Any, definitions: dict[str, Any]) -> None:
    """Components are told apart by their `kind`, which pydantic's schema does not require where it has a default."""
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
    """A copy that requires nothing. names: the keys are names of a user's keys, not words of JSON Schema."""
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
        elif key == "oneOf":   # without a kind, several fit
            out["anyOf"] = _part(value)
        elif key in ("default", "const", "enum", "examples"):
            out[key] = value
        else:
            out[key] = _part(value, names=key == "properties")
    return out
