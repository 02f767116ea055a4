"""Protocol of a network: a transfer takes bytes in at one node and delivers them at another, later."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["LinkUse", "Network", "can_cancel", "nothing"]


@dataclass(frozen=True)
class LinkUse:
    """Use of one link, in one direction if its directions are independent.

    Attributes:
        name: Name in reports, e.g. `rack0 -> spine`.
        bandwidth: bytes/s.
        num_bytes: Bytes of transfers that have left the link as a whole, and those that cancelled ones had sent.
        busy_ns: Time with at least one transfer on the link.
        full_ns: Time in which the link was full and held up its transfers.
        times_ns, sent_bytes: Bytes that had left by these times, parts of transfers included; linear in between.
    """

    name: str
    bandwidth: float
    num_bytes: int
    busy_ns: int = 0
    full_ns: int = 0
    times_ns: tuple[int, ...] = ()
    sent_bytes: tuple[float, ...] = ()

    def utilisation(self, seconds: float) -> float:
        """Return the share of the link's capacity used in a period of `seconds`."""
        return self.num_bytes / (self.bandwidth * seconds) if seconds > 0 else 0.0


class Network(Protocol):
    """Moves bytes between nodes on the simulation's clock.

    The coordinator calls `check` once before the run and `transfer` whenever data has to move. Routers may call
    `estimate_ns` and `hops`. A node name that was not given to `build` raises `InputError`.

    A network may lack `cancels`, `cancel` and `bytes_cancelled`, or have `cancels` False: then `transfer` and `stream`
    may return anything. HERMES refuses such a network where transfers have to be cancelled; ask `can_cancel`.
    """

    @property
    def cancels(self) -> bool:
        """Whether `cancel` takes all that `transfer` and `stream` return."""
        ...

    @property
    def bytes_sent(self) -> int:
        """Bytes of all transfers requested so far."""
        ...

    @property
    def bytes_received(self) -> int:
        """Bytes of all transfers completed so far; plus `bytes_cancelled` it is `bytes_sent` if none is under way."""
        ...

    @property
    def bytes_cancelled(self) -> int:
        """Bytes of all transfers cancelled so far: they never arrive, whether they had left or not."""
        ...

    def transfer(self, src: str, dst: str, num_bytes: int, done: Callable[[], None]) -> object:
        """Move `num_bytes` (>= 0) from `src` to `dst` and call `done()` once, from an event of the environment.

        The event comes at an integer nanosecond, not before now, with priority `hermes.core.clock.TRANSFER`; `done` is
        never called before `transfer` returns. Zero bytes take the latency only. Within a node data arrives at once.
        The order of transfers that complete at the same time is a function of the calls made.

        Returns a handle for `cancel`, whose type only the network knows.
        """
        ...

    def stream(self, src: str, dst: str, num_bytes: int, over_ns: int, out: Callable[[], None]) -> object:
        """Move bytes that become ready at `src` evenly over the next `over_ns` nanoseconds, as they become ready.

        Calls `out()` once, from an event, when the last byte has left and at least `over_ns` have passed. Returns a
        handle for `cancel`.
        """
        ...

    def cancel(self, flow: object) -> int:
        """Stop what `transfer` or `stream` returned `flow` for: its `done` or `out` is not called any more.

        Its shares of links are free from this instant on. Returns the bytes that have left the sender, rounded down:
        0 before the first byte leaves, all of them from when the last byte has left until it arrives. A transfer that
        has arrived, or was cancelled before, stays as it is, and 0 is returned.

        At the time of its arrival a transfer has arrived for callers whose event comes later (by priority, then order
        of creation); an earlier event cancels it.
        """
        ...

    def estimate_ns(self, src: str, dst: str, num_bytes: int) -> int:
        """Return the duration of a transfer that has the network to itself, in nanoseconds."""
        ...

    def hops(self, src: str, dst: str) -> int:
        """Return the number of links between the nodes; 0 within a node."""
        ...

    def check(self, nodes: Iterable[str]) -> None:
        """Raise `InputError` unless each of these nodes can reach every other."""
        ...

    def links(self) -> list[LinkUse]:
        """Return the use of each link so far; empty where links have no limit of their own."""
        ...


def can_cancel(network: Network) -> bool:
    """Return whether transfers of the network can be cancelled; those of a plug-in may not."""
    return bool(getattr(network, "cancels", False))


def nothing() -> None:
    """Do nothing: the callback of transfers whose arrival has no effect."""
