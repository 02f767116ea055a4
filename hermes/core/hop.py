"""The hop through a gateway: which of several gateways passes a call, its queue for capacity, and its delay.

Each gateway serves calls first come first served, each for 1 / capacity. Then the delay passes, and the router chooses
a client with what it knows at that instant. The gateway's own retries start behind the hop. A call whose client has
given up while it waits still takes its turn, as bytes in a socket do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Hop", "HopPolicy", "Passage"]


@dataclass(frozen=True)
class HopPolicy:
    """What a call meets on its way through a gateway.

    Attributes:
        delay_ns: Time through the gateway to the engine, without waiting and service.
        service_ns: Time in which one gateway serves a call; 0 for no limit.
        replicas: Gateways.
        backlog: Most calls that wait for the service of one gateway; None for no limit.
    """

    delay_ns: int = 0
    service_ns: int = 0
    replicas: int = 1
    backlog: int | None = None

    @property
    def acts(self) -> bool:
        """Whether it changes anything."""
        return bool(self.delay_ns or self.service_ns) or self.replicas > 1


@dataclass(frozen=True)
class Passage:
    """The way of one call: through which gateway, how long it waits for service, and when it has passed; None if the
    gateway refuses it, because too many wait."""

    gateway: int
    wait_ns: int
    passed_ns: int | None


class Hop:
    """Sends calls through the gateways.

    Args:
        pick: Returns the gateway of the next call; None: in turn.

    Attributes:
        names: Of the gateways.
    """

    def __init__(self, policy: HopPolicy, pick: Callable[[], int] | None = None) -> None:
        self.policy, self._pick = policy, pick
        self._free_ns = [0] * policy.replicas
        self.names = [f"gateway-{number}" for number in range(policy.replicas)]
        self._next = 0

    def enter(self, now_ns: int) -> Passage:
        """Send a call that arrives now through a gateway."""
        policy = self.policy
        if self._pick is not None:
            gateway = self._pick()
        else:
            gateway, self._next = self._next, (self._next + 1) % policy.replicas
        service = policy.service_ns
        begins = max(self._free_ns[gateway], now_ns)
        waiting = -(-(begins - now_ns) // service) - 1 if service else -1   # behind the call in service
        if policy.backlog is not None and begins > now_ns and waiting >= policy.backlog:
            return Passage(gateway, 0, None)
        self._free_ns[gateway] = begins + service
        return Passage(gateway, begins - now_ns, begins + service + policy.delay_ns)
