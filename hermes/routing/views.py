"""What a router knows of its candidates' loads: as of now, as of its last scrape of each, or its own books
(`hermes.routing.own`).

A router with a scraped view sees none of what it sent since: requests that arrive between two scrapes go where the last
one showed the least load. A client that has not been scraped yet counts as empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field

from hermes.arrays import FloatArray
from hermes.config import ConfigModel, Duration
from hermes.core.client import Client
from hermes.core.router import RouterContext
from hermes.core.scraped import SCRAPED, Sample, Scrapable, scrape
from hermes.errors import InputError, Verbatim

__all__ = ["SCRAPED_LOADS", "EngineView", "ScrapedLoads", "ScrapedTable", "ScrapedView", "View", "least_of_scraped",
           "not_shown"]

SCRAPED_LOADS = (*SCRAPED, "requests", "kv_tokens")
"""Loads that a scrape shows: its values, `requests` as those that wait or run, `kv_tokens` as the tokens of used
blocks."""


class ScrapedView(ConfigModel):
    """The values of each candidate at the last scrape of it."""

    kind: Literal["scraped"] = "scraped"
    period: Duration = Field(default=0.05, gt=0)
    """Time between two scrapes of a client. When in it a client is scraped is drawn once for each client."""


_COUNTS = ("waiting", "running", "requests")

EngineView = Literal["exact"] | ScrapedView
View = Literal["exact", "own"] | ScrapedView


def not_shown(load: str) -> str:
    """Return the message about a load that a scrape does not show."""
    return f"a scrape does not show {load}; take {', '.join(SCRAPED_LOADS)}, or leave out `view`"


def _measure(load: str, client: Client) -> Callable[[Sample], float]:
    """Return the function from a sample of a client to a load."""
    if load == "requests":
        return lambda sample: sample.waiting + sample.running
    if load == "kv_tokens":
        capacity = client.view().kv_capacity_tokens
        return lambda sample: sample.kv_use * capacity
    place = Sample._fields.index(load)
    return lambda sample: sample[place]


class ScrapedTable:
    """Loads of a router's candidates, as last scraped. A client is asked only when a scrape may have changed it.

    Raises `InputError` for a load that a scrape does not show, and for clients that are no engines.
    """

    def __init__(self, context: RouterContext, loads: Sequence[str], view: ScrapedView) -> None:
        for load in loads:
            if load not in SCRAPED_LOADS:
                raise InputError(Verbatim(not_shown(load)), field="load")
        self._now_ns = context.now_ns
        self._scrapers, self._measures = [], []
        count = len(context.candidates)
        self._values = np.zeros((len(loads), count))
        self._due = np.zeros(count, dtype=np.int64)   # when the next sample may differ
        self._soonest = 0
        for place, client in enumerate(context.candidates):
            if not isinstance(client, Scrapable):
                raise InputError(Verbatim(f"{client.name} is no LLM engine and cannot be scraped; give its kind of "
                                          "stage another router under `routers`, or write `view: exact`"), field="view")
            scraper = scrape(client, context.seed, context.name, view.period)
            scraper.alarm, scraper.counts = partial(self._wake, place), all(load in _COUNTS for load in loads)
            self._scrapers.append(scraper)
            self._measures.append([_measure(load, client) for load in loads])

    def _wake(self, place: int, time_ns: int) -> None:
        self._due[place] = time_ns
        self._soonest = min(self._soonest, time_ns)

    def rows(self) -> FloatArray:
        """Return a row for each load, with the value of every candidate. The array is changed by the next call."""
        now = self._now_ns()
        if now >= self._soonest:
            values, due = self._values, self._due
            for place in np.flatnonzero(due <= now).tolist():
                scraper = self._scrapers[place]
                due[place] = scraper.refresh()
                sample = scraper.sample
                for row, measure in enumerate(self._measures[place]):
                    values[row, place] = 0.0 if sample is None else measure(sample)
            self._soonest = int(due.min())
        return self._values


class ScrapedLoads:
    """One load of a router's candidates, as last scraped; see `ScrapedTable`."""

    def __init__(self, context: RouterContext, load: str, view: ScrapedView) -> None:
        self._rows = ScrapedTable(context, (load,), view).rows

    def values(self) -> FloatArray:
        """Return the load of every candidate. The array is changed by the next call."""
        loads: FloatArray = self._rows()[0]
        return loads


def least_of_scraped(context: RouterContext, load: str, view: ScrapedView,
                     ) -> Callable[[Sequence[Client]], Callable[[], Client]]:
    """Return a function from some of the candidates to one that returns the least loaded of them; ties go to the
    first."""
    loads = ScrapedLoads(context, load, view)
    place_of = {client.index: place for place, client in enumerate(context.candidates)}
    values = loads.values

    def of(clients: Sequence[Client]) -> Callable[[], Client]:
        chosen, places = list(clients), [place_of[client.index] for client in clients]
        if len(chosen) == len(place_of):
            return lambda: chosen[values().argmin()]
        where = np.array(places, dtype=np.int64)
        return lambda: chosen[values()[where].argmin()]

    return of
