"""Validation of documents against models, with messages of one line.

pydantic reports a path into its own schema (with the tags and members of unions in it) and a message in its own words.
This module turns both into an `InputError`: position in the file, path as the user wrote it, expected value, found
value, and the nearest name for a mistyped one. Only the first error is reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

from hermes.config.data_files import note_file, resource_dir
from hermes.config.registry import Registry
from hermes.config.yaml_document import Node, as_node, load_yaml
from hermes.errors import InputError, Verbatim, suggest

__all__ = ["input_error", "load", "validate"]

M = TypeVar("M", bound=BaseModel)

_EXPECTED = {  # replaces pydantic's words for these error types
    "bool_type": "true or false",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dataclass_type": "a mapping",
    "missing": "a value (required)",
    "none_required": "null",
    "greater_than": "a number greater than {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number less than {lt}",
    "less_than_equal": "a number of at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "too_short": "at least {min_length} item(s)",
    "too_long": "at most {max_length} item(s)",
}
_GROUPED = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)+(?:\.[0-9]*)?\Z")   # a number in YAML 1.1, text in YAML 1.2
_NO_MAPPING = ("model_type", "model_attributes_type", "dict_type", "dataclass_type")
MOST_PLACES = 2
# words of Kubernetes, KEDA and vLLM that no rule turns into ours
_THEIRS = {"averageValue": "target", "threshold": "target", "stabilizationWindowSeconds": "window",
           "periodSeconds": "period", "cooldownPeriod": "cooldown", "gpu_cache_usage_perc": "kv_use",
           "kv_cache_usage_perc": "kv_use"}
MOST_KEYS = 12   # that a message about a missing mapping lists
_BOUNDS = {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of"}


def validate(
    model: type[M], data: Node | Mapping[str, Any], file: str | None = None, *, base_dir: Path | None = None,
) -> M:
    """Return an instance of `model` from a document or a plain dict; raises `InputError` with the first mistake.

    base_dir: Folder of the scenario, to which its paths are relative (`hermes.config.FileName`).
    """
    node = data if isinstance(data, Node) else as_node(data)
    try:
        return model.model_validate(node.plain(), context=base_dir)
    except ValidationError as error:
        raise input_error(error, node, model, file) from None
    except RecursionError:
        raise InputError("a shallower structure", Verbatim("one nested too deeply"), file=file) from None


def load(model: type[M], path: Path, file: str | None = None) -> M:
    """Return an instance of `model` from a YAML file; raises `InputError` with the first mistake.

    Descriptions that ship with HERMES are read once per process: otherwise a simulation of a few requests would spend a
    third of its time on parsing them.
    """
    if _ships(path):
        note_file(path)
        found: M = _shipped(model, path)
        return found
    return validate(model, load_yaml(path), file)


@cache
def _ships(path: Path) -> bool:
    return path.parent.is_relative_to(resource_dir("hw_profiles")) or path.parent == resource_dir("traces")


@cache
def _shipped(model: type[M], path: Path) -> Any:
    return validate(model, load_yaml(path))


def input_error(
    error: ValidationError, node: Node, model: type[BaseModel] | None = None, file: str | None = None
) -> InputError:
    """Return the first of pydantic's errors about `node` as an `InputError`."""
    schema = _Schema.of(model)
    found = [_Problem(item, node, schema) for item in error.errors(include_url=False)]
    # a mistyped key is both unknown and missing: report the unknown one
    first = next((p for p in found if p.kind == "extra_forbidden"), None) if found[0].kind == "missing" else None
    first = first or found[0]
    if first.kind in ("string_type", "literal_error") and isinstance(first.node.value, dict):
        # a name, or what it names, written out
        inside = [p for p in found if p.path[:len(first.path)] == first.path != p.path]
        first = min(inside, key=lambda p: p.kind == "missing", default=first)
    same = [p for p in found if p.path == first.path and p.kind != "missing"] or [first]
    result = first.error([p.expected() for p in same])
    return result.located(file=file)


