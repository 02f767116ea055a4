"""Host memory: copying and reading, cold, by one or several threads. numpy and the standard library."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from hermes.calibration.collect.contention import waited_s

__all__ = ["HostMemory"]

_SAMPLE_S = 1e-3          # a repetition lasts at least this long: small transfers are repeated within it
_GUESS = 10e9             # bytes/s, to choose how often


class HostMemory:
    """An arena of host memory and the transfers measured on it."""

    def __init__(self, arena_bytes: int) -> None:
        """Allocate two arenas of `arena_bytes`, which should be several times the last-level cache."""
        self._size = arena_bytes
        self._source = np.ones(arena_bytes // 8, dtype=np.uint64)
        self._target = np.full(arena_bytes // 8, 2, dtype=np.uint64)  # both written: every page is there

    def measure(self, point: dict[str, Any]) -> list[dict[str, Any]]:
        """Return `repetitions` rows: seconds that one transfer of `bytes` took while `streams` of them ran at once.

        CPU time for one stream, wall clock for several.
        """
        size, streams = int(point["bytes"]), int(point.get("streams", 1))
        share = self._size // streams
        if size > share:
            raise MemoryError(f"{streams} x {size} bytes do not fit into the arena of {self._size}")
        loops = max(1, min(int(_SAMPLE_S * _GUESS / size), share // size))
        once = _Transfers(self._source, self._target, point["path"] == "memory_copy", size, loops, streams)
        once.run()  # page tables, frequency
        rows: list[dict[str, Any]] = []
        while len(rows) < int(point["repetitions"]):
            waited, cpu = waited_s(), time.thread_time()
            wall = once.run()
            cpu, waited = time.thread_time() - cpu, waited_s() - waited
            # one thread that moves memory is always on a core or waits for one; the wait is not memory time
            row = {"time_s": cpu, "waited_s": 0.0} if streams == 1 else {"time_s": wall, "waited_s": waited}
            row["wall_s"] = wall
            rows.append({"repetition": len(rows), **{key: value / loops for key, value in row.items()}})
        return rows


class _Transfers:
    """Run `loops` transfers per thread, each of another piece of the thread's share of the arena."""

    def __init__(
        self, source: np.ndarray[Any, Any], target: np.ndarray[Any, Any], copy: bool, size: int, loops: int,
        streams: int,
    ) -> None:
        words, share = size // 8, len(source) // streams
        self._copy, self._streams = copy, streams
        self._pieces = [
            [(source[at : at + words], target[at : at + words])
             for at in range(stream * share, (stream + 1) * share - words + 1, words)]
            for stream in range(streams)
        ]
        self._loops, self._next = loops, 0

    def run(self) -> float:
        """Return seconds from the common start until the last thread is done."""
        chosen = [
            [pieces[(self._next + n) % len(pieces)] for n in range(self._loops)] for pieces in self._pieces
        ]
        self._next += self._loops
        if self._streams == 1:
            began = time.perf_counter()
            self._work(chosen[0])
            return time.perf_counter() - began
        return self._together(chosen)

    def _work(self, pieces: list[Any]) -> None:
        if self._copy:
            for source, target in pieces:
                np.copyto(target, source)
        else:
            for source, _ in pieces:
                np.maximum.reduce(source)  # the cheapest vectorised reduction: it waits for memory, not for arithmetic

    def _together(self, chosen: list[list[Any]]) -> float:
        gate = threading.Barrier(self._streams + 1)

        def work(pieces: list[Any]) -> None:
            gate.wait()
            self._work(pieces)

        threads = [threading.Thread(target=work, args=(pieces,)) for pieces in chosen]
        for thread in threads:
            thread.start()
        gate.wait()
        began = time.perf_counter()
        for thread in threads:
            thread.join()
        return time.perf_counter() - began
