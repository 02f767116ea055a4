"""Rolling updates: all replicas of a group are replaced by new ones, a few at a time (Kubernetes' Deployment).

New replicas start as long as there are no more than wanted plus `surge`; old ones go as long as no fewer are ready than
wanted less `unavailable`. Of old ones those that are not ready go first. Draining replicas count as neither.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from hermes.config import ConfigModel, Duration
from hermes.errors import InputError

__all__ = ["Moves", "Update", "moves"]

Count = Annotated[int | str, BeforeValidator(lambda value: _checked(value))]


def _checked(value: object) -> object:
    """Return a number or a percentage; `InputError` for anything else."""
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100_000
    percent = isinstance(value, str) and re.fullmatch(r"\d{1,3}%", value) is not None and int(value[:-1]) <= 100
    if not whole and not percent:
        raise InputError("a number of replicas from 0, or a share of them such as '25%'", value)
    return value


class Update(ConfigModel):
    """A rolling update at a given time: a new version of the engine, or of its model."""

    at: Duration = Field(ge=0)
    """Simulated time at which it begins."""
    surge: Count = "25%"
    """Replicas beyond those wanted, or a share of them, rounded up. They need free slots."""
    unavailable: Count = "25%"
    """Replicas that may be lacking, or a share of those wanted, rounded down."""

    @model_validator(mode="after")
    def _moves(self) -> Self:
        if self.surge in (0, "0%") and self.unavailable in (0, "0%"):
            raise InputError("more than 0 of either, or no replica can be replaced", self.surge, field="surge")
        return self

    def limits(self, wanted: int) -> tuple[int, int]:
        """Return the replicas beyond those wanted, and those that may be lacking. Where both shares come to nothing one
        may be lacking, as with Kubernetes."""
        surge, lacking = _part(self.surge, wanted, up=True), _part(self.unavailable, wanted, up=False)
        return (surge, lacking) if surge or lacking else (0, 1)


def _part(count: int | str, wanted: int, *, up: bool) -> int:
    if isinstance(count, int):
        return count
    share = int(count[:-1]) * wanted / 100
    return math.ceil(share) if up else math.floor(share)


class Moves(NamedTuple):
    """What may happen now: new replicas that start, old ones that are not ready and ready ones that go."""

    start: int
    not_ready: int
    ready: int


def moves(wanted: int, surge: int, unavailable: int, *, new: int, new_ready: int, old: int, old_ready: int) -> Moves:
    """Return what may happen now. new, old: Replicas that are ready, start, or are down; new ones that wait for a slot,
    too."""
    total, least = new + old, wanted - unavailable
    start = max(0, min(wanted - new, wanted + surge - total))
    spare = total - least - (new - new_ready)   # those that may go without fewer ready ones than at present
    not_ready = max(0, min(old - old_ready, spare))
    ready = max(0, min(old_ready, new_ready + old_ready - least))
    return Moves(start=start, not_ready=not_ready, ready=ready)
