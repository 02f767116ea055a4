"""Keys of clients that are rewritten before validation: deprecated names, and `count: 3P1D`.

A deprecated key moves to its new name, with a warning. The next release refuses the old names, as it does those of
`tiers`: the message says what to write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from hermes.config.yaml_document import Node
from hermes.errors import Verbatim

__all__ = ["rename_deprecated_keys", "write_out_splits"]

_PART = re.compile(r"\d+\s*[PpDd]")
_SPLIT = re.compile(r"(\d+)\s*P\s*/?\s*(\d+)\s*D\Z")


def rename_deprecated_keys(root: Node, *, warn: bool = True) -> Node:
    """Return the document with deprecated keys of LLM clients under their new names. Raises `InputError` for old keys
    that have none."""
    clients = root.child("clients")
    if clients is None or not isinstance(clients.value, list):
        return root
    for i, client in enumerate(clients.value):
        _refuse_old_tiers(client, f"clients.{i}")
    items = [_client(client, f"clients.{i}", warn) for i, client in enumerate(clients.value)]
    if all(new is old for new, old in zip(items, clients.value, strict=True)):
        return root
    return replace(root, value={**root.value, "clients": replace(clients, value=items)})


def _client(client: Node, path: str, warn: bool) -> Node:
    kind = client.child("kind")
    if not isinstance(client.value, dict) or (kind is not None and kind.value != "llm"):
        return client
    for section, old, owner, new in _moves(client):
        inner = client.value[section]
        value = inner.value[old]
        target = client if owner == "" else inner
        new_path = ".".join(part for part in (path, owner, new) if part)
        if target.child(new) is not None:   # both are given: validation reports the unknown or contradicting one
            continue
        rest = {key: item for key, item in inner.value.items() if key != old}
        if owner == "":
            value = replace(value, value=f"vllm-{value.value}")
            client = replace(client, value={**client.value, section: replace(inner, value=rest), new: value})
        else:
            client = replace(client, value={**client.value, section: replace(inner, value={**rest, new: value})})
        if warn:
            (value.key or value.mark).warn(f"{path}.{section}.{old} is deprecated; write {new_path}: {value.plain()} "
                                           "instead (the next release refuses the old key)")
    return client


def _refuse_old_tiers(client: Node, path: str) -> None:
    """Raise `InputError` for the names that tiers of KV and their eviction had."""
    kind = client.child("kind")
    if kind is not None and kind.value not in ("llm", "kv_retrieval"):
        return
    old, tiers = client.child("kv_offload"), client.child("tiers")
    if old is not None:
        raise (old.key or old.mark).error(Verbatim("write `tiers`, with `levels` for its list of tiers: this key of a "
                                                   "client has a new name"), field=f"{path}.kv_offload")
    if tiers is not None and isinstance(tiers.value, list):
        raise (tiers.key or tiers.mark).error(Verbatim("write tiers: {levels: [...]}; `write`, `promote` and the "
                                                       "like stand beside `levels`"), field=f"{path}.tiers")
    levels = None if tiers is None else tiers.child("levels")
    for i, level in enumerate(levels.value if levels is not None and isinstance(levels.value, list) else ()):
        policy = level.child("policy")
        if policy is not None:
            raise (policy.key or policy.mark).error(Verbatim("write `eviction`: this key of a tier has a new name"),
                                                    field=f"{path}.tiers.levels.{i}.policy")


def _moves(client: Node) -> Iterator[tuple[str, str, str, str]]:
    """Yield (section, old key, section of the new key, new key) of the deprecated keys of a client."""
    for move in (("scheduler", "engine_version", "", "engine"), ("memory", "engine", "memory", "engine_reserve")):
        section = client.child(move[0])
        if section is not None and section.child(move[1]) is not None:
            yield move


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
