"""Base of the typed objects of a cluster, and the types of their fields.

An object's fields are a model's, in the order in which they are written: what reads an object (`read`) and what writes
it (`Part.written`) share one description. A field that is neither known nor without effect is refused with its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, model_validator
from pydantic.alias_generators import to_camel

from hermes.config import ConfigModel, validate
from hermes.config.yaml_document import Node
from hermes.errors import InputError, Verbatim
from hermes.sums import float_sum
from hermes.units import s_to_ns

__all__ = ["Duration", "GoDuration", "Keys", "Metadata", "Number", "Object", "Part", "Quantity", "Reference", "Whole",
           "amount_of", "go_duration_of", "placing", "quantity_of", "read", "refuse_set", "seconds_of", "that",
           "whole_of"]

Keys: TypeAlias = dict[str, Any]
"""Keys of a scenario, as its YAML has them."""
P = TypeVar("P", bound="Part")
V = TypeVar("V")

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "\u00b5s": 1e-6, "ns": 1e-9}
_FACTORS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
            "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


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
        given = {} if data is None else data   # a field without a value
        return {key: own for key, own in given.items() if key not in cls.beside} if isinstance(given, dict) else given

    def written(self) -> Keys:
        """Return what was set, as YAML has it."""
        return self.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)


class Metadata(Part):
    """What an object is called; of Kubernetes' fields the ones that are read or written."""

    model_config = ConfigDict(extra="ignore")
    name: str | None = None
    labels: dict[str, str] | None = None


class Reference(Part):
    """The object that is meant."""

    model_config = ConfigDict(extra="ignore")
    api_version: str | None = None
    kind: str | None = None
    name: str | None = None


class Object(Part):
    """An object of a cluster."""

    beside: ClassVar[Collection[str]] = ("status",)
    api_version: str
    kind: str
    metadata: Metadata | None = None


def read(model: type[P], document: Node, path: str = "") -> P:
    """Return an object, or what stands at a path in it. Raises `InputError`, with the place in the file."""
    node: Node | None = document
    for key in path.split(".") if path else ():
        node = None if node is None else node.child(int(key) if key.isdecimal() else key)
    try:
        return validate(model, node or Node(None, document.mark), words={
            "extra_forbidden": Verbatim("is not modelled; remove it if the result may do without"),
            "missing": Verbatim("is missing; write it"), "literal_error": "one of {names}", "string_type": "a text",
            "int_type": "a whole number"})
    except InputError as error:
        raise error.located(field=path or None) from None


@contextmanager
def placing(document: Node) -> Iterator[None]:
    """Give errors that name only a field of a document its place in the file."""
    try:
        yield
    except InputError as error:
        if error.line is not None:
            raise
        raise document.nearest(error.field)[0].mark.error(error.expected, error.found, field=error.field) from None


# -- types of fields ---------------------------------------------------------------------------------------------------

def _number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 2**40:
        raise InputError("a number from 0 on", value)
    return value


def _whole(value: object) -> int:
    number = _number(value)
    if not isinstance(number, int):
        raise InputError("a whole number", number)
    return number


def _form(pattern: str, expected: str, *, number: bool = False) -> BeforeValidator:
    """Field annotation: a text of a form. number: Whether YAML may have it as a number."""
    def checked(value: object) -> str:
        is_text = isinstance(value, str) or (number and isinstance(value, int | float) and not isinstance(value, bool))
        if not is_text or re.fullmatch(pattern, str(value)) is None:
            raise InputError(expected, value)
        return str(value)
    return BeforeValidator(checked)


def that(holds: Callable[[Any], bool], expected: str) -> AfterValidator:   # Any: a value of the annotated type
    """Field annotation: a condition, and what is said where it does not hold."""
    def checked(value: V) -> V:
        if not holds(value):
            raise InputError(expected, value)
        return value
    return AfterValidator(checked)


Number = Annotated[int | float, BeforeValidator(_number)]
Whole = Annotated[int, BeforeValidator(_whole)]
Quantity = Annotated[str, _form(r"[0-9]{1,15}(?:\.[0-9]{1,9})?(?:m|k|[MGT]|[KMGT]i)?",
                                "a quantity such as 10, 500m, 1k or 10Gi", number=True)]
"""Of Kubernetes; `amount_of` has its value."""
Duration = Annotated[str, _form(r"(?:[0-9]{1,5}(?:h|ms|m|s)){1,4}", "a duration such as 10s or 1m30s")]
"""Of the Gateway API; `seconds_of` has its value."""
GoDuration = Annotated[str, _form(
    r"0|(?:(?:[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(?:h|ms|m|s|us|\u00b5s|ns)){1,6}",
    "a duration such as 60s, 200ms or 1m30s")]
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
