"""What an autoscaler sees of a group beside its replicas: the engines' steps, the traffic, the gateway's queue, prices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hermes.core.generation import Generation
from hermes.core.scraped import EngineLimits, EngineState
from hermes.core.stage import Stage
from hermes.fleet.autoscalers import Traffic

__all__ = ["GroupFacts", "Observations"]


class GroupFacts(NamedTuple):
    """What is the same of each replica of a group: devices, and dollars per hour of all of them."""

    devices: int
    dollars_per_hour: float


class Observations:
    """Base of `Replicas`, for what autoscalers other than `hpa` look at. `Fleet` sets the attributes.

    Attributes:
        name, role: Of the group.
        least: Fewest replicas: 0 where requests can wait at the gateway, else 1.
        facts: Returns prices and devices of a replica.
        waiting: Returns the requests that wait at the gateway for this group.
        kv_waits: Returns the tokens of sequences whose KV waits elsewhere for memory of a client.
    """

    def __init__(self) -> None:
        self.name, self.role, self.least = "", "both", 1
        self.facts: Callable[[], GroupFacts] = lambda: GroupFacts(1, 0.0)
        self.waiting: Callable[[], int] = lambda: 0
        self.kv_waits: Callable[[Any], int] = lambda client: 0   # Any: a client
        self._served = [0, 0, 0]

    def serving(self) -> list[Any]:   # Any: a `Replica`
        """Return the clients whose replicas are ready or drain."""
        raise NotImplementedError

    @property
    def _first(self) -> Any:   # Any: a `Replica`
        return self._slots[0].client  # type: ignore[attr-defined]  # of `Replicas`

    @property
    def devices(self) -> int:
        return self.facts().devices

    @property
    def dollars_per_hour(self) -> float:
        return self.facts().dollars_per_hour

    @property
    def limits(self) -> EngineLimits:
        found: EngineLimits = self._first.engine_limits()
        return found

    @property
    def queued(self) -> int:
        return self.waiting()

    def traffic(self) -> Traffic:
        return Traffic(*self._served)

    def count(self, stage: Stage) -> None:
        """Count a stage that has ended."""
        served = self._served
        served[0] += 1
        served[1] += stage.prompt_tokens
        if isinstance(stage, Generation):
            served[2] += stage.output_tokens

    def watch_engines(self) -> None:
        for slot in self._slots:  # type: ignore[attr-defined]  # of `Replicas`
            slot.client.watch_passes()

    def engines(self) -> list[EngineState]:
        found = []
        for client in self.serving():
            state = client.engine_state()
            found.append(state._replace(queued_decode_tokens=state.queued_decode_tokens + self.kv_waits(client)))
        return found