class _Problem:
    """One pydantic error, with its location translated to the document."""

    def __init__(self, item: Any, node: Node, schema: _Schema) -> None:
        self.item, self.kind, self.context = item, str(item["type"]), item.get("ctx", {})
        self.path: list[str] = []
        self.node, self.parent, self.schema = node, node, schema
        self.above: list[tuple[_Schema, Node]] = []  # the mappings and lists on the path, the whole document first
        self.present = True  # whether a value exists at the path, or only at its parent
        self._walk(list(item["loc"]))

    def _walk(self, loc: list[Any]) -> None:
        tagged = False  # whether the tag of the current mapping was passed
        for position, part in enumerate(loc):
            last = position == len(loc) - 1
            kind = self.node.child("kind")
            if not tagged and kind is not None and kind.value == part:
                tagged = True
                continue
            child = self.node.child(part)
            if child is not None:
                self.above.append((self.schema, self.node))
                self.schema = self.schema.step(part, self.node)
                self.parent, self.node, tagged = self.node, child, False
                self.path.append(str(part))
            elif last and self.kind == "missing":
                self.schema = self.schema.step(part, self.node)
                self.path.append(str(part))
                self.parent, self.present = self.node, False
            elif isinstance(part, int):  # a single item in place of a list
                self.schema = self.schema.step(part, self.node)
            else:   # a tag or the name of a union's member, which is not in the document
                self.schema = self.schema.tagged(part)

    def expected(self) -> str:
        if self.kind == "value_error":
            cause = self.context.get("error")
            return cause.expected if isinstance(cause, InputError) else f"a valid value ({cause})"
        if self.kind == "assertion_error":
            return f"a valid value ({self.context.get('error')})"
        if self.kind == "extra_forbidden":
            return self._one_of("one of the keys", self._keys())
        if self.kind == "union_tag_not_found" and self._fitting_kinds():
            return Verbatim(f"missing; with these keys it is {' or '.join(self._fitting_kinds())} (all kinds: "
                            f"{', '.join(self.schema.kinds())})")
        if self.kind in ("union_tag_invalid", "union_tag_not_found"):
            return self._one_of("one of", self.schema.kinds())
        if self.kind in ("model_attributes_type", "model_type") and self.schema.kinds():
            return self._one_of("a mapping with `kind`:", self.schema.kinds())
        if self.kind in _NO_MAPPING and self.path and 0 < len(self.schema.keys(self.node)) <= MOST_KEYS:
            return f"a mapping with keys of {', '.join(self.schema.keys(self.node))}"
        template = _EXPECTED.get(self.kind)
        if template is None:
            return re.sub(r"^Input should be (?:a valid )?", "", str(self.item["msg"]))
        values = {k: f"{v:g}" if isinstance(v, float) else v for k, v in self.context.items()}
        quantity = self.kind in _BOUNDS and isinstance(self.node.value, str)  # the value has a unit, the bound has none
        return template.format_map(values) + (" in SI units" if quantity else "")

    def error(self, expected: Iterable[str]) -> InputError:
        mark, field, suggestion = self.node.mark, list(self.path), None
        found: object = self.node.plain() if not isinstance(self.node.value, dict | list) else _outline(self.node)
        if self.kind == "missing":
            found = Verbatim("nothing")
        elif self.kind == "extra_forbidden":
            mark, found = self.node.key or mark, self.path[-1]
            theirs = _THEIRS.get(self.path[-1]) in self._keys()
            suggestion = (None if theirs else self._key_elsewhere()) or _meant(self.path[-1], self._keys())
        elif self.kind == "union_tag_invalid":
            field.append("kind")
            kind = self.node.child("kind")
            mark, found = (kind.mark, kind.plain()) if kind else (mark, self.context.get("tag"))
            suggestion = suggest(found, self.schema.kinds())
        elif self.kind == "union_tag_not_found":
            field.append("kind")
            found = Verbatim("nothing")
        elif not self.path and self.kind in _NO_MAPPING:
            found = _outline(self.node)   # any file of this machine can be named: its text is not quoted
        elif self.kind in _NO_MAPPING and isinstance(found, str):
            kind_meant = suggest(found, self.schema.kinds())
            suggestion = f"{{kind: {kind_meant}}}" if kind_meant else None
        elif self.kind in ("int_type", "float_type") and _GROUPED.match(str(found)):
            suggestion = str(found).replace("_", "")
        elif self.kind in ("literal_error", "enum"):
            suggestion = _meant(found, re.findall(r"'([^']*)'", str(self.context.get("expected"))))
        cause = self.context.get("error")
        if isinstance(cause, InputError):
            suggestion = cause.suggestion
            found = cause.found if not isinstance(cause.found, dict | list) else found
            if cause.field:
                mark = self.node.nearest(cause.field)[0].mark
                field.append(cause.field)
        said = list(dict.fromkeys(expected))   # a single one is kept as it is: it may be `Verbatim`
        return InputError(
            said[0] if len(said) == 1 else " or ".join(said), found, field=".".join(field) or None, file=mark.file,
            line=mark.line, column=mark.column, suggestion=suggestion,
        )

    def _key_elsewhere(self) -> str | None:
        """Return the path of a place below, or else above, that knows the unknown key, unless there are several."""
        name = self.path[-1]
        for depth, (schema, node) in reversed(list(enumerate(self.above))):
            if schema is not self._parent_schema() and node.child(name) is None and name in schema.keys(node):
                return ".".join((*self.path[:depth], name))
            below = schema.places(name, node)
            if 1 <= len(below) <= MOST_PLACES:
                return ".".join((*self.path[:depth], *below[0]))
        return None

    def _fitting_kinds(self) -> list[str]:
        """Return the kinds that have all the keys of this mapping; nothing where that leaves out none."""
        keys = set(self.node.value) if isinstance(self.node.value, dict) else set()
        kinds = self.schema.kinds()
        fitting = [kind for kind in kinds if keys <= set(self.schema.tagged(kind).keys(as_node(None)))]
        return fitting if keys and len(fitting) < len(kinds) else []

    def _keys(self) -> list[str]:
        return self._parent_schema().keys(self.parent)

    def _parent_schema(self) -> _Schema:
        return self.schema.parent or self.schema

    @staticmethod
    def _one_of(start: str, names: list[str]) -> str:
        return f"{start} {', '.join(names)}" if names else "no such key" if "key" in start else "a known kind"


