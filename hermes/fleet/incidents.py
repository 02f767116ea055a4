"""The log of incidents: when each failure struck, when what noticed it, and when traffic left.

An incident is one strike of a failure, of whatever kind, with all clients that it hits. When capacity and SLO are back,
`hermes.results.figures.incidents` finds from the record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hermes.core.clock import Clock
from hermes.core.record import INCIDENT_FIELDS, STRUCK

__all__ = ["IncidentLog"]


class IncidentLog:
    """Rows of the record's table `incidents`, and the kind of each incident."""

    def __init__(self, env: Clock) -> None:
        self._env = env
        self._rows: list[tuple[int, int, int, int]] = []
        self._kinds: list[str] = []
        self._latest: dict[int, int] = {}   # client -> its latest incident
        self._kind, self._hits = "", False

    def strike(self, kind: str, strikes: Callable[[], None]) -> None:
        """Let a failure of a kind strike: what is hit meanwhile is one incident."""
        self._kind, self._hits = kind, False
        strikes()

    def hit(self, client: Any) -> None:   # Any: of any kind
        """Note that the strike that goes on hits a client. Nothing is noted of a strike without one."""
        if not self._hits:
            self._hits = True
            self._kinds.append(self._kind)
        self._latest[client.index] = len(self._kinds) - 1
        self.note(client, STRUCK)

    def note(self, client: Any, event: int, ago_ns: int = 0) -> None:   # Any: see above
        """Note an event of the client's latest incident, of now or of so long ago."""
        self._rows.append((self._latest[client.index], client.index, self._env._now - ago_ns, event))

    def record(self, end_ns: int) -> dict[str, Any]:   # Any: fields of the record
        """Return the fields of the record; none without an incident."""
        rows = np.array([row for row in self._rows if row[2] <= end_ns], dtype=np.int64)
        if not len(rows):
            return {}
        return {"incidents": dict(zip(INCIDENT_FIELDS, rows.T.copy(), strict=True)), "incident_kinds": self._kinds}
