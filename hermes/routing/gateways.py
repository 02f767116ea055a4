"""One router for each of several gateways, from which single clients can be kept.

Each router knows only what it sent itself, and scrapes for itself. A circuit breaker keeps a client from the router of
the gateway that has seen it fail (`hermes.gateway.breakers`).
"""

from __future__ import annotations

from collections.abc import Sequence

from hermes.core.client import Client
from hermes.core.router import Router
from hermes.core.stage import Stage

__all__ = ["RouterPerGateway"]


class RouterPerGateway:
    """Asks the router of the gateway that a stage goes through (`Stage.gateway` of the pipeline's stage).

    It has `changed` where all of them have it, and `observe` where any has it.

    Args:
        routers: One for each gateway.
        candidates: Their candidates.
    """

    def __init__(self, routers: Sequence[Router], candidates: Sequence[Client]) -> None:
        self.routers = list(routers)
        self._members = list(candidates)
        self._away: list[set[int]] = [set() for _ in routers]
        if all(hasattr(router, "changed") for router in self.routers):
            self.changed = self._changed
        if any(hasattr(router, "observe") for router in self.routers):
            self.observe = self._observe

    def _of(self, stage: Stage) -> Router:
        return self.routers[(stage.original or stage).gateway]

    def choose(self, stage: Stage) -> Client:
        return self._of(stage).choose(stage)

    def _changed(self, members: Sequence[Client]) -> None:
        self._members = list(members)
        for gateway in range(len(self.routers)):
            self._show(gateway)

    def keep_from(self, gateway: int, client: int, *, away: bool) -> None:
        """Let a client, by its index, get no stages through a gateway, or get them again. A router that is left without
        clients keeps all of them: it is not asked (a decode router is)."""
        if away:
            self._away[gateway].add(client)
        else:
            self._away[gateway].discard(client)
        if any(member.index == client for member in self._members):
            self._show(gateway)

    def _show(self, gateway: int) -> None:
        away = self._away[gateway]
        left = [client for client in self._members if client.index not in away]
        self.routers[gateway].changed(left or self._members)  # type: ignore[attr-defined]  # checked

    def _observe(self, event: str, client: Client, stage: Stage) -> None:
        router = self._of(stage)
        if hasattr(router, "observe"):
            router.observe(event, client, stage)
