"""Micro-batcher of a retrieval service: searches single queries in batches.

It follows the rules of a simulated `rag` client with `batch_window`: a batch starts when it is full, or when its first
query has waited for the window; one batch runs at a time, and later arrivals wait. It exists to be measured: the cost
of a submit during the search is a client's `submit_cost` (`hermes study datastructures`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

__all__ = ["MicroBatcher"]

Query = TypeVar("Query")
Found = TypeVar("Found")


class MicroBatcher(Generic[Query, Found]):
    """Batches queries for `search`, which runs in `executor` (the event loop's own if None), off the event loop.

    Args:
        search: Function from queries to the results of each, in order.
        max_batch: Largest batch, at least 1.
        window_s: Longest wait of a batch's first query, at least 0.
    """

    def __init__(
        self, search: Callable[[list[Query]], Sequence[Found]], max_batch: int, window_s: float,
        executor: Executor | None = None,
    ) -> None:
        if max_batch < 1 or window_s < 0:
            raise ValueError(f"a batch of at least 1 and a window of at least 0 s: {max_batch}, {window_s}")
        self.max_batch, self.window_s = max_batch, window_s
        self.batches = 0
        self._search, self._executor = search, executor
        self._waiting: deque[tuple[Query, float, asyncio.Future[Found]]] = deque()   # query, when it is due, answer
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, query: Query) -> asyncio.Future[Found]:
        """Submit a query; the future holds the answer, or the exception of `search`. Call it in the event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Found] = loop.create_future()
        self._waiting.append((query, loop.time() + self.window_s, future))
        if not self._busy:
            self._look(loop)
        return future

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the next batch if it is full or due, else look again when it is due."""
        if not self._waiting:
            return
        due = self._waiting[0][1]
        if len(self._waiting) < self.max_batch and loop.time() < due:
            if self._timer is None:
                self._timer = loop.call_at(due, self._on_due, loop)
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch = [self._waiting.popleft() for _ in range(min(self.max_batch, len(self._waiting)))]
        self._busy = True
        self.batches += 1
        running = loop.run_in_executor(self._executor, self._search, [query for query, _, _ in batch])
        running.add_done_callback(lambda done: self._on_searched(loop, batch, done))

    def _on_due(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if not self._busy:
            self._look(loop)

    def _on_searched(
        self, loop: asyncio.AbstractEventLoop, batch: list[tuple[Query, float, asyncio.Future[Found]]],
        done: asyncio.Future[Sequence[Found]],
    ) -> None:
        self._busy = False
        error = done.exception()
        answers: Sequence[Found] = () if error else done.result()
        if error is None and len(answers) != len(batch):
            error = ValueError(f"{len(batch)} answers of the search: {len(answers)}")
        for i, (_, _, future) in enumerate(batch):
            if future.done():   # the caller cancelled it
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(answers[i])
        self._look(loop)
