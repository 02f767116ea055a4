"""What the rest of hermes knows of a network: bytes go in at one node and come out at another, later."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["LinkUse", "Network", "nothing"]


@dataclass(frozen=True)
class LinkUse:
    """What went over one link, in one direction if its directions are independent.

    name: as reports call it, e.g. `rack0 -> spine`
    bandwidth: bytes/s
    num_bytes: bytes of transfers that left the link, whole transfers only
    busy_ns: time in which at least one transfer was on the link
    full_ns: time in which the link was full, and held up the transfers on it
    times_ns, sent_bytes: how many bytes had left by some times, parts of transfers included; straight lines in between
    """

    name: str
    bandwidth: float
    num_bytes: int
    busy_ns: int = 0
    full_ns: int = 0
    times_ns: tuple[int, ...] = ()
    sent_bytes: tuple[float, ...] = ()

    def utilisation(self, seconds: float) -> float:
        """Share of the link's capacity that was used in a period of `seconds`."""
        return self.num_bytes / (self.bandwidth * seconds) if seconds > 0 else 0.0


class Network(Protocol):
    """Moves bytes between nodes on the simulation's clock.

    The coordinator calls `check` once before the run and `transfer` whenever data has to move; routers may call
    `estimate_ns` and `hops`. Node names that `build` was not given raise `InputError`.
    """

    @property
    def bytes_sent(self) -> int:
        """Bytes of all transfers asked for so far."""
        ...

    @property
    def bytes_received(self) -> int:
        """Bytes of all transfers completed so far: equal to `bytes_sent` once nothing is under way."""
        ...

    def transfer(self, src: str, dst: str, num_bytes: int, done: Callable[[], None]) -> None:
        """Move `num_bytes` (>= 0) from `src` to `dst` and call `done()` once, from an event of the environment.

        The event comes at an integer nanosecond, not before now, with priority `hermes.core.clock.TRANSFER`: `done` is
        never called before `transfer` has returned. Zero bytes take the latency only; within a node anything is there
        at once. Transfers that complete at the same time do so in an order that is a function of the calls made.
        """
        ...

    def stream(self, src: str, dst: str, num_bytes: int, over_ns: int, out: Callable[[], None]) -> None:
        """Move bytes that come about at `src` evenly in the next `over_ns` nanoseconds, as they come.

        `out()` is called once, from an event, when the last byte has left, not before `over_ns` have passed.
        """
        ...

    def estimate_ns(self, src: str, dst: str, num_bytes: int) -> int:
        """How long the transfer would take with the network to itself, in nanoseconds."""
        ...

    def hops(self, src: str, dst: str) -> int:
        """Links between the nodes; 0 within a node."""
        ...

    def check(self, nodes: Iterable[str]) -> None:
        """Raise `InputError` unless every one of these nodes can reach every other."""
        ...

    def links(self) -> list[LinkUse]:
        """What went over each link so far; empty where links have no limit of their own."""
        ...


def nothing() -> None:
    """For transfers whose arrival nobody waits for."""
