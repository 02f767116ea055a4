"""How much more load the answer of `hermes size` takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hermes.explore.bracket import Bracket
from hermes.explore.capacity import RATIO, axis_of
from hermes.explore.certain_miss import CERTAIN
from hermes.explore.objective import is_ended, missed, nearest_to_limit
from hermes.explore.size.layouts import changes
from hermes.explore.trials import Trials

if TYPE_CHECKING:
    from hermes.explore.size import Tried

__all__ = ["MOST_LOADS", "crossing", "headroom_of"]

STRIDE, MOST_LOADS = 4, 8
FAR = 6   # the first stride is a sixth of what the latency lacks to its limit


def headroom_of(trials: Trials, clients: Sequence[Mapping[str, object]], best: Tried) -> float:
    """Search for the highest load that a layout takes, in steps of 1% from its own: where its latency may reach its
    limit by the loads known; by strides and halves where that is not known, or beyond them."""
    axis = axis_of(trials.scenario, "rate")
    shares = {0: nearest[1]} if (nearest := nearest_to_limit(best.row)) else {}
    stride = max(STRIDE, *(round(-math.log(share) / math.log(RATIO) / FAR) for share in (1.0, *shares.values())))
    bracket = Bracket(0, stride, known={0: True}, confirm=0)
    while (level := bracket.choose()) is not None and len(bracket.known) < MOST_LOADS:
        load = axis.load(level)
        label = f"{best.label} at {load:g} times the load"
        seed = trials.scenario.seed if best.seed is None else best.seed   # that of the answer's figures
        row = trials.run({label: (axis.settings(load) | changes(clients, best.kind, best.clients), seed)},
                         until_missed=CERTAIN)[label]
        bracket.known[level] = missed(row) is None
        if not is_ended(row) and (nearest := nearest_to_limit(row)):
            shares[level] = nearest[1]
        low, high, likely = bracket.meets_up_to or 0, bracket.misses_from, crossing(shares)
        if likely is not None and likely < (max(low + stride, 3 * low) if high is None else high):
            bracket.hint = max(math.floor(likely), low + 1)
    return RATIO ** (bracket.meets_up_to or 0) - 1.0


def crossing(shares: Mapping[int, float]) -> float | None:
    """Return the level at which the latency nearest to its limit reaches it, by a line of its logarithm through the
    highest level below that and the lowest above it, or where none is known the lowest of all. None where fewer are
    known, or it does not grow.

    shares: Level -> share of the limit.
    """
    above = min((level for level, share in shares.items() if share > 1.0), default=math.inf)
    below = [level for level in shares if level < above]
    other = min(shares, default=0) if above == math.inf else int(above)
    first, last = sorted((max(below, default=other), other))
    if first == last or shares[first] >= shares[last]:
        return None
    slope = math.log(shares[last] / shares[first]) / (last - first)
    return first - math.log(shares[first]) / slope
