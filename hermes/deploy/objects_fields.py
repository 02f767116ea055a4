"""Fields of an object of a cluster, read with their types; what is not known is refused with its line."""

from __future__ import annotations

import re
from collections.abc import Collection

from hermes.config.yaml_document import Node
from hermes.errors import Verbatim
from hermes.sums import float_sum

__all__ = ["BESIDE", "duration_of", "fields_of", "go_duration_of", "items_of", "node_at", "number_of", "quantity_of",
           "text_of", "whole_of"]

BESIDE = ("apiVersion", "kind", "metadata", "status")  # no effect on timing
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "\u00b5s": 1e-6, "ns": 1e-9}
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
            "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def node_at(node: Node | None, *keys: str) -> Node | None:
    for key in keys:
        node = None if node is None else node.child(key)
    return node


def fields_of(node: Node | None, path: str, known: Collection[str], beside: Collection[str] = ()) -> dict[str, Node]:
    """Return the fields of a mapping; refuse those that are neither known nor without effect."""
    if node is None or node.value is None:
        return {}
    if not isinstance(node.value, dict):
        raise node.mark.error("a mapping", node.plain(), field=path)
    for key, child in node.value.items():
        if key not in known and key not in beside:
            raise (child.key or child.mark).error(
                Verbatim("is not modelled; remove it if the result may do without"), field=f"{path}.{key}".strip("."))
    return {key: child for key, child in node.value.items() if key in known}


def items_of(node: Node | None, path: str) -> list[Node]:
    if node is None:
        return []
    if not isinstance(node.value, list):
        raise node.mark.error("a list", node.plain(), field=path)
    return node.value


def text_of(node: Node | None, path: str, at: Node, allowed: Collection[str] | None = None) -> str:
    if node is None:
        raise at.mark.error(Verbatim("is missing; write it"), field=path)
    if not isinstance(node.value, str) or (allowed is not None and node.value not in allowed):
        expected = "a text" if allowed is None else f"one of {', '.join(allowed) or 'those that there are, none'}"
        raise node.mark.error(expected, node.plain(), field=path)
    return node.value


def number_of(node: Node, path: str) -> float:
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 2**40:
        raise node.mark.error("a number from 0 on", node.plain(), field=path)
    return value


def whole_of(node: Node, path: str) -> int:
    value = number_of(node, path)
    if not isinstance(value, int):
        raise node.mark.error("a whole number", value, field=path)
    return value


def quantity_of(node: Node, path: str) -> float:
    """Return a quantity of Kubernetes, such as 10, "10", 500m, 1k or 10Gi."""
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(m|k|[MGT]|[KMGT]i)?", str(node.value))
    if found is None or isinstance(node.value, bool):
        raise node.mark.error("a quantity such as 10, 500m, 1k or 10Gi", node.plain(), field=path)
    return float(found[1]) / 1000 if found[2] == "m" else float(found[1]) * _FACTORS[found[2] or ""]


def duration_of(node: Node, path: str) -> float | None:
    """Return a duration of the Gateway API; None for 0s, which means none."""
    text = node.value
    if not isinstance(text, str) or not re.fullmatch(r"(?:[0-9]{1,5}(?:h|ms|m|s)){1,4}", text):
        raise node.mark.error("a duration such as 10s or 1m30s", node.plain(), field=path)
    return _seconds(text) or None


def go_duration_of(node: Node, path: str) -> float:
    """Return a duration of Go, which may have decimals."""
    text = node.value
    if not isinstance(text, str) or not re.fullmatch(
            r"0|(?:(?:[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(?:h|ms|m|s|us|\u00b5s|ns)){1,6}", text):
        raise node.mark.error("a duration such as 60s, 200ms or 1m30s", node.plain(), field=path)
    return _seconds(text)


def _seconds(text: str) -> float:
    return float_sum(float(number) * _UNITS[unit]
                     for number, unit in re.findall(r"([0-9.]+)(h|ms|m|s|us|\u00b5s|ns)", text))
