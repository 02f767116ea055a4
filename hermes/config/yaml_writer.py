"""YAML writer for plain data, and for validated models with units as comments.

HERMES writes YAML only here. The output reads back to the same data with `hermes.config.yaml_document` and with other
loaders of YAML 1.1 and 1.2: it quotes strings that another loader would take for another type.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, get_args

from pydantic import BaseModel, BeforeValidator

from hermes.config.yaml_document import Mark, resolve_scalar
from hermes.units import parse_bandwidth, parse_bytes, parse_duration, parse_rate

__all__ = ["to_flow", "to_yaml", "unit_of"]

_UNITS: dict[Any, str] = {parse_duration: "s", parse_bytes: "B", parse_bandwidth: "B/s", parse_rate: "/s"}
_PLAIN = re.compile(r"[^\W\d][\w./+*%()-]*(?: [\w./+*%()-]+)*\Z")
_Row = tuple[object, Any, str | None]  # key, value, unit
# YAML 1.1 reads these as booleans
_BOOLEANS_ELSEWHERE = {"y", "n", "yes", "no", "on", "off"}
_WIDTH = 118
_LONGEST_KEY = 1000   # a longer one needs another syntax


def unit_of(annotation: Any, metadata: Any = ()) -> str | None:
    """Return the unit of a field whose type parses quantities (`Duration`, `Bytes`, ...), also inside `| None` or a
    list."""
    for item in metadata:
        if isinstance(item, BeforeValidator) and item.func in _UNITS:
            return _UNITS[item.func]
    arguments = get_args(annotation)
    for argument in arguments:
        unit = unit_of(argument) or _UNITS.get(getattr(argument, "func", None))
        if unit:
            return unit
    return None


def to_yaml(
    value: BaseModel | Mapping[Any, Any], header: str = "", text: Callable[[str], str] = str, *, compact: bool = False,
) -> str:
    """Return `value` as a YAML document.

    Args:
        value: A model (its fields in their order, `kind` first, quantities with their unit as a comment) or a mapping.
        header: Lines that become comments on top.
        text: Function applied to every string.
        compact: Whether mappings of scalars stand on one line if they fit, as lists of scalars always do.
    """
    printable = "".join(c if c.isprintable() or c == "\n" else " " for c in header)
    comments = "".join(f"# {line}".rstrip() + "\n" for line in printable.split("\n")) if header else ""
    rows = _rows(value, None)
    return comments + ("\n".join(_Writer(text, compact).mapping(rows, "")) if rows else "{}") + "\n"


def to_flow(value: Any) -> str:
    """Return a value on one line."""
    if isinstance(value, BaseModel | Mapping):
        return "{" + ", ".join(f"{_key(key)}: {to_flow(item)}" for key, item, _ in _rows(value, None)) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(map(to_flow, value))}]"
    return _scalar(value)


def _rows(value: BaseModel | Mapping[Any, Any], unit: str | None) -> list[_Row]:
    """Return (key, value, unit). unit: of the values of a mapping; of a model, the unit its rates count other than
    requests or bytes."""
    if not isinstance(value, BaseModel):
        return [(key, item, unit) for key, item in value.items()]
    of = None if unit in _UNITS.values() else unit
    rows: list[_Row] = []
    counted = getattr(value, "counted", {})
    for name, own, only_float in _fields(type(value)):
        item = getattr(value, name)
        if only_float and type(item) is int:
            item = float(item)  # an integer default; validated values are floats
        rows.append((name, item, f"{of}/s" if own == "/s" and of else own or counted.get(name)))
    rows += [(name, item, None) for name, item in (value.model_extra or {}).items()]
    return sorted(rows, key=lambda row: row[0] != "kind")


@cache   # a sweep writes thousands of scenarios
def _fields(model: type[BaseModel]) -> list[tuple[str, str | None, bool]]:
    """Return (name, unit, whether it is a float and never an integer) of each field to write."""
    return [(name, unit_of(field.annotation, field.metadata),
             field.annotation is not None and _only_float(field.annotation))
            for name, field in model.model_fields.items() if not field.exclude]


def _only_float(annotation: Any) -> bool:
    types = set(get_args(annotation)) or {annotation}
    return float in types and int not in types


class _Writer:
    """Writer of nested values, line by line."""

    def __init__(self, text: Callable[[str], str], compact: bool) -> None:
        self.text, self.compact = text, compact

    def mapping(self, rows: list[_Row], indent: str) -> Iterator[str]:
        for key, value, unit in rows:
            yield from self.entry(f"{indent}{_key(key)}:", value, unit, indent + "  ")

    def entry(self, start: str, value: Any, unit: str | None, indent: str) -> Iterator[str]:
        if isinstance(value, list | tuple | set | frozenset):
            yield from self.sequence(start, list(value), unit, indent)
        elif isinstance(value, BaseModel | Mapping):
            rows = _rows(value, unit)
            line = f"{start} {self.flow(rows)}" if self.compact and not any(_nested(row[1]) for row in rows) else ""
            if line and len(line) <= _WIDTH:
                yield line
                return
            yield start if rows else f"{start} {{}}"
            yield from self.mapping(rows, indent)
        else:
            comment = f"  # {unit}" if unit and isinstance(value, int | float) else ""
            yield f"{start} {self.scalar(value)}{comment}"

    def flow(self, rows: list[_Row]) -> str:
        return "{" + ", ".join(f"{_key(key)}: {self.scalar(value)}" for key, value, _ in rows) + "}"

    def sequence(self, start: str, items: list[Any], unit: str | None, indent: str) -> Iterator[str]:
        if not any(map(_nested, items)):
            lines = _wrapped(start, list(map(self.scalar, items)), indent)
            yield from lines[:-1]
            yield lines[-1] + (f"  # {unit}" if unit and items else "")
            return
        yield start
        for item in items:
            lines = list(self.entry("", item, unit, indent + "  "))
            first = lines.pop(0).strip() or lines.pop(0).strip()
            yield f"{indent}- {first}"
            yield from lines

    def scalar(self, value: Any) -> str:
        return _scalar(self.text(value) if isinstance(value, str) else value)


def _nested(value: Any) -> bool:
    return isinstance(value, BaseModel | Mapping | list | tuple | set | frozenset)


def _wrapped(start: str, items: list[str], indent: str) -> list[str]:
    """Write a list of scalars on one line, or on several of the given width; items are not broken."""
    lines = [f"{start} ["]
    for i, item in enumerate(items):
        piece = item + ("," if i < len(items) - 1 else "]")
        if i and len(lines[-1]) + 1 + len(piece) > _WIDTH:
            lines.append(indent + piece)
        else:
            lines[-1] += (" " if i else "") + piece
    return lines if items else [f"{start} []"]


def _key(key: object) -> str:
    text = _scalar(key)
    if len(text) > _LONGEST_KEY:
        raise ValueError(f"a key of more than {_LONGEST_KEY} characters: {text[:20]}...")
    return text


def _scalar(value: Any) -> str:
    if hasattr(value, "item"):   # a numpy scalar
        value = value.item()
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _float(float(value))
    return _text(str(value))


@lru_cache(maxsize=4096)   # keys recur
def _text(text: str) -> str:
    plain = _PLAIN.match(text) and text.lower() not in _BOOLEANS_ELSEWHERE and resolve_scalar(text, Mark()) == text
    return text if plain else _quoted(text)


def _float(value: float) -> str:
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    text = repr(value)
    return text if "." in text else text.replace("e", ".0e")   # without a dot it is text in YAML 1.1


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
