"""Write a validated model as YAML: every default filled in, quantities as SI numbers with their unit as a comment.

The output is a scenario that validates to the same model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, BeforeValidator

from hermes.config.yaml_document import Mark, resolve_scalar
from hermes.units import parse_bandwidth, parse_bytes, parse_duration, parse_rate

__all__ = ["to_flow", "to_yaml", "unit_of"]

_UNITS: dict[Any, str] = {parse_duration: "s", parse_bytes: "B", parse_bandwidth: "B/s", parse_rate: "/s"}
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*(?: [\w./-]+)*\Z")
_Row = tuple[str, Any, str | None]  # key, value, unit
# text to YAML 1.1 loaders too, so that other tools read the output alike
_BOOLEANS_ELSEWHERE = {"y", "n", "yes", "no", "on", "off"}


def unit_of(annotation: Any, metadata: Any = ()) -> str | None:
    """Return the unit of a field whose type parses quantities (`Duration`, `Bytes`), also in `| None` or a list."""
    for item in metadata:
        if isinstance(item, BeforeValidator) and item.func in _UNITS:
            return _UNITS[item.func]
    arguments = get_args(annotation)
    for argument in arguments:
        unit = unit_of(argument) or _UNITS.get(getattr(argument, "func", None))
        if unit:
            return unit
    return None


def to_yaml(model: BaseModel, header: str = "", text: Callable[[str], str] = str) -> str:
    """Write `model` as YAML, in the order of its fields; `header` becomes comments on top; `text` maps every string."""
    comments = "".join(f"# {line}\n" for line in header.splitlines())
    return comments + "\n".join(_Writer(text).mapping(_fields(model), "")) + "\n"


def to_flow(value: Any) -> str:
    """Write a value on one line."""
    if isinstance(value, BaseModel):
        value = {name: item for name, item, _ in _fields(value)}
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {to_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(map(to_flow, value))}]"
    return _scalar(value)


def _fields(model: BaseModel, of: str | None = None) -> list[_Row]:
    """Return the rows of a model. of: the unit that its rates count, if not requests or bytes."""
    rows: list[_Row] = []
    counted = getattr(model, "counted", {})
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if type(value) is int and field.annotation is not None and _only_float(field.annotation):
            value = float(value)  # a default given as an integer; validated values are floats
        if not field.exclude:
            unit = unit_of(field.annotation, field.metadata)
            rows.append((name, value, f"{of}/s" if unit == "/s" and of else unit or counted.get(name)))
    rows += [(name, value, None) for name, value in (model.model_extra or {}).items()]
    return sorted(rows, key=lambda row: row[0] != "kind")


def _only_float(annotation: Any) -> bool:
    types = set(get_args(annotation)) or {annotation}
    return float in types and int not in types


class _Writer:
    """Writer of nested values as lines of YAML."""

    def __init__(self, text: Callable[[str], str]) -> None:
        self.text = text

    def mapping(self, rows: list[_Row], indent: str) -> Iterator[str]:
        for key, value, unit in rows:
            yield from self.entry(f"{indent}{_scalar(key)}:", value, unit, indent + "  ")

    def entry(self, start: str, value: Any, unit: str | None, indent: str) -> Iterator[str]:
        if isinstance(value, list | tuple | set | frozenset):
            yield from self.sequence(start, list(value), unit, indent)
        elif isinstance(value, BaseModel | Mapping):
            of = None if unit in _UNITS.values() else unit
            rows = _fields(value, of) if isinstance(value, BaseModel) else [(str(k), v, unit) for k, v in value.items()]
            yield start if rows else f"{start} {{}}"
            yield from self.mapping(rows, indent)
        else:
            comment = f"  # {unit}" if unit and isinstance(value, int | float) else ""
            yield f"{start} {self.scalar(value)}{comment}"

    def sequence(self, start: str, items: list[Any], unit: str | None, indent: str) -> Iterator[str]:
        if not any(isinstance(item, BaseModel | Mapping | list | tuple) for item in items):
            comment = f"  # {unit}" if unit and items else ""
            yield f"{start} [{', '.join(map(self.scalar, items))}]{comment}"
            return
        yield start
        for item in items:
            lines = list(self.entry("", item, unit, indent + "  "))
            first = lines.pop(0).strip() or lines.pop(0).strip()
            yield f"{indent}- {first}"
            yield from lines

    def scalar(self, value: Any) -> str:
        return _scalar(self.text(value) if isinstance(value, str) else value)


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))
    text = str(value)
    plain = _PLAIN.match(text) and text.lower() not in _BOOLEANS_ELSEWHERE and resolve_scalar(text, Mark()) == text
    return text if plain else _quoted(text)


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
