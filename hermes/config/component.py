"""Component model: strict pydantic models and field types with units, the parts of a scenario.

A *component* is a pydantic model registered under a `kind`; its fields are its YAML keys. A simple component does its
work itself; one with run-time state has a method that builds the stateful object.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticKnownError, SchemaValidator, core_schema

from hermes.config.files import VISIBLE, unseen_character
from hermes.config.registry import Registry
from hermes.errors import InputError
from hermes.units import parse_bandwidth, parse_bytes, parse_duration, parse_rate, pattern

__all__ = [
    "Bandwidth", "Bytes", "Component", "ConfigModel", "Duration", "FileName", "NameOrFile", "Named", "Rate",
    "Shorthand", "Tokens", "field_docs", "quantity",
]


class ConfigModel(BaseModel):
    """Base of every scenario model: refuses unknown keys, coercion, NaN and infinities; instances are frozen."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, arbitrary_types_allowed=False,
        defer_build=True,   # a run validates a few of all models that are imported
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        if not cls.__module__.startswith("hermes."):   # a mistake in a plug-in's is found where it stands
            cls.model_rebuild(raise_errors=False)

    def value_of(self, name: str) -> Any:   # Any: any field
        """Return the value of a field that only some components of a kind have; None for one without it."""
        return getattr(self, name) if name in type(self).__pydantic_fields__ else None   # `model_fields`, at once

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler,
    ) -> JsonSchemaValue:
        made = handler(schema)
        properties = handler.resolve_ref_schema(made).get("properties", {})
        for name, text in field_docs(cls).items():
            if name in properties:
                properties[name]["description"] = text
        return made


@cache
def field_docs(cls: type[object]) -> dict[str, str]:
    """Return the docstrings under a component's fields, by name of the field; a field without one is left out.

    The source is read on demand. Reading it as each class is made, as pydantic can, takes a quarter of the start of
    every command.
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        try:
            classes = _docs_of_classes(inspect.getsource(sys.modules[base.__module__]))
        except (KeyError, OSError, TypeError):   # a class without a source file
            continue
        docs |= classes.get(base.__qualname__, {})
    fields = getattr(cls, "model_fields", {})
    return {name: inspect.cleandoc(text) for name, text in docs.items() if name in fields}


@cache
def _docs_of_classes(source: str) -> dict[str, dict[str, str]]:
    """Return, for each class in a module's source, by qualified name, the string after each annotated name."""
    found: dict[str, dict[str, str]] = {}
    inside: list[tuple[str, ast.AST]] = [("", ast.parse(source))]
    while inside:
        prefix, node = inside.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                found[prefix + child.name] = {
                    of.target.id: text.value.value for of, text in pairwise(child.body)
                    if isinstance(of, ast.AnnAssign) and isinstance(of.target, ast.Name)
                    and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
                    and isinstance(text.value.value, str)
                }
                inside.append((f"{prefix}{child.name}.", child))
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inside.append((f"{prefix}{child.name}.<locals>.", child))
            else:
                inside.append((prefix, child))
    return found


def quantity(parse: Callable[[object], float], description: str) -> WithJsonSchema:
    """Field annotation: the JSON Schema of the text that `parse` (of `hermes.units`) reads."""
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
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _one_line(text: str) -> str:
    if _CONTROL.search(text):
        raise InputError("one line of text, without control characters", text)
    unseen = unseen_character(text)
    if unseen is not None:
        raise InputError(VISIBLE, unseen)
    return text


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_one_line)]
"""A name that a user gives: one line, since names stand in comments of scripts, tables and file names."""


def _from_scenario(text: str, info: ValidationInfo) -> str:
    return str(info.context / text) if isinstance(info.context, Path) else text


def _path_from_scenario(text: str, info: ValidationInfo) -> str:
    named = "/" not in text and "\\" not in text and not text.endswith((".yaml", ".yml", ".json"))
    return text if named else _from_scenario(text, info)


FileName = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_from_scenario)]
"""The path of a file, in a parameter of a pipeline. A relative path is relative to the scenario."""
NameOrFile = Annotated[str, Field(max_length=4096), AfterValidator(_path_from_scenario)]
"""A name, or the path of a YAML or JSON file as in `FileName`."""


class Named:
    """Field annotation: the name of a registered implementation without parameters: `policy: Annotated[str,
    Named(PACKING)]`. Later registrations are valid at once, also in models outside a scenario."""

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

    Use as `router: Annotated[Any, Component(ROUTERS)]`. The registry is asked when a value is validated: a component is
    imported when a document names it, and later registrations are valid at once.
    """

    def __init__(self, registry: Registry[Any]) -> None:
        self.registry = registry

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        classes = self.registry.working()
        if not classes:
            return handler(core_schema.any_schema())
        outer = frozenset(_described)
        choices = {name: _definition(cls, cls in outer) for name, cls in classes.items()}
        _described.update(classes.values())
        try:
            return handler(core_schema.tagged_union_schema(choices, "kind"))
        finally:
            _described.intersection_update(outer)

    def _checked(self, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, dict):
            kind = value.get("kind")
        elif isinstance(value, BaseModel):
            kind = getattr(value, "kind", None)
        else:
            raise PydanticKnownError("model_attributes_type")
        if kind is None:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
        if not isinstance(kind, str) or kind not in self.registry:
            names = ", ".join(self.registry.names())
            raise PydanticKnownError(
                "union_tag_invalid", {"discriminator": "'kind'", "tag": str(kind), "expected_tags": names})
        return _validator(self.registry.get(kind), kind).validate_python(value, context=info.context)


_described: set[type] = set()
"""Components whose JSON Schema is being made, to stop recursion: a service may hold services."""


def _definition(cls: type, described: bool) -> core_schema.CoreSchema:
    """Return the schema of a component, under pydantic's name for it; a reference to that name if called inside
    itself."""
    ref = f"{cls.__module__}.{cls.__qualname__}:{id(cls)}"
    if described:
        return core_schema.definition_reference_schema(ref)
    schema = _core_schema(cls)
    if schema["type"] == "definitions":
        return {**schema, "schema": {**schema["schema"], "ref": ref}}
    return {**schema, "ref": ref}


@cache
def _validator(cls: type, kind: str) -> SchemaValidator:
    """Return a validator of a component; its errors have the kind in their location, as in a discriminated union."""
    return SchemaValidator(core_schema.tagged_union_schema({kind: _core_schema(cls)}, "kind"))


def _core_schema(cls: type) -> core_schema.CoreSchema:
    """Return the schema of a component. Its class is completed, which was deferred: pydantic before 2.14 refuses to
    write a model that holds an instance of an incomplete class."""
    if issubclass(cls, BaseModel):
        cls.model_rebuild()
        return cls.__pydantic_core_schema__
    return TypeAdapter(cls).core_schema


class Shorthand:
    """Field annotation after a `Component`: a plain value of type `kind_of` stands for the component `kind` with the
    value as `field`. `Annotated[Any, Component(TOKEN_COUNTS), Shorthand(int, "fixed", "tokens")]` reads `150` as
    `{kind: fixed, tokens: 150}`."""

    def __init__(self, kind_of: type, kind: str, field: str) -> None:
        self.kind_of, self.kind, self.field = kind_of, kind, field

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self._spelled_out, handler(source))

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: Any) -> dict[str, Any]:
        names = {int: "integer", float: "number", str: "string"}
        return {"anyOf": [{"type": names[self.kind_of]}, handler(schema)]}

    def _spelled_out(self, value: Any) -> Any:
        return {"kind": self.kind, self.field: value} if type(value) is self.kind_of else value
