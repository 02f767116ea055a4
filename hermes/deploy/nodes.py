"""Values of manifests by their keys, as text, numbers and lists; a missing one is None, empty, or the default."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hermes.config.yaml_document import Node, is_index
from hermes.errors import InputError, Verbatim

__all__ = ["at", "fields", "is_off", "is_on", "items", "named", "placed", "text", "texts", "value", "walk", "whole"]


def at(node: Node | None, *keys: str) -> Node | None:
    """Return the node under keys; those of a list are its indexes."""
    for key in keys:
        node = None if node is None else node.child(int(key) if isinstance(node.value, list) and is_index(key) else key)
    return node


def value(node: Node | None, *keys: str) -> Any:   # Any: of a YAML document
    """Return what stands under keys: nodes in a mapping or list, or a scalar; None if it is missing."""
    found = at(node, *keys)
    return None if found is None else found.value


def text(node: Node | None, *keys: str) -> str | None:
    """Return a scalar as text; None if it is missing or empty."""
    found = at(node, *keys)
    if found is None or found.value is None or isinstance(found.value, dict | list):
        return None
    return str(found.value).lower() if isinstance(found.value, bool) else str(found.value)


def texts(node: Node | None, key: str) -> list[str]:
    """Return a list of words. Raises `InputError` for something else."""
    found = at(node, key)
    if found is None or found.value is None:
        return []
    if not isinstance(found.value, list) or any(isinstance(item.value, dict | list) for item in found.value):
        raise found.mark.error("a list of words", Verbatim("something else"), field=key)
    return ["" if item.value is None else str(item.value) for item in found.value]


def items(node: Node | None, *keys: str) -> list[Node]:
    """Return the nodes of a list. Raises `InputError` for something else."""
    found = at(node, *keys)
    if found is None or found.value is None:
        return []
    if not isinstance(found.value, list):
        raise found.mark.error("a list", Verbatim("something else"), field=keys[-1] if keys else None)
    return found.value


def walk(node: Node, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
    """Yield a node and all below it, each with the keys and indexes that lead to it."""
    yield keys, node
    if isinstance(node.value, dict | list):
        for key, child in node.value.items() if isinstance(node.value, dict) else enumerate(node.value):
            yield from walk(child, (*keys, str(key)))


def fields(node: Node | None) -> Iterator[tuple[str, Node]]:
    """Yield the keys and nodes of a mapping."""
    if node is not None and isinstance(node.value, dict):
        yield from node.value.items()


def whole(node: Node | None, key: str, default: int) -> int:
    """Return a whole number. Raises `InputError` for something else."""
    found = at(node, key)
    if found is None or found.value is None:
        return default
    number = str(found.value)
    if not number.isdecimal() or len(number) > 6:
        raise found.mark.error("a whole number from 0 to 999999", found.value, field=key)
    return int(number)


def is_on(node: Node | None, *keys: str) -> bool:
    """Whether a switch is true."""
    child = at(node, *keys)
    return child is not None and child.value is True


def is_off(node: Node | None, *keys: str) -> bool:
    """Whether a switch is false: written so, not missing."""
    child = at(node, *keys)
    return child is not None and child.value is False


def named(what: str, node: Node | None) -> str:
    """Return words with the line of a node."""
    line = None if node is None else (node.key or node.mark).line
    return what if line is None else f"{what} (line {line})"


@contextmanager
def placed(node: Node) -> Iterator[None]:
    """Give errors that name no file the place of a node."""
    try:
        yield
    except InputError as error:
        if error.file is not None or node.mark.file is None:
            raise
        raise node.mark.error(error.expected, error.found, field=error.field, suggestion=error.suggestion) from None
