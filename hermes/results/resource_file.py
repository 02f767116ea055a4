"""Read and write `resources.json`: the use of links, tiers, machines and shared memory, beside the tables.

These records are few, of different shapes, and contain curves, so that no table of columns fits them. Numbers are
written in full, so that a file reads back equal.
"""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from hermes.config.files import MAX_JSON_BYTES, read_json
from hermes.core.network import LinkUse
from hermes.core.record import MachineInfo, RunRecord, SharingInfo, TierInfo
from hermes.errors import InputError, Verbatim, shown

__all__ = ["RESOURCES", "read_resources", "resources_json"]

RESOURCES = "resources.json"
_KINDS: dict[str, type[Any]] = {"links": LinkUse, "tiers": TierInfo, "machines": MachineInfo, "sharing": SharingInfo}


def resources_json(record: RunRecord) -> str:
    """Return the file's text, one line per resource."""
    parts = []
    for kind in _KINDS:
        rows = [json.dumps(asdict(one), allow_nan=False, ensure_ascii=False) for one in getattr(record, kind)]
        parts.append(f' "{kind}": [' + "".join(f"\n  {row}," for row in rows).removesuffix(",") + "]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def read_resources(folder: Path, clients: int) -> dict[str, list[Any]]:
    """Read `links`, `tiers`, `machines` and `sharing` of a `RunRecord`; empty for older results without the file.

    clients: Number of clients. Raises `InputError` for a file that `resources_json` did not write.
    """
    path = folder / RESOURCES
    if not path.exists():
        return {kind: [] for kind in _KINDS}
    found = read_json(path, MAX_JSON_BYTES)
    try:
        read = {kind: [_made(cls, row) for row in found[kind]] for kind, cls in _KINDS.items()}
        _check(read, clients)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError("links, tiers, machines and sharing as hermes writes them", Verbatim(str(error)),
                         file=str(path)) from None
    return read


def _made(cls: type[Any], row: dict[str, Any]) -> Any:
    """Return a dataclass from a JSON object, with its types checked; fields with a default may be missing."""
    hints, given = get_type_hints(cls), {}
    for name, value in row.items():
        if name not in hints:
            raise ValueError(f"{cls.__name__} has no {name}")
        given[name] = _typed(hints[name], value, f"{cls.__name__}.{name}")
    return cls(**given)


def _typed(hint: Any, value: Any, place: str) -> Any:
    """Return `value` as the field's type requires: numbers of at least 0, lists as tuples."""
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_typed(get_args(hint)[0], item, place) for item in value)
    if type(None) in get_args(hint):
        return None if value is None else _typed(get_args(hint)[0], value, place)
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, dict):
        return _made(hint, value)
    number = type(value) in ((int, float) if hint is float else (int,)) and 0 <= value < 2**62
    if not (number if hint in (int, float) else type(value) is hint):
        raise ValueError(f"{place} is {shown(value, 60)}")
    return value


def _check(read: dict[str, list[Any]], clients: int) -> None:
    links: list[LinkUse] = [*read["links"], *(tier.link for tier in read["tiers"] if tier.link is not None)]
    for link in links:
        if len(link.times_ns) != len(link.sent_bytes) or list(link.times_ns) != sorted(link.times_ns):
            raise ValueError(f"times and bytes of link {link.name!r} do not belong together")
        if not link.bandwidth > 0:
            raise ValueError(f"link {link.name!r} has no bandwidth")
    for one in (*read["machines"], *read["sharing"]):
        if one.client >= clients:
            raise ValueError(f"there is no client {one.client}")
