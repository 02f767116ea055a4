"""Scraped values of clients: what a gateway or a metrics pipeline knows of an engine.

A scraper asks each client once a period, at times that are fixed for each pair of scraper and client, and knows the
values of the client's last step that had ended by then. Clients evaluate this when somebody reads it; no event is made
for a scrape (`hermes.clients.scrapes`).

At equal times a scrape comes after step ends, transfers, crashes and changes of membership, and before autoscalers and
arrivals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hermes.config.streams import stream
from hermes.sums import float_sum
from hermes.units import s_to_ns

__all__ = ["NEVER", "SCRAPED", "EngineLimits", "EngineState", "ForwardPass", "Sample", "Scrapable", "Scraper",
           "Together", "scrape", "times_of"]

NEVER = 1 << 62

SCRAPED = ("waiting", "running", "kv_use")
"""Values that a scrape shows."""


class Sample(NamedTuple):
    """Values of a client at a scrape: those of the last step that had ended. All zero before its first step.

    Attributes:
        at_ns: Time of the scrape.
        waiting: Sequences in the queue.
        running: Sequences in the batch.
        kv_use: 1 - free / total KV blocks. Cached blocks that no sequence holds count as free.
    """

    at_ns: int
    waiting: int
    running: int
    kv_use: float


class ForwardPass(NamedTuple):
    """A step of an engine that has ended.

    Attributes:
        wall_ns: Its duration; 0 for an engine with nothing to do.
        prefill_seqs, prefill_tokens: Sequences whose prompt it computed, and the tokens of these that it computed.
        decode_seqs, decode_tokens: Sequences of which it computed one token, and the tokens of these in KV memory.
    """

    wall_ns: int = 0
    prefill_seqs: int = 0
    prefill_tokens: int = 0
    decode_seqs: int = 0
    decode_tokens: int = 0


class EngineState(NamedTuple):
    """What an engine publishes of its work (Dynamo's forward pass metrics).

    Attributes:
        latest: The last step that has ended.
        queued_prefill_tokens: Prompt tokens of sequences in the queue that have no output yet.
        queued_decode_tokens: Tokens of other sequences in the queue: preempted ones, and those whose KV has come from
            another client.
    """

    latest: ForwardPass
    queued_prefill_tokens: int
    queued_decode_tokens: int


class EngineLimits(NamedTuple):
    """Limits of an engine: tokens that its KV memory holds, of a request, of a step, and sequences of a batch. None
    without a limit."""

    kv_tokens: int
    context_tokens: int | None
    batched_tokens: int
    seqs: int


class Scraper(Protocol):
    """One scraper's samples of one client.

    Attributes:
        sample: The latest one at the latest `refresh`; None before the client's first scrape.
        alarm: Called with the time of another sample, when `refresh` has returned `NEVER`, or when it comes earlier
            than `refresh` has said.
        counts: Whether `alarm` may leave out samples that differ in `kv_use` alone. False at first.
    """

    sample: Sample | None
    alarm: Callable[[int], None] | None
    counts: bool

    def refresh(self) -> int:
        """Set `sample` as of now. Return the time in ns from which on it may have other values; NEVER if `alarm` will
        be called with that time."""
        ...

    def read(self) -> Sample | None:
        """Return the latest sample as of now; None before the client's first scrape."""
        ...


@runtime_checkable
class Scrapable(Protocol):
    """A client whose values a scraper can see."""

    name: str

    def scraper(self, period_ns: int, offset_ns: int) -> Scraper:
        """Return a scraper that asks this client at `offset_ns`, and every `period_ns` from then on."""
        ...


class Together:
    """The scrapers of the clients of one engine, which shows them at one address: sequences are added up, and the KV
    use is the mean of equal memories. See `Scraper`."""

    def __init__(self, parts: Sequence[Scraper]) -> None:
        self._parts = parts
        self.sample: Sample | None = None
        self.alarm: Callable[[int], None] | None = None
        self.counts = False

    def refresh(self) -> int:
        samples = [part.read() for part in self._parts]
        there = [one for one in samples if one is not None]
        self.sample = None
        if len(there) == len(samples):
            self.sample = Sample(max(one.at_ns for one in there), sum(one.waiting for one in there),
                                 sum(one.running for one in there),
                                 float_sum(one.kv_use for one in there) / len(there))
        return min(part.refresh() for part in self._parts)

    def read(self) -> Sample | None:
        self.refresh()
        return self.sample


def times_of(name: str, seed: int, scraper: str, period_s: float) -> tuple[int, int]:
    """Return the period and the offset in ns of the scrapes of one client: a number of the stream
    `views/SCRAPER/CLIENT`, so that another client changes no other's offset."""
    period_ns = max(1, s_to_ns(period_s))
    return period_ns, int(stream(seed, f"views/{scraper}/{name}").random() * period_ns)


def scrape(client: Scrapable, seed: int, scraper: str, period_s: float) -> Scraper:
    """Return a scraper of one client at its own times."""
    return client.scraper(*times_of(client.name, seed, scraper, period_s))
