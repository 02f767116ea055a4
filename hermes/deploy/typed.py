"""Base of the typed objects of a cluster, and the types of their fields.

An object's fields are a model's, in the order in which they are written: what reads an object (`read`) and what writes
it (`Part.written`) share one description. A field that is neither known nor without effect is refused with its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from pydantic import BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from hermes.config import ConfigModel
from hermes.config.yaml_document import Node
from hermes.deploy.nodes import at
from hermes.errors import InputError, Verbatim
from hermes.sums import float_sum
from hermes.units import s_to_ns

__all__ = ["NOT_MODELLED", "Duration", "GoDuration", "Keys", "Number", "Object", "Part", "Quantity", "Whole",
           "amount_of", "as_go_duration", "as_number", "as_whole", "go_duration_of", "one_of", "placing", "quantity_of",
           "read", "refuse_set", "seconds_of", "that", "whole_of"]

Keys: TypeAlias = dict[str, Any]
"""Keys of a scenario, as its YAML has them."""
NOT_MODELLED = Verbatim("is not modelled; remove it if the result may do without")
P = TypeVar("P", bound="Part")
V = TypeVar("V")

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "\u00b5s": 1e-6, "ns": 1e-9}
_FACTORS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
            "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_EXPECTED = {"string_type": "a text", "int_type": "a whole number", "bool_type": "true or false",
             "list_type": "a list", "dict_type": "a mapping", "model_type": "a mapping"}   # by pydantic's type of error
_WHY = {"attempts": "gateways differ in it, so ", "maxReplicaCount": "KEDA takes 100, so "}   # of what is missing


class Part(ConfigModel):
    """Part of an object; its fields are named as in YAML, in snake case.

    Attributes:
        beside: Fields without an effect on timing, which are passed over.
    """

    model_config = ConfigDict(alias_generator=lambda name: re.sub("Ttl$", "TTL", to_camel(name)), populate_by_name=True)
    beside: ClassVar[Collection[str]] = ()

    @model_validator(mode="before")
    @classmethod
    def _given(cls, data: object) -> object:
        if not isinstance(data, dict):
            return {} if data is None else data   # a field without a value is left out
        return {key: own for key, own in data.items() if key not in cls.beside and own is not None}

    @classmethod
    def checked(cls, given: Keys) -> Keys:
        """Return what is to be written, which fits."""
        cls.model_validate(given)
        return given

    def written(self) -> Keys:
        """Return what was set, as YAML has it."""
        return self.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)


class Object(Part):
    """An object of a cluster. `metadata` is written, and not read."""

    beside: ClassVar[Collection[str]] = ("status",)
    api_version: str
    kind: str
    metadata: object = None


def read(model: type[P], document: Node, path: str = "") -> P:
    """Return an object, or what stands at a path in it. Raises `InputError`, with the place in the file."""
    node = at(document, *path.split(".")) if path else document
    try:
        return model.model_validate(None if node is None else node.plain())
    except ValidationError as error:
        first = min(error.errors(include_url=False), key=lambda item: item["type"] == "missing")   # a mistyped field
        raise _error(first, document, path) from None


def _error(item: Any, document: Node, path: str) -> InputError:   # Any: one error of pydantic
    kind, loc = item["type"], [part for part in item["loc"] if part != "[key]"]
    field = ".".join(map(str, (path, *loc) if path else loc))
    cause, place = item.get("ctx", {}).get("error"), document.nearest(field)[0]
    if kind == "extra_forbidden" or len(loc) < len(item["loc"]):
        return (place.key or place.mark).error(NOT_MODELLED, field=field)
    if kind == "missing":
        return place.mark.error(Verbatim(f"is missing; {_WHY.get(field.rpartition('.')[2], '')}write it"), field=field)
    if isinstance(cause, InputError):
        field = ".".join(filter(None, (field, cause.field)))
        return document.nearest(field)[0].mark.error(cause.expected, cause.found, field=field or None)
    names = re.findall(r"'([^']*)'", str(item.get("ctx", {}).get("expected")))
    expected = f"one of {', '.join(names)}" if names else _EXPECTED.get(kind, "another value")
    return place.mark.error(expected, place.plain(), field=field or None)


@contextmanager
def placing(document: Node) -> Iterator[None]:
    """Give errors that name only a field of a document its place in the file."""
    try:
        yield
    except InputError as error:
        if error.line is not None:
            raise
        node = document.nearest(error.field)[0]
        mark = (node.key or node.mark) if error.expected == NOT_MODELLED else node.mark
        raise mark.error(error.expected, error.found, field=error.field) from None


# -- types of fields ---------------------------------------------------------------------------------------------------

def as_number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 2**40:
        raise InputError("a number from 0 on", value)
    return value


def as_whole(value: object) -> int:
    if not isinstance(value, int | float):
        raise InputError("a whole number from 0 on", value)
    if not isinstance(as_number(value), int):
        raise InputError("a whole number", value)
    return int(value)


def one_of(*names: str) -> Callable[[object], str]:
    """Return a check of a text; without names any will do."""
    def checked(value: object) -> str:
        if not isinstance(value, str) or (names and value not in names):
            raise InputError(f"one of {', '.join(names)}" if names else "a text", value)
        return value
    return checked


def _form(pattern: str, expected: str, *, number: bool = False) -> Callable[[object], str]:
    """Return a check of a text's form. number: Whether YAML may have it as a number."""
    def checked(value: object) -> str:
        is_text = isinstance(value, str) or (number and isinstance(value, int | float) and not isinstance(value, bool))
        if not is_text or re.fullmatch(pattern, str(value)) is None:
            raise InputError(expected, value)
        return str(value)
    return checked


