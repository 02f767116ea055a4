"""Budgets of the house: `house.json` has a number for each part of each measure, and the issue that set it.

A number may fall at any time. It rises only to a figure that an issue states, in a commit that names the issue; that is
why no command writes the file. A part without a budget is over it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NotRequired, TypedDict

__all__ = ["Budget", "Numbers", "budgets", "over"]

FILE = Path(__file__).with_name("house.json")
Numbers = Mapping[str, float]


class Budget(TypedDict):
    number: float
    issue: str
    why: NotRequired[str]


def budgets(file: Path = FILE) -> dict[str, dict[str, Budget]]:
    """Return the budgets of the parts of each measure."""
    found: dict[str, dict[str, Budget]] = json.loads(file.read_text(encoding="utf-8"))
    return found


def over(measure: str, now: Numbers, allowed: Mapping[str, Budget], tolerance: float = 1.0) -> list[str]:
    """Return what is larger than its budget times `tolerance`, or has none, one line each."""
    wrong = []
    for part, number in now.items():
        if part not in allowed:
            wrong.append(f"{measure} of {part}: {number:,.10g}, and no issue gave it a budget")
        elif number > tolerance * allowed[part]["number"]:
            wrong.append(f"{measure} of {part}: {number:,.10g}, the budget of {allowed[part]['issue']} is "
                         f"{allowed[part]['number']:,.10g}")
    return wrong