def _meant(found: object, names: list[str]) -> str | None:
    """Return the name that is meant, also by a word of a cluster's objects and metrics."""
    theirs = _THEIRS.get(str(found).removeprefix("vllm:"))
    return suggest(found, names) if theirs is None else theirs if theirs in names else None


def _outline(node: Node) -> Verbatim:
    value = node.value
    return Verbatim("a mapping" if isinstance(value, dict) else "an empty list" if value == [] else
                    "a list" if isinstance(value, list) else
                    "nothing" if value is None else "a text" if isinstance(value, str) else "a value")


_KNOWN_SCHEMAS: dict[type[BaseModel], tuple[int, dict[str, Any]]] = {}
"""Per model: number of registrations at that time, and its JSON Schema."""


def _json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a model, cached until a new registration (making it takes 0.1 s); empty if a plug-in's
    field type has none."""
    known = _KNOWN_SCHEMAS.get(model)
    if known is None or known[0] != Registry.version:
        try:
            schema = model.model_json_schema()
        except (PydanticInvalidForJsonSchema, PydanticUserError):
            schema = {}
        known = _KNOWN_SCHEMAS[model] = (Registry.version, schema)   # making it imports the components it names
    return known[1]


_Place: TypeAlias = tuple[list[dict[str, Any]], dict[str, Any]]
"""Alternatives at a place in a JSON Schema, and the definitions they refer to."""


class _Schema:
    """A place in a JSON Schema, entered step by step beside a document; it knows the valid keys and kinds there.

    The schema is made when keys or kinds are asked for, which the messages about most mistakes do not do.
    """

    def __init__(self, find: Callable[[], _Place], parent: _Schema | None = None) -> None:
        self._find, self.parent = find, parent

    @classmethod
    def of(cls, model: type[BaseModel] | None) -> _Schema:
        def whole() -> _Place:
            schema = _json_schema(model) if model else {}
            return [schema], schema.get("$defs", {})

        return cls(whole)

    @cached_property
    def _place(self) -> _Place:
        return self._find()

    def _concrete(self, node: Node) -> list[dict[str, Any]]:
        """Return the alternatives with references followed, narrowed by the document's `kind` if there is one."""
        kind = node.child("kind")
        options, defs = self._place
        result, queue = [], list(options)
        while queue:
            option = queue.pop(0)
            if "$ref" in option:
                queue.append(defs.get(option["$ref"].rsplit("/", 1)[-1], {}))
                continue
            mapping = option.get("discriminator", {}).get("mapping", {})
            if kind is not None and isinstance(kind.value, str) and kind.value in mapping:
                queue.append({"$ref": mapping[kind.value]})
                continue
            result.append(option)
            queue += [*option.get("anyOf", ()), *option.get("oneOf", ()), *option.get("allOf", ())]
        return result

    def step(self, key: object, node: Node) -> _Schema:
        def inside() -> _Place:
            options = []
            for option in self._concrete(node):
                if isinstance(key, str):
                    inner = option.get("properties", {}).get(key) or option.get("additionalProperties")
                else:
                    inner = option.get("items")
                if isinstance(inner, dict):
                    options.append(inner)
            return options, self._place[1]

        return _Schema(inside, self)

    def tagged(self, tag: object) -> _Schema:
        """Return the alternative of that kind, if the document leaves the kind out; the same place if there is none."""
        def alternative() -> _Place:
            mappings = (option.get("discriminator", {}).get("mapping", {}) for option in self._concrete(as_node(None)))
            found = next((mapping[tag] for mapping in mappings if tag in mapping), None)
            return self._place if found is None else ([{"$ref": found}], self._place[1])

        return _Schema(alternative, self)

    def keys(self, node: Node) -> list[str]:
        return list(dict.fromkeys(key for option in self._concrete(node) for key in option.get("properties", {})))

    def places(self, key: str, node: Node) -> list[tuple[str, ...]]:
        """Return the shortest paths of two or three keys below this place that end in `key`, first items of lists."""
        level: list[tuple[_Schema, Node, tuple[str, ...]]] = [(self, node, ())]
        for _ in range(2):
            inner = [(schema.step(name, at), at.child(name) or as_node(None), (*path, name))
                     for schema, at, path in level for name in schema.keys(at)]
            level = [(schema, at, path) if schema.keys(at) else
                     (schema.step(0, at), at, path) if not isinstance(at.value, list) else
                     (schema.step(0, at), at.child(0) or as_node(None), (*path, "0")) for schema, at, path in inner]
            found = [(*path, key) for schema, at, path in level if at.child(key) is None and key in schema.keys(at)]
            if found:
                return found
        return []

    def kinds(self) -> list[str]:
        nothing = as_node(None)
        tags = (option.get("discriminator", {}).get("mapping", {}) for option in self._concrete(nothing))
        return list(dict.fromkeys(tag for mapping in tags for tag in mapping))
