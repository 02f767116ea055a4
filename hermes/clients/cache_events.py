"""The events of an LLM client's prefix cache, for routers that know caches by them (`hermes.core.engine_readings`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from hermes.core.generation import Generation
from hermes.memory.cache_log import CacheEvent, CacheLog

if TYPE_CHECKING:
    from hermes.clients.llm import LLMClient

__all__ = ["CacheReader", "ClientCacheLog"]

KNOWN = -(1 << 62)   # time of what a reader knows from the beginning


class ClientCacheLog:
    """The log of one client's prefix cache, through all engines that it starts.

    Attributes:
        completing: The plan whose steps have ended at this instant; None outside of that.
    """

    __slots__ = ("_log", "_readers", "client", "completing")

    def __init__(self, client: LLMClient) -> None:
        self.client = client
        self.completing: Any = None   # Any: a plan
        self._readers: list[CacheReader] = []
        self._log = CacheLog(self._now_ns, self._start_of)
        client.scheduler.pool.log_into(self._log)

    def reader(self) -> CacheReader:
        """Return a reader, whose first events are what the cache holds."""
        reader = CacheReader(self.client)
        self._readers.append(reader)
        self._log.readers.append(reader.events)
        reader.begin()
        return reader

    def restarted(self) -> None:
        """Note that the client has an empty engine."""
        for reader in self._readers:
            reader.events.clear()
            reader.incarnation += 1
        self.client.scheduler.pool.log_into(self._log)

    def _now_ns(self) -> int:
        return self.client.env._now

    def _start_of(self, plan: Any, step: int) -> int:
        """Return the start of a step of a plan; now if the plan does not run yet."""
        client = self.client
        flight, steps = client._flight, client.steps
        if plan is flight.plan:
            first = steps.pos
        elif plan is self.completing:
            first = steps.pos - flight.planned
        else:
            return client.env._now
        return steps.view[first + step - 1] if step else flight.start_ns


class CacheReader:
    """See `hermes.core.engine_readings.CacheEvents`."""

    __slots__ = ("client", "events", "incarnation")

    def __init__(self, client: LLMClient) -> None:
        self.client, self.incarnation = client, 0
        self.events: deque[CacheEvent] = deque()

    def begin(self) -> None:
        """Read what the cache holds, with times before all delays: the router knows it."""
        self.catch_up()
        self.events.clear()
        for name, first, end in self.client.scheduler.pool.cached_blocks():
            if type(name) is not int:
                self.events.append(CacheEvent(KNOWN, True, name, first, end))

    def catch_up(self) -> None:
        """Note the blocks of all steps that have started."""
        self.client.catch_up_cache()

    def names(self, stage: Generation) -> list[tuple[Hashable, int, int]]:
        """Return the names of a prompt's blocks."""
        return self.client.scheduler.pool.block_names(stage)

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        return self.client.scheduler.pool.block_size

    @property
    def naming(self) -> Hashable:
        """Equal for two caches that name blocks alike: one that keeps nothing names none."""
        pool = self.client.scheduler.pool
        return pool.caching, pool.by_block, pool.block_size, pool.hash_lookahead
