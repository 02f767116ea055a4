"""What everything that can stand in a scenario is made of: strict pydantic models and unit-aware field types.

A *component* is a pydantic model registered under a `kind`; its fields are its YAML keys. Simple components do their
work themselves; those with run-time state have a method that builds the stateful object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, WithJsonSchema
from pydantic_core import core_schema

from hermes.registry import Registry
from hermes.units import parse_bandwidth, parse_bytes, parse_duration, parse_rate, pattern

__all__ = [
    "Bandwidth", "Bytes", "Component", "ConfigModel", "Duration", "Named", "Rate", "Shorthand", "Tokens", "quantity",
]


class ConfigModel(BaseModel):
    """Base of every scenario model: unknown keys refused, no silent coercion, NaN and infinities refused, frozen."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True,
        arbitrary_types_allowed=False,
    )


def quantity(parse: Callable[[object], float], description: str) -> WithJsonSchema:
    """Field annotation: the JSON Schema of what `parse` (of `hermes.units`) reads."""
    return WithJsonSchema({
        "anyOf": [{"type": "number"}, {"type": "string", "pattern": pattern(parse)}], "description": description,
    })


Duration = Annotated[
    float, BeforeValidator(parse_duration), Field(ge=0, le=1e9),
    quantity(parse_duration, "duration, e.g. '20 ms'; bare number: seconds"),
]
Bytes = Annotated[
    int, BeforeValidator(parse_bytes), Field(ge=0, le=2**60),
    quantity(parse_bytes, "size, e.g. '80 GiB'; bare number: bytes"),
]
Bandwidth = Annotated[
    float, BeforeValidator(parse_bandwidth), Field(gt=0, le=1e18),
    quantity(parse_bandwidth, "bandwidth, e.g. '32 GB/s'; bare number: bytes/s"),
]
Rate = Annotated[
    float, BeforeValidator(parse_rate), Field(gt=0, le=1e9),
    quantity(parse_rate, "rate, e.g. '40 /s' or '40 rps'; bare number: per second"),
]
Tokens = Annotated[int, Field(ge=1, le=2**40)]


class Named:
    """Field annotation: the name of something registered, where the name says it all: `policy: Annotated[str,
    Named(PACKING)]`. What registers later is valid at once, also in models that are not part of a scenario."""

    def __init__(self, registry: Registry[Any]) -> None:
        self.registry = registry

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._known)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"enum": self.registry.names(), "type": "string"}

    def _known(self, name: Any) -> str:
        self.registry.get(name)
        return str(name)


class Component:
    """Field annotation: one of the components of a registry, chosen by its `kind:`.

    Use as `router: Annotated[Any, Component(ROUTERS)]`. The choices are read when the enclosing model's schema is
    built; models with such fields are rebuilt when something registers later (`hermes.scenario`).
    """

    def __init__(self, registry: Registry[Any]) -> None:
        self.registry = registry

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        choices = {name: handler.generate_schema(self.registry.get(name)) for name in self.registry.names()}
        if not choices:
            return core_schema.any_schema()
        return core_schema.tagged_union_schema(choices, discriminator="kind")


class Shorthand:
    """Field annotation after a `Component`: a plain `kind_of` value may stand for the component `kind` with it as
    `field`: `Annotated[Any, Component(TOKEN_COUNTS), Shorthand(int, "fixed", "tokens")]` reads `150` as `{kind: fixed,
    tokens: 150}`."""

    def __init__(self, kind_of: type, kind: str, field: str) -> None:
        self.kind_of, self.kind, self.field = kind_of, kind, field

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self._spelled_out, handler(source))

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: Any) -> dict[str, Any]:
        names = {int: "integer", float: "number", str: "string"}
        return {"anyOf": [{"type": names[self.kind_of]}, handler(schema)]}

    def _spelled_out(self, value: Any) -> Any:
        return {"kind": self.kind, self.field: value} if type(value) is self.kind_of else value
