"""Options of programs that set no key, by what becomes of them: the lists of options.json."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

__all__ = ["options"]


@cache
def _lists() -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return found


def options(program: str, use: str) -> list[str]:
    """Return names of options, without dashes; `*` behind a switch, `+` behind one of several words.

    use: `beside` (they do not change when a token is computed), `not_modelled` (they may), or another list of its own.
    """
    return _lists()[program][use]
