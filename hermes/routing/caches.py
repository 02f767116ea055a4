"""What a router knows of its candidates' prefix caches: what they hold, the same later, or what the router itself sent.

- `exact`: what each cache holds of this prompt now.
- `events`: what each cache held `delay` ago, as its events say, of which a share `loss` is lost.
- `approximate`: what the router sent, in blocks of its own, least recently sent first out (`hermes.routing.prefixes`).
"""

from __future__ import annotations

from typing import Literal, Protocol

from pydantic import Field

from hermes.config import ConfigModel, Duration
from hermes.core.router import RouterContext
from hermes.core.stage import Stage
from hermes.routing.prefixes import Hashed, Prompts, SentPrefixes
from hermes.units import s_to_ns

__all__ = ["ApproximateView", "CacheView", "Caches"]


class Caches(Protocol):
    """A view of the caches of all candidates, by place, in blocks of the router's prompts."""

    def matches(self, stage: Stage, prompt: Hashed) -> dict[int, int]:
        """Return how many blocks of a prompt candidates are believed to hold from its beginning on; those that hold
        none may be left out."""
        ...

    def sent(self, place: int, prompt: Hashed) -> None:
        """Note that a prompt is sent to a candidate."""
        ...

    def changed(self, places: set[int]) -> None:
        """Note that only these candidates take stages from now on."""
        ...


class ApproximateView(ConfigModel):
    """What the router sent to each client."""

    kind: Literal["approximate"] = "approximate"
    ttl: Duration | None = Field(default=None, gt=0)
    """Time after which what was not sent again is forgotten. Left out, it is not."""
    capacity: int | None = Field(default=None, ge=1, le=2**40)
    """Most blocks of a client; those sent longest ago are forgotten first. Left out, there is no limit."""

    def build(self, context: RouterContext, prompts: Prompts) -> SentCaches:
        """Return the view of a router."""
        return SentCaches(self, context)


class SentCaches:
    """The approximate view."""

    def __init__(self, view: ApproximateView, context: RouterContext) -> None:
        count = len(context.candidates)
        ttl_ns = None if view.ttl is None else s_to_ns(view.ttl)
        self.prefixes = SentPrefixes([view.capacity] * count, context.now_ns, ttl_ns=ttl_ns)
        self._places = set(range(count))

    def matches(self, stage: Stage, prompt: Hashed) -> dict[int, int]:
        return self.prefixes.matches(prompt)

    def sent(self, place: int, prompt: Hashed) -> None:
        self.prefixes.sent(place, prompt)

    def changed(self, places: set[int]) -> None:
        """Forget what was sent to candidates that have left."""
        for place in self._places - places:
            self.prefixes.forget(place)
        self._places = places


CacheView = ApproximateView
