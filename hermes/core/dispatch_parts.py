"""Parts of the coordinator: what an option adds to the way of a request.

A part is one class in one file. The coordinator calls the hooks of `DispatchPart` that a part has, and none where the
scenario asks for no part. `PARTS` of `hermes.scenario.build` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes.core.client import Client
    from hermes.core.clock import Clock
    from hermes.core.coordinator import Coordinator
    from hermes.core.generation import Generation
    from hermes.core.request import Request
    from hermes.core.stage import Stage

__all__ = ["DispatchPart", "Observers"]


class DispatchPart:
    """Hooks of a part, in the order of their calls; each does nothing here. A part changes its own state, and of
    requests and stages only what a hook names."""

    coordinator: Coordinator

    def attach(self, coordinator: Coordinator) -> None:
        """Join a coordinator; called once, before anything else."""
        self.coordinator = coordinator

    def has(self, hook: str) -> bool:
        """Whether it overrides a hook. Those that each request passes are not called otherwise."""
        return any(hook in vars(kind) for kind in type(self).__mro__ if kind is not DispatchPart)

    def arrived(self, request: Request) -> None:
        """Called when a request arrives, before its pipeline starts; not when its client offers it again."""

    def begins(self, stage: Stage, client: Client) -> None:
        """Called when a client is to serve a stage, before its inputs move. Of a generation that another client takes
        over, `moved` follows."""

    def moved(self, stage: Generation, twin: Generation, target: Client) -> None:
        """Called when a generation has left the client of its prompt; `target` goes on with it as `twin`."""

    def observed(self, event: str, client: Client, stage: Stage) -> None:
        """Called at each event at a client, as a router's `observe` is (`hermes.core.router.Router`)."""

    def computed(self, stage: Stage) -> None:
        """Called when a client has computed a stage whose answer its front end still sends."""

    def offers_again(self, request: Request, reason: str) -> bool:
        """Return whether a request that is not served does not end, since the part has dropped it (`Coordinator.drop`)
        and will offer it again. Called before it ends."""
        return False

    def dropped(self, request: Request, fresh: Request) -> None:
        """Called when a request has ended whose client offers it again as `fresh`. May set `fresh.reads`."""

    def finished(self, request: Request) -> None:
        """Called when a request is completed or rejected."""

    def gave_up(self, request: Request) -> None:
        """Called when nobody waits for what a request asked for: it, or what runs beside it, is rejected or dropped."""

    def idle(self) -> bool:
        """Whether nothing is left; asked by tests, after the last request."""
        return True


class Observers(DispatchPart):
    """Routers that observe, and the fleet: they hear of each event at a client."""

    def __init__(self, env: Clock, observers: Sequence[Callable[[str, Client, Stage], None]], gateway: object) -> None:
        self._observers = observers

    def observed(self, event: str, client: Client, stage: Stage) -> None:
        for observer in self._observers:
            observer(event, client, stage)
