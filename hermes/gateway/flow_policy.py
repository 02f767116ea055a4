"""Rules of a gateway's flow control, and what they are applied to: tenants, classes, budgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hermes.core.client import Client
from hermes.gateway.fairness import Fairness, Held, Service
from hermes.gateway.saturation import Pools, Saturation, Wake

__all__ = ["Budget", "Classes", "FlowPolicy", "Revoking"]


@dataclass(frozen=True)
class Classes:
    """Tenants and classes of requests, by the number of the request. Those of no class have number 0.

    Attributes:
        tenant, kind: Number of the tenant and of the class of each request.
        priorities: Of each class; higher is served first.
        ceilings: Saturation at which the band of each class is halted.
        ttft_ns: Deadline of the first token from the arrival on; None for none.
        ttl_ns: Time to live of each class in the queue.
    """

    tenant: Sequence[int]
    kind: Sequence[int]
    priorities: Sequence[int]
    ceilings: Sequence[float]
    ttft_ns: Sequence[int | None]
    ttl_ns: Sequence[int]


class Budget:
    """Tokens that a tenant may use in each window of time: prompts and outputs of calls that are complete. A call that
    comes when they are used up is refused; those in flight go on, so that more may be used.

    Args:
        tokens: Of a window.
        window_ns: Length of the windows, which begin at multiples of it.
    """

    def __init__(self, tokens: int, window_ns: int) -> None:
        self.tokens, self.window_ns = tokens, window_ns
        self._window, self._used = 0, 0

    def used(self, now_ns: int, tokens: int = 0) -> int:
        """Add tokens, and return those that have been used in the present window."""
        window = now_ns // self.window_ns
        if window != self._window:
            self._window, self._used = window, 0
        self._used += tokens
        return self._used


@dataclass(frozen=True)
class Revoking:
    """Revoking of running requests of lower bands.

    Attributes:
        most: Most of them in a decision.
        below: Only requests of a lower priority than this.
        grace_ns: Time from a decision to the next.
    """

    most: int
    below: int
    grace_ns: int


@dataclass(frozen=True)
class FlowPolicy:
    """Rules of flow control.

    Attributes:
        order: Returns what the calls of a flow are ordered by, the least first.
        service: Makes what tenants of a pool have been served; returns None where no policy asks.
        fairness: Makes the policy of a band from its priority and that.
        saturation: Makes the detector of a pool from its lists, all its clients, the attempts in flight at each client
            (by its index), `wake`, and the name of the gateway in the streams of scrapes.
        holds: Whether calls wait here. Without, only `admission` applies: a call of a negative priority is refused
            while the saturation is 1 or more, and all others pass.
        budgets: Of tenants that have one, by their number.
        limits: Most requests and bytes that wait in a band, by its priority.
        total, total_bytes: The same of all bands together; None for no limit.
        token_bytes: Bytes of a prompt token.
    """

    order: Callable[[Held, Classes], int]
    service: Callable[[], Service | None]
    fairness: Callable[[int, Service | None], Fairness]
    saturation: Callable[[Pools, Sequence[Client], dict[int, int], Wake, str], Saturation]
    holds: bool
    cycle_ns: int
    scan_ns: int
    limits: Mapping[int, tuple[int, int]]
    total: int | None
    total_bytes: int | None
    token_bytes: int
    revoking: Revoking | None
    budgets: Mapping[int, Budget]
