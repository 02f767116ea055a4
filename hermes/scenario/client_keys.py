"""Counts of clients that prefill and decode, such as `count: 3P1D`, written out before validation."""

from __future__ import annotations

import re
from dataclasses import replace

from hermes.config.yaml_document import Node
from hermes.errors import Verbatim

__all__ = ["write_out_splits"]

_PART = re.compile(r"\d+\s*[PpDd]")
_SPLIT = re.compile(r"(\d+)\s*P\s*/?\s*(\d+)\s*D\Z")


def write_out_splits(root: Node) -> Node:
    """Return the document with two groups of clients for each with such a count, named NAME-prefill and NAME-decode, or
    prefill and decode without a name. Raises `InputError` for one that has a role too, and for counts of 0."""
    clients = root.child("clients")
    if clients is None or not isinstance(clients.value, list):
        return root
    items = [new for i, client in enumerate(clients.value)
             for new in _written_out(client, f"clients.{i}")]
    if len(items) == len(clients.value):
        return root
    return replace(root, value={**root.value, "clients": replace(clients, value=items)})


def _written_out(client: Node, where: str) -> list[Node]:
    count = client.child("count")
    found = _SPLIT.match(count.value.strip()) if count is not None and isinstance(count.value, str) else None
    if count is None or found is None:
        if count is not None and isinstance(count.value, str) and _PART.match(count.value.strip()):
            raise count.mark.error("a number of clients, or of those that prefill and decode, such as 2P4D",
                                   count.value, field=f"{where}.count")
        return [client]
    if client.child("role") is not None:
        raise client.value["role"].mark.error(
            Verbatim(f"count {count.value} says which clients prefill and decode; leave role out"),
            field=f"{where}.role")
    if "0" in (found[1].lstrip("0") or "0", found[2].lstrip("0") or "0"):
        raise count.mark.error("at least one client of each role", count.value, field=f"{where}.count")
    name = client.child("name")
    out = []
    for role, number in zip(("prefill", "decode"), found.groups(), strict=True):
        own = role if name is None else f"{name.value}-{role}"
        changed = {"name": own, "role": role, "count": int(number)}
        marks = {key: Node(value, count.mark, count.key) for key, value in changed.items()}
        out.append(replace(client, value={**client.value, **marks}))
    return out
