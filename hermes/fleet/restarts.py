"""The back-off of restarts, by the rule of Kubernetes' kubelet (its source was read, not run)."""

from __future__ import annotations

from hermes.fleet.config import Restarts
from hermes.units import s_to_ns

__all__ = ["BackOff"]


class BackOff:
    """The back-off of one replica on its node. Times in ns."""

    def __init__(self, config: Restarts) -> None:
        self._first_ns, self._most_ns = s_to_ns(config.backoff), s_to_ns(config.max_backoff)
        self._wait_ns, self._since_ns = 0, 0   # before the next restart; when the latest one was

    def wait_ns(self, now_ns: int) -> int:
        """Return the wait before the restart of a process that ends now."""
        if now_ns - self._since_ns > 2 * self._most_ns:
            self._wait_ns = 0
        return self._wait_ns

    def restarted(self, now_ns: int) -> None:
        """Note a restart."""
        self._wait_ns = min(2 * self._wait_ns or self._first_ns, self._most_ns)
        self._since_ns = now_ns
