"""The availability of k of n independent replicas, in closed form.

A replica of a group fails at the rate r (of all kinds), and its capacity is back after the mean time d. In the long run
it is sound for the share p = 1 / (1 + r d), whatever the distributions are (an alternating renewal process; Barlow and
Proschan, Statistical Theory of Reliability and Life Testing, 1975), and the number of sound ones of n independent ones
is binomial. The SLO holds in the states that keep it, less the time to recover after each failure in them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

from hermes.sums import float_sum

__all__ = ["Rate", "k_of_n", "sound_share", "states_share"]


class Rate(NamedTuple):
    """Failures of one kind of a group.

    Attributes:
        per_s: Of each replica, per second.
        back_s: Mean time until capacity is back.
        several: Whether one takes several replicas.
    """

    group: str
    kind: str
    per_s: float
    back_s: float
    several: bool = False


def sound_share(rates: Sequence[Rate]) -> float:
    """Return the share of time in which a replica with these failures is sound."""
    return 1.0 / (1.0 + float_sum(one.per_s * one.back_s for one in rates))


def states_share(full: Sequence[int], sound: Sequence[float], counts: Sequence[int]) -> float:
    """Return the share of time in which so many replicas of each group are sound. sound: Share of time of one."""
    return math.prod(math.comb(n, i) * p**i * (1.0 - p) ** (n - i) for n, p, i in zip(full, sound, counts, strict=True))


def k_of_n(names: Sequence[str], full: Sequence[int], rates: Sequence[Rate], met: Mapping[tuple[int, ...], bool],
           recover_s: Mapping[tuple[str, str, tuple[int, ...]], float]) -> tuple[float | None, str]:
    """Return the share of time within the SLO, and why it is not known where it is None.

    Args:
        names: Groups. full: Their replicas.
        met: Whether a state keeps the SLO; of those that are not in it, fewer replicas than one that misses it miss.
        recover_s: Time to recover from a failure of a kind, of a group, in a state.
    """
    if any(one.several for one in rates):
        return None, "a failure takes several replicas"
    sound = [sound_share([one for one in rates if one.group == name]) for name in names]
    share = 0.0
    for counts in product(*(range(n, -1, -1) for n in full)):
        if not met.get(counts, False):
            continue
        out = float_sum(number * one.per_s * recover_s.get((one.kind, one.group, counts), 0.0)
                        for name, number in zip(names, counts, strict=True) for one in rates if one.group == name)
        share += states_share(full, sound, counts) * max(1.0 - out, 0.0)
    return share, ""
