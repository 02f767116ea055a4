"""Read and write `resources.json`: the use of links, tiers, machines and shared memory, beside the tables.

These records are few, of different shapes, and contain curves, so that no table of columns fits them. Numbers are
written in full, so that a file reads back equal.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hermes.core.network import LinkUse
from hermes.core.record import MachineInfo, RunRecord, SharingInfo, TierInfo
from hermes.errors import InputError

__all__ = ["RESOURCES", "read_resources", "resources_json"]

RESOURCES = "resources.json"
_KINDS = ("links", "tiers", "machines", "sharing")


def resources_json(record: RunRecord) -> str:
    """Return the file's text, one line per resource."""
    parts = []
    for kind in _KINDS:
        rows = [json.dumps(asdict(one), allow_nan=False, ensure_ascii=False) for one in getattr(record, kind)]
        parts.append(f' "{kind}": [' + "".join(f"\n  {row}," for row in rows).removesuffix(",") + "]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def read_resources(folder: Path) -> dict[str, list[Any]]:
    """Read `links`, `tiers`, `machines` and `sharing` of a `RunRecord`; empty for older results without the file.

    Raises `InputError` for a file that `resources_json` did not write.
    """
    path = folder / RESOURCES
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {kind: [] for kind in _KINDS}
    except json.JSONDecodeError as error:
        raise InputError("JSON", error.msg, file=str(path), line=error.lineno, column=error.colno) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("a readable file", str(error), file=str(path)) from None
    try:
        return {
            "links": [_link(row) for row in found["links"]], "tiers": [_tier(row) for row in found["tiers"]],
            "machines": [MachineInfo(**row) for row in found["machines"]],
            "sharing": [SharingInfo(**row) for row in found["sharing"]],
        }
    except (KeyError, TypeError) as error:
        found = str(error)
        raise InputError("links, tiers, machines and sharing as hermes writes them", found, file=str(path)) from None


def _link(row: dict[str, Any]) -> LinkUse:
    return LinkUse(**{**row, "times_ns": tuple(row["times_ns"]), "sent_bytes": tuple(row["sent_bytes"])})


def _tier(row: dict[str, Any]) -> TierInfo:
    link = None if row["link"] is None else _link(row["link"])
    return TierInfo(**{**row, "clients": tuple(row["clients"]), "link": link})
