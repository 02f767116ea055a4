"""One router for each of several gateways: each knows only what it sent itself, and scrapes for itself."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.core.client import Client
from hermes.core.router import Router
from hermes.core.stage import Stage

__all__ = ["RouterPerGateway"]


class RouterPerGateway:
    """Asks the router of the gateway that a stage goes through (`Stage.gateway` of the pipeline's stage).

    It has `changed` where all of them have it, and `observe` where any has it.
    """

    def __init__(self, routers: Sequence[Router]) -> None:
        self.routers = list(routers)
        if all(hasattr(router, "changed") for router in self.routers):
            self.changed = self._changed
        if any(hasattr(router, "observe") for router in self.routers):
            self.observe = self._observe

    def _of(self, stage: Stage) -> Router:
        return self.routers[(stage.original or stage).gateway]

    def choose(self, stage: Stage) -> Client:
        return self._of(stage).choose(stage)

    def _changed(self, members: Sequence[Client]) -> None:
        for router in self.routers:
            router.changed(members)  # type: ignore[attr-defined]  # checked

    def _observe(self, event: str, client: Client, stage: Stage) -> None:
        router = self._of(stage)
        if hasattr(router, "observe"):
            router.observe(event, client, stage)
