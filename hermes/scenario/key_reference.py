"""Reference of the keys of a scenario: name, type, default and meaning of each, read from the models that validate it.

`hermes schema --explain KEY` prints it for one key; the site has a page of all keys, made from it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hermes.config import Component, Shorthand, field_docs
from hermes.config.registry import Registry
from hermes.config.yaml_writer import to_flow, unit_of
from hermes.errors import InputError, suggest
from hermes.scenario.schema import Scenario

__all__ = ["Key", "Place", "Section", "keys_of", "kinds_of", "places", "title"]

Section = type[BaseModel] | Registry[type[BaseModel]]
"""What a key's value contains: a mapping with known keys, or one of the components of a registry."""

_QUANTITIES = {"s": "duration", "B": "size", "B/s": "bandwidth", "/s": "rate"}
_WORDS: dict[object, str] = {int: "integer", float: "number", str: "text", bool: "`true`, `false`"}
_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))


@dataclass(frozen=True)
class Key:
    """One key of a mapping, in words."""

    name: str
    type: str
    default: str
    """The default as YAML, `**required**`, or `its defaults`."""
    text: str
    """What the key means."""
    sections: tuple[Section, ...]


def title(section: Section) -> str:
    """Return the heading of a section: `LLMClientConfig` is "LLMClient"; a registry has the name of its errors."""
    if isinstance(section, Registry):
        return section.what.split(" ", 1)[1].capitalize()
    return section.__name__.removesuffix("Config")


def keys_of(model: type[BaseModel], link: Callable[[Section], str] = title) -> list[Key]:
    """Return the keys of a mapping, without `kind`. link: returns the words that name a section."""
    docs = field_docs(model)
    return [Key(name, _type(field.annotation, field.metadata, link), _default(field),
                " ".join(docs.get(name, "").split()), tuple(_sections(field.annotation, field.metadata)))
            for name, field in model.model_fields.items() if name != "kind" and not field.exclude]


def _sections(annotation: object, metadata: Iterable[object] = ()) -> Iterator[Section]:
    """Yield the sections that a value of a type may have."""
    registries = [item.registry for item in metadata if isinstance(item, Component)]
    yield from registries
    if not registries and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif not registries and get_origin(annotation) is Annotated:
        yield from _sections(get_args(annotation)[0], get_args(annotation)[1:])
    elif not registries and get_origin(annotation) is not Literal:
        for argument in get_args(annotation):
            yield from _sections(argument)


@dataclass(frozen=True)
class Place:
    """A dotted path of a scenario."""

    path: str
    key: Key | None
    """None for the whole scenario, and for a component of a kind."""
    section: Section | None
    """What stands below, or None for a plain value."""


def places(path: str) -> list[Place]:
    """Return the places that a dotted path names, such as `clients.scheduler.max_num_seqs`.

    Positions in a list may be left out (`clients.0.count` is `clients.count`). The kind of a component may follow its
    key (`router.llm_d`); without it the places of all kinds are returned.

    Raises `InputError` for a path that no scenario has.
    """
    found = [Place("", None, Scenario)]
    words = [word for word in path.split(".") if word and not word.isdecimal()]
    for number, word in enumerate(words):
        below = [each for place in found if place.section is not None for each in _below(place, place.section)]
        known = list(dict.fromkeys(name for name, _place in below))
        if word not in known:
            above = ".".join(words[:number])
            if not known:
                raise InputError(f"no key below {above}, which is a plain value", word, field="--explain")
            say = f"`hermes schema --explain {above}` lists them" if above else ", ".join(known)
            raise InputError(f"a key of {above or 'a scenario'} ({say})", word, field="--explain",
                             suggestion=suggest(word, known))
        found = [place for name, place in below if name == word]
    return found


def _below(place: Place, section: Section) -> Iterator[tuple[str, Place]]:
    """Yield (name, place) of the kinds of a registry, or of one of several mappings, and of all keys below."""
    start = f"{place.path}." if place.path else ""
    if isinstance(section, Registry):
        chosen = [(kind, Place(f"{start}{kind}", None, section.get(kind))) for kind in section.names()]
        for kind, below in chosen:
            yield kind, below
            yield from _below(below, section.get(kind))
        return
    if place.key is not None:   # a kind is not named twice
        yield from ((kind, Place(f"{start}{kind}", None, section)) for kind in kinds_of(section))
    for key in keys_of(section):
        for inner in key.sections or (None,):
            yield key.name, Place(f"{start}{key.name}", key, inner)


def kinds_of(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the values of `kind` by which a mapping is told from others in its place."""
    field = model.model_fields.get("kind")
    return get_args(field.annotation) if field is not None and get_origin(field.annotation) is Literal else ()


def _type(annotation: object, metadata: Iterable[object], link: Callable[[Section], str]) -> str:
    """Return a field's type in words."""
    for item in metadata:
        if isinstance(item, Component):
            short = [_WORDS[other.kind_of] for other in metadata if isinstance(other, Shorthand)]
            return " or ".join([*short, link(item.registry)])
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0], arguments[1:], link)
    unit = unit_of(None, metadata)
    if unit:
        return f"{_QUANTITIES[unit]} ({unit}){_bounds(metadata, skip_zero=True)}"
    if origin in (Union, types.UnionType):
        some = [_type(one, metadata, link) for one in arguments if one is not type(None)]
        return " or ".join(dict.fromkeys(some))
    if origin is Literal:
        return ", ".join(f"`{to_flow(value)}`" for value in arguments)
    if origin in (list, set, tuple):
        return f"list of {_type(arguments[0], (), link)}"
    if origin is dict:
        return f"mapping to {_type(arguments[1], (), link)}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return link(annotation)
    return _WORDS.get(annotation, "any") + _bounds(metadata)


def _bounds(metadata: Iterable[object], *, skip_zero: bool = False) -> str:
    """Return the bounds that a user may run into; those far beyond any use are left out."""
    words = []
    for item in metadata:
        for part in (item.metadata if isinstance(item, FieldInfo) else [item]):   # one inside Annotated
            for name, sign in _BOUNDS:
                limit = getattr(part, name, None)
                if limit is not None and abs(limit) < 1000 and not (skip_zero and limit == 0):
                    words.append(f"{sign} {to_flow(limit)}")
    return " " + ", ".join(dict.fromkeys(words)) if words else ""


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, BaseModel) and value == type(value).model_construct():
        return "its defaults"
    return "**required**" if value is PydanticUndefined else f"`{to_flow(value)}`"
