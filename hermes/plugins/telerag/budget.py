"""Byte budget of a prefetch: given, or from a profiling pass.

The paper measures the generation before a retrieval on a calibration set of 64 queries, and prefetches the bytes that
the host link moves in its mean time (TeleRAG, section on the prefetch budget): b = B * mean(t), B measured too. Here
the first requests of a pipeline are that set: they search on the CPU, so that no other work shares the link or the GPU
with the timed generations. Requests that start before the last of them is done search on the CPU, too.
"""

from __future__ import annotations

import math

__all__ = ["Budget"]


class Budget:
    """Most bytes of one prefetch, for all requests of a pipeline.

    Args:
        given: The bytes, or None for a profiling pass over `queries` queries, `batch` in a request, at `link` bytes/s.

    The index's buffer bounds the copies in either case (`IvfIndexClient`).
    """

    def __init__(self, given: int | None, *, link: float = 0.0, queries: int = 0, batch: int = 1) -> None:
        self._given, self._link = given, link
        self._wanted = 0 if given is not None else math.ceil(queries / batch)
        self._started = self._ended = self._windows = self._total_ns = 0

    @property
    def num_bytes(self) -> int | None:
        """Return the budget; None during the pass, or if it timed no window."""
        if self._given is not None:
            return self._given
        if self._ended < self._wanted or not self._windows:
            return None
        return int(self._link * self._total_ns / self._windows / 1e9)

    def enter(self) -> bool:
        """Start a request. Return whether it belongs to the calibration set, and must call `timed` and `leave`."""
        self._started += 1
        return self._started <= self._wanted

    def timed(self, window_ns: int) -> None:
        """Record the time of a generation before a retrieval."""
        self._windows += 1
        self._total_ns += window_ns

    def leave(self) -> None:
        """Record the end of a request of the set, completed or not."""
        self._ended += 1
