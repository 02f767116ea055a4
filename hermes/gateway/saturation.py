"""Saturation of a pool of engines, as a gateway's flow control and admission see it.

A saturation of 1 or more stops what may not pass a full pool. A pool is several lists of clients (those that prefill,
those that decode); its saturation is the largest of theirs, and an empty list counts 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, cast

from hermes.core.client import Client
from hermes.core.clock import Clock
from hermes.core.scraped import NEVER, Scrapable, Scraper, scrape
from hermes.sums import float_sum

__all__ = ["CEILING", "CYCLE", "InFlight", "Saturation", "Utilization"]

CYCLE, IN_FLIGHT, QUEUE_DEPTH, KV_USE, STALE, NO_REPLICA, CEILING = range(7)   # `HALT_LIMITS`

Pools = Sequence[Sequence[Client]]
Wake = Callable[[int], None]


class Saturation(Protocol):
    """How full a pool is.

    Attributes:
        counts: Whether it changes with each attempt that begins or ends.
    """

    counts: bool

    def now(self) -> float:
        """Return the saturation as of now, after the scrapes of this instant."""
        ...

    def limit(self) -> tuple[int, int]:
        """Return what makes the saturation, as of the last `now`: an index into `HALT_LIMITS`, and the client that is
        fullest; -1 in an empty pool."""
        ...

    def next_ns(self) -> int:
        """Return when a scrape may change the saturation, unless `wake` says that it is earlier; NEVER if none does."""
        ...

    def seen(self, client: Client) -> None:
        """A client went down, or can be reached again."""
        ...


class Utilization:
    """The mean over the clients of max(waiting / `queue`, KV use / `kv`), each as last scraped.

    A client whose last scrape is older than `stale_ns` counts 1: its scrapes fail while it is down. One that serves
    from the start counts 0 until its first scrape.

    Args:
        pools: Lists of clients, which change.
        clients: All that may ever be in them.
        down: Indices of clients that cannot be reached.
        name: Of the gateway in the streams of scrapes.
        wake: Called with a time at which the saturation may change, earlier than `next_ns` has said.
    """

    counts = False

    def __init__(self, env: Clock, pools: Pools, clients: Sequence[Client], down: set[int], wake: Wake, *, seed: int,
                 name: str, period_s: float, queue: float, kv: float, stale_ns: int) -> None:
        self._env, self._pools, self._down, self._wake = env, pools, down, wake
        self._queue, self._kv, self._stale_ns = queue, kv, stale_ns
        self._clients = list(clients)
        self._place = {client.index: place for place, client in enumerate(clients)}
        self._scores, self._due, self._soonest = [0.0] * len(clients), [0] * len(clients), 0
        self._limits = [QUEUE_DEPTH] * len(clients)
        self._scrapers: list[Scraper] = []
        for place, client in enumerate(clients):
            scraper = scrape(cast(Scrapable, client), seed, name, period_s)
            scraper.alarm = partial(self._alarm, place)
            self._scrapers.append(scraper)
        self._first_ns = max(1, round(period_s * 1e9))

    def now(self) -> float:
        """See `Saturation`."""
        now = self._env._now
        if now >= self._soonest:
            for place, due in enumerate(self._due):
                if due <= now:
                    self._scores[place], self._due[place] = self._look(place, now)
            self._soonest = min(self._due, default=NEVER)
        scores, places = self._scores, self._place
        return max(float_sum(scores[places[client.index]] for client in pool) / len(pool) if pool else 1.0
                   for pool in self._pools)

    def limit(self) -> tuple[int, int]:
        """See `Saturation`."""
        scores, places = self._scores, self._place
        pool = max(self._pools, key=lambda one: float_sum(scores[places[client.index]] for client in one) / len(one)
                   if one else 1.0)
        if not pool:
            return NO_REPLICA, -1
        fullest = max((client.index for client in pool), key=lambda index: scores[places[index]])
        return self._limits[places[fullest]], fullest

    def next_ns(self) -> int:
        """See `Saturation`."""
        return self._soonest

    def seen(self, client: Client) -> None:
        """See `Saturation`."""
        if client.index in self._place:
            self._alarm(self._place[client.index], self._env._now)

    def _look(self, place: int, now: int) -> tuple[float, int]:
        """Return a client's score, and when it may change."""
        scraper = self._scrapers[place]
        due = scraper.refresh()
        sample = scraper.sample
        if self._clients[place].index in self._down:
            stale_ns = 0 if sample is None else sample.at_ns + self._stale_ns + 1
            if now >= stale_ns:
                self._limits[place] = STALE
                return 1.0, NEVER
            due = stale_ns
        if sample is None:
            self._limits[place] = STALE
            return (1.0 if now >= self._first_ns else 0.0), due
        by_kv = sample.kv_use / self._kv > sample.waiting / self._queue
        self._limits[place] = KV_USE if by_kv else QUEUE_DEPTH
        return max(sample.waiting / self._queue, sample.kv_use / self._kv), due

    def _alarm(self, place: int, time_ns: int) -> None:
        if time_ns < self._due[place]:
            self._due[place] = time_ns
        if time_ns < self._soonest:
            self._soonest = time_ns
        self._wake(time_ns)


class InFlight:
    """Attempts in flight over `limit` times the clients. in_flight: The gateway's books, by the client's index."""

    counts = True

    def __init__(self, pools: Pools, in_flight: Mapping[int, int], limit: int) -> None:
        self._pools, self._in_flight, self._limit = pools, in_flight, limit

    def now(self) -> float:
        """See `Saturation`."""
        books = self._in_flight
        return max(sum(books.get(client.index, 0) for client in pool) / (self._limit * len(pool)) if pool else 1.0
                   for pool in self._pools)

    def limit(self) -> tuple[int, int]:
        """See `Saturation`."""
        books = self._in_flight
        pool = max(self._pools, key=lambda one: sum(books.get(client.index, 0) for client in one) / len(one)
                   if one else self._limit)
        if not pool:
            return NO_REPLICA, -1
        return IN_FLIGHT, max((client.index for client in pool), key=lambda index: books.get(index, 0))

    def next_ns(self) -> int:
        """See `Saturation`."""
        return NEVER

    def seen(self, client: Client) -> None:
        """See `Saturation`."""
