"""Ask systems for rising rates until they no longer meet their SLOs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import pandas as pd

__all__ = ["MISSES", "climb"]

System = TypeVar("System", bound=Hashable)

MISSES = 2
"""Misses in a row, after which a system is asked for no more."""


def climb(
    systems: Sequence[System], rates: Sequence[float],
    simulate: Callable[[float, Sequence[System]], pd.DataFrame], met: str = "slo.pass",
) -> pd.DataFrame:
    """Return the rows of all points simulated, by system in the given order, then by rate.

    Args:
        systems: The systems; all start at the lowest rate.
        rates: Rates, ascending.
        simulate: Function of a rate and the systems still in it -> a row for each, in their order.
        met: Column that tells whether a system meets the SLOs in question.
    """
    missed = dict.fromkeys(systems, 0)
    places = {system: place for place, system in enumerate(systems)}
    frames = []
    for rate in rates:
        alive = [system for system in systems if missed[system] < MISSES]
        if not alive:
            break
        frame = simulate(rate, alive)
        for system, good in zip(alive, frame[met], strict=True):
            missed[system] = 0 if good else missed[system] + 1
        frames.append(frame.assign(place=[places[system] for system in alive], step=rate))
    found = pd.concat(frames, ignore_index=True)
    return found.sort_values(["place", "step"], ignore_index=True).drop(columns=["place", "step"]).copy()
