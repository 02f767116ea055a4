"""The byte budget of a prefetch: given, or from a profiling pass.

The paper measures the generation before a retrieval on a calibration set of 64 queries, and prefetches what the host
link moves in the mean of it (TeleRAG, section on the prefetch budget): b = B * mean(t), B measured too. Here the first
requests of a pipeline are that set: they search on the CPU, so that nothing shares the link or the GPU with what is
timed, and so do those that start before the last of them is done.
"""

from __future__ import annotations

import math

__all__ = ["Budget"]


class Budget:
    """Bytes of one prefetch at most, for all requests of a pipeline.

    given: the bytes, or None for a profiling pass over `queries` queries, `batch` in a request, at `link` bytes/s.
    The index's buffer bounds what is copied in either case (`IvfIndexClient`).
    """

    def __init__(self, given: int | None, *, link: float = 0.0, queries: int = 0, batch: int = 1) -> None:
        self._given, self._link = given, link
        self._wanted = 0 if given is not None else math.ceil(queries / batch)
        self._started = self._ended = self._windows = self._total_ns = 0

    @property
    def num_bytes(self) -> int | None:
        """None while the pass is under way, or if it timed no window at all."""
        if self._given is not None:
            return self._given
        if self._ended < self._wanted or not self._windows:
            return None
        return int(self._link * self._total_ns / self._windows / 1e9)

    def enter(self) -> bool:
        """A request starts: whether it belongs to the calibration set, and has to say `timed` and `leave`."""
        self._started += 1
        return self._started <= self._wanted

    def timed(self, window_ns: int) -> None:
        """A generation before a retrieval took that long."""
        self._windows += 1
        self._total_ns += window_ns

    def leave(self) -> None:
        """A request of the set is done, completed or not."""
        self._ended += 1