def that(check: Callable[[object], V], holds: Callable[[V], bool], expected: str) -> Callable[[object], V]:
    """Return a check with a condition, and what is said where it does not hold."""
    def checked(value: object) -> V:
        if not holds(read := check(value)):
            raise InputError(expected, value)
        return read
    return checked


as_go_duration = _form(r"0|(?:(?:[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(?:h|ms|m|s|us|\u00b5s|ns)){1,6}",
                       "a duration such as 60s, 200ms or 1m30s")
Number = Annotated[int | float, BeforeValidator(as_number)]
Whole = Annotated[int, BeforeValidator(as_whole)]
Quantity = Annotated[str, BeforeValidator(_form(
    r"[0-9]{1,15}(?:\.[0-9]{1,9})?(?:m|k|[MGT]|[KMGT]i)?", "a quantity such as 10, 500m, 1k or 10Gi", number=True))]
"""Of Kubernetes; `amount_of` has its value."""
Duration = Annotated[str, BeforeValidator(_form(
    r"(?:[0-9]{1,5}(?:h|ms|m|s)){1,4}", "a duration such as 10s or 1m30s"))]
"""Of the Gateway API; `seconds_of` has its value."""
GoDuration = Annotated[str, BeforeValidator(as_go_duration)]
"""Of Go, which may have decimals."""


def amount_of(quantity: str) -> float:
    """Return the value of a quantity."""
    number, unit = re.fullmatch(r"([0-9.]+)(\w*)", quantity).groups()   # type: ignore[union-attr]
    return float(number) * _FACTORS[unit]


def seconds_of(duration: str) -> float:
    """Return the seconds of a duration."""
    return float_sum(float(number) * _UNITS[unit]
                     for number, unit in re.findall(r"([0-9.]+)(h|ms|m|s|us|\u00b5s|ns)", duration))


# -- the way back ------------------------------------------------------------------------------------------------------

def refuse_set(config: ConfigModel, keys: Collection[str], path: str, kind: str) -> None:
    """Refuse keys of a scenario that have no field in a kind of object, unless they are at their defaults."""
    for key in keys:
        if getattr(config, key) != type(config).model_fields[key].default:
            raise InputError(Verbatim(f"has no field in {kind}; leave it out"), field=f"{path}.{key}")


def whole_of(value: float, path: str) -> int:
    """Return a whole number of a scenario."""
    if value != int(value):
        raise InputError("a whole number, as objects of Kubernetes have", value, field=path)
    return int(value)


def quantity_of(value: float, path: str, *, unit: bool = True) -> str:
    """Return a number with three decimals, or in thousandths with their unit."""
    thousandths = round(value * 1000)
    if abs(thousandths - value * 1000) > 1e-6:
        raise InputError("whole thousandths, as quantities of Kubernetes have", value, field=path)
    if thousandths % 1000 == 0:
        return str(thousandths // 1000)
    return f"{thousandths}m" if unit else f"{thousandths / 1000:.3f}".rstrip("0")


def go_duration_of(seconds: float) -> str:
    """Return seconds as a duration of Go."""
    whole, rest = divmod(s_to_ns(seconds), 10**9)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".") + "s"
