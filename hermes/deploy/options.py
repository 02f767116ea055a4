"""Names that programs and manifests have for their options, by what becomes of them: the lists of options.json."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TypeAlias

__all__ = ["options", "pairs"]

_Lists: TypeAlias = dict[str, dict[str, list[str] | dict[str, str]]]


@cache
def _lists() -> _Lists:
    found: _Lists = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return found


def options(program: str, use: str) -> list[str]:
    """Return names of options, without dashes; `*` behind a switch, `+` behind one of several words.

    use: `beside` (they do not change when a token is computed), `not_modelled` (they may), or another list of its own.
    """
    return list(_lists()[program][use])


def pairs(program: str, use: str) -> dict[str, str]:
    """Return names of options, and what each stands for.

    use: `keys` (the key of a client that a flag sets, its kind, and a value that sets nothing), `aliases` and `short`
    (the flag's name), or `refused` (why).
    """
    found = _lists()[program][use]
    assert isinstance(found, dict)
    return found
