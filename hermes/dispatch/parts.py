"""Parts of the dispatch: what an option adds to the way of a request.

A part is one class in one file. The coordinator calls the hooks of `DispatchPart` that a part has, and none where the
scenario asks for no part. `PARTS` of `hermes.scenario.build_operations` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hermes.compiled import mypyc_attr

if TYPE_CHECKING:
    from hermes.core.client import Client
    from hermes.core.clock import Clock
    from hermes.core.generation import Generation
    from hermes.core.request import Request
    from hermes.core.stage import Stage
    from hermes.dispatch.coordinator import Coordinator

__all__ = ["DispatchPart", "Observers", "Part"]


@mypyc_attr(allow_interpreted_subclasses=True)
class Part:
    """Base of the bases of parts: classes whose methods are hooks, each of which does nothing there."""

    def has(self, hook: str) -> bool:
        """Whether it overrides a hook of its base. Those that each request passes are not called otherwise."""
        *own, base, _part, _object = type(self).__mro__
        assert hook in vars(base), hook
        return any(hook in vars(kind) for kind in own)


@mypyc_attr(allow_interpreted_subclasses=True)
class DispatchPart(Part):
    """Hooks of a part, in the order of their calls; each does nothing here. A part changes its own state, and of
    requests and stages only what a hook names.

    Attributes:
        attempts: Whether it makes attempts at stages: it notes each in the record, cancels those of a request that is
            given up, and says when what a pipeline waits for has ended.
    """

    coordinator: Coordinator
    attempts: ClassVar[bool] = False

    def attach(self, coordinator: Coordinator) -> None:
        """Join a coordinator; called once, before anything else."""
        self.coordinator = coordinator

    def starts(self) -> None:
        """Called once before the first request."""

    # -- the way of a request ----------------------------------------------------------------------------------------

    def arrived(self, request: Request) -> None:
        """Called when a request arrives, before its pipeline starts; not when its client offers it again."""

    def holds(self, request: Request, stage: Stage, members: list[Client]) -> bool:
        """Return whether a stage is not dispatched now: the part will dispatch it, or has ended its request. Called
        before the router. members: The clients that may serve it now, a list that changes."""
        return False

    def copy(self, stage: Stage) -> Stage:
        """Return what is dispatched for a stage of a pipeline. Called before the router."""
        return stage

    def unreachable(self, stage: Stage, client: Client) -> bool:
        """Return whether the client that was chosen cannot be reached; the part does what follows. Called after the
        router, and for each other client that takes the place of its choice."""
        return False

    def plans(self, stage: Generation, client: Client) -> str | None:
        """Set what a client is to emit of a generation (`target_tokens`, `hands_over`), or return why it cannot have
        it. Called before the client is asked whether it takes it."""
        return None

    def refused(self, stage: Generation, client: Client, reason: str) -> bool:
        """Return whether the request does not end of which no client takes a generation; the part does what follows."""
        return False

    def takes(self, stage: Stage, client: Client) -> bool:
        """Whether a client may get a stage that another one has refused."""
        return True

    def begins(self, stage: Stage, client: Client) -> None:
        """Called when a client is to serve a stage, before its inputs move. Of a generation that another client takes
        over, `moved` follows."""

    # -- prefill here, decode there ----------------------------------------------------------------------------------

    def hands_over(self, stage: Generation, client: Client) -> None:
        """Called when a client has computed the prompt of a generation that another is to decode."""

    def reaches(self, client: Client) -> bool:
        """Whether a client that is to take over a generation can be reached."""
        return True

    def failed(self, stage: Generation, client: Client) -> None:
        """Called when a client that was to take over a generation could not be reached."""

    def turned_away(self, stage: Generation, client: Client, reason: str) -> bool:
        """Return whether the request does not end of which a client has computed a prompt that no other one decodes;
        the part does what follows."""
        return False

    def moved(self, stage: Generation, twin: Generation, target: Client) -> None:
        """Called when a generation has left the client of its prompt; `target` goes on with it as `twin`."""

    # -- the ends of stages ------------------------------------------------------------------------------------------

    def observed(self, event: str, client: Client, stage: Stage) -> None:
        """Called at each event at a client, as a router's `observe` is (`hermes.core.router.Router`)."""

    def computed(self, stage: Stage) -> None:
        """Called when a client has computed a stage whose answer its front end still sends."""

    def ended(self, stage: Stage) -> bool:
        """Return whether somebody waits for a stage that is answered in full."""
        return True

    def stopped(self, stage: Generation, client: Client) -> None:
        """Called when a client gives up the prompt of a generation that another was to decode."""

    def left(self, stage: Stage) -> None:
        """Called when a stage that is not completed has left its client."""

    def withdraws(self, stage: Generation, client: Client) -> bool:
        """Return whether the part gives up a generation whose prompt a client has computed, since its KV waits or
        moves; otherwise the client is told to."""
        return False

    def begun(self, stage: Stage) -> bool | None:
        """Whether the user has a token of a stage of a pipeline; None if the part does not know."""
        return None

    def reads(self, request: Request) -> bool:
        """Whether the user of a request has a token, in what it asks for now."""
        return False

    # -- the ends of requests ----------------------------------------------------------------------------------------

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

    # -- clients that come and go ------------------------------------------------------------------------------------

    def covers(self, clients: Sequence[Client]) -> None:
        """Called before a run with clients without an engine that come and go."""

    def members_changed(self) -> None:
        """Called when other clients are ready than before."""

    def keeps(self, client: Client) -> bool:
        """Whether a client may not leave yet, since the part needs its memory."""
        return False

    def waiting_tokens(self, client: Client) -> int:
        """Return the tokens of sequences that wait elsewhere for memory of a client."""
        return 0

    @property
    def queues(self) -> bool:
        """Whether it keeps requests for which no client is ready."""
        return False

    def num_waiting(self, lists: list[list[Client]]) -> int:
        """Return what waits for one of these lists of clients to have a ready one."""
        return 0

    def attempts_over(self, client: Client) -> set[int]:
        """Return the attempts whose KV moves from or to a client, or waits to."""
        return set()

    def goes_down(self, client: Client) -> None:
        """Called of each part when a client goes down, while all that it has is as it was; `lost` follows."""

    def lost(self, client: Client, why: str) -> None:
        """Called when a client goes down at this instant: end what the part has at it, or on its way from and to it.
        why: As what became of the client is written after its name."""

    def back(self, client: Client) -> None:
        """Called when a client that was down can be reached again."""

    # -- the end of the run ------------------------------------------------------------------------------------------

    def record(self, end_ns: int) -> Mapping[str, Any]:   # Any: fields of the record
        """Return the fields of the record that the part fills. end_ns: When the run ended."""
        return {}

    def idle(self) -> bool:
        """Whether nothing is left; asked by tests, after the last request."""
        return True


class Observers(DispatchPart):
    """Routers that observe: they hear of each event at a client."""

    def __init__(self, env: Clock, observers: Sequence[Callable[[str, Client, Stage], None]]) -> None:
        self._observers = observers

    def observed(self, event: str, client: Client, stage: Stage) -> None:
        for observer in self._observers:
            observer(event, client, stage)
