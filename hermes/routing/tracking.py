"""Load tracking: find the least loaded of many clients whose loads change with every step.

Asking a thousand clients for their present load costs a thousand calls. But between two events of a client its load
changes by a constant per step, and the shortest (or longest) step of the run in flight bounds the number of steps that
have ended. So each client stores five numbers at each of its events, one vectorised expression gives a bound for all
clients, and only the few clients whose bound is not above the best exact load are asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import numpy as np

from hermes.arrays import IntArray
from hermes.core.client import Client

__all__ = ["LoadTrack"]

_NEVER = 1 << 62
_LINE = Struct("=5q")


class LoadTrack:
    """Lower bounds of one kind of load over `candidates`; exact answers come from `Client.load`."""

    def __init__(self, candidates: Sequence[Client], kind: str) -> None:
        self.candidates, self.kind = list(candidates), kind
        # packed row by row: one call, where five assignments to numpy arrays take several times as long
        rows = np.zeros((len(self.candidates), 5), dtype=np.int64)
        self._bytes = rows.data.cast("B") if len(rows) else memoryview(b"")
        self.base, self.per_step, self.start_ns, self.unit_ns, self.steps = rows.T   # see `LoadLine`
        self.unit_ns[:] = 1
        for position, client in enumerate(self.candidates):
            client.tracks.append((self, position))

    def least(self, now_ns: int, among: IntArray | None = None) -> Client:
        """Return the candidate with the least load as of now; ties go to the first.

        among: Positions of the candidates that count; None for all.
        """
        ended = (now_ns - self.start_ns) // self.unit_ns
        bound = self.base + self.per_step * np.minimum(ended, self.steps)
        if among is not None:
            others = np.ones(len(bound), dtype=bool)
            others[among] = False
            bound[others] = _NEVER
        first = int(bound.argmin())
        best, chosen = self.candidates[first].load(self.kind), first
        for position in np.flatnonzero(bound <= best).tolist():
            if position != first:
                load = self.candidates[position].load(self.kind)
                if load < best or (load == best and position < chosen):
                    best, chosen = load, position
        return self.candidates[chosen]

    def moved(self, position: int, client: Client) -> None:
        """Store the load of a client and its change per step, after an event of the client."""
        _LINE.pack_into(self._bytes, position * _LINE.size, *client.load_line(self.kind))
