"""What a router decides for single requests, and what if it had decided otherwise.

A router decides once for each stage, one that places both phases up to twice. `Decisions` keeps the decisions about one
request, and answers some of them with another client than the router's. Without it (`RouterContext.decisions` is None)
routers make no call more.

A router that notes what it sends calls `settled` between its choice and its notes, so that it notes the client that
gets the stage. For any other router `Decisions.watched` exchanges the client that `choose` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hermes.core.client import Client
from hermes.core.router import Router, RouterContext
from hermes.core.stage import Stage
from hermes.routing.own import continues

__all__ = ["Decision", "Decisions", "Figures", "WrappedRouter", "settled"]

Figures = Mapping[str, Sequence[float]]
"""What a router compares of the clients among which it decides: figures by name. It decides by the first."""


@dataclass
class Decision:
    """One decision of a router.

    Attributes:
        time_ns: When it was made.
        stage: Kind of the stage.
        among: Names of the clients that could have got it.
        chosen: Name of the one that the router chose.
        figures: What the router compares, of each.
        lowest: Whether the lowest of the first figure wins, else the highest.
        waiting, running: Requests that waited and ran at each client at that instant.
    """

    time_ns: int
    stage: str
    among: list[str]
    chosen: str
    figures: dict[str, list[float]]
    lowest: bool
    waiting: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)

    def best_others(self) -> list[str]:
        """Return the other clients, the best by the router's figure first, then the fewest requests."""
        sign = 1.0 if self.lowest else -1.0
        compared = np.array(next(iter(self.figures.values()), [0.0] * len(self.among))) * sign
        load = np.array(self.waiting) + np.array(self.running)
        ranked = np.lexsort((load, compared))   # NaN last
        return [self.among[place] for place in ranked if self.among[place] != self.chosen]


class Decisions:
    """Keeps the decisions about one request.

    Args:
        request: Its number.
        instead: Name of the client that gets the stage instead, by the position of the decision.
    """

    def __init__(self, request: int, instead: Mapping[int, str] | None = None) -> None:
        self.request, self._instead = request, dict(instead or {})
        self.made: list[Decision] = []

    def watched(self, router: Router, context: RouterContext) -> Router:
        """Return a router that decides as `router` does, and whose decisions are kept."""
        return _Watched(router, context, self)

    def decide(self, now_ns: int, stage: Stage, among: Sequence[Client], chosen: Client,
               figures: Figures, lowest: bool) -> Client:
        """Keep a decision, and return the client that gets the stage."""
        views = [client.view() for client in among]
        number = len(self.made)
        self.made.append(Decision(
            now_ns, stage.kind, [client.name for client in among], chosen.name,
            {name: [float(value) for value in values] for name, values in figures.items()}, lowest,
            [view.waiting for view in views], [view.running for view in views]))
        name = self._instead.get(number)
        return chosen if name is None else next(client for client in among if client.name == name)


def settled(context: RouterContext, stage: Stage, places: Sequence[int], place: int, figures: Callable[[], Figures],
            lowest: bool = False) -> int:
    """Return the place of the client that gets a stage: the one that the router chose, unless another one is asked for.

    Args:
        places: The places among which the router chose, in `context.candidates`.
        place: The chosen one.
        figures: Returns figures of these places, by which the router decided first.
        lowest: Whether the lowest figure wins.
    """
    decisions, clients = context.decisions, context.candidates
    if decisions is None or stage.request.id != decisions.request:
        return place
    among = [clients[each] for each in places]
    got = decisions.decide(context.now_ns(), stage, among, clients[place], figures(), lowest)
    return next(each for each in places if clients[each] is got)


class WrappedRouter:
    """A router as it is, with the candidates that take stages now; a subclass has a `choose` of its own.

    Attributes:
        router, context: The router, and what it was built with.
        members: The candidates that take stages.
    """

    def __init__(self, router: Router, context: RouterContext) -> None:
        self.router, self.context, self.members = router, context, list(context.candidates)

    def __getattr__(self, name: str) -> Any:   # `observe` and `changed`, if the router has them
        found = getattr(self.router, name)
        if name != "changed":
            return found

        def changed(members: Sequence[Client]) -> None:
            self.members = list(members)
            found(members)

        return changed


class _Watched(WrappedRouter):
    """A router whose decisions about one request are kept."""

    def __init__(self, router: Router, context: RouterContext, decisions: Decisions) -> None:
        super().__init__(router, context)
        self._decisions = decisions

    def choose(self, stage: Stage) -> Client:
        known = len(self._decisions.made)
        client = self.router.choose(stage)
        if stage.request.id != self._decisions.request or len(self._decisions.made) > known:
            return client   # the router has noted it
        kind = "decode" if continues(stage) else stage.kind
        among = [member for member in self.members if kind in member.stages]
        return self._decisions.decide(self.context.now_ns(), stage, among, client, {}, lowest=False)
