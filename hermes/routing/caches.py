"""What a router knows of its candidates' prefix caches: what they hold, the same later, or what the router itself sent.

- `exact`: what each cache holds of this prompt now.
- `events`: what each cache held `delay` ago, as its events say, of which a share `loss` is lost.
- `approximate`: what the router sent, in blocks of its own, least recently sent first out (`hermes.routing.prefixes`).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, Protocol

from pydantic import Field

from hermes.config import ConfigModel, Duration, request_stream
from hermes.core.engine_readings import CacheEvents, CacheReadable
from hermes.core.generation import Generation
from hermes.core.router import RouterContext
from hermes.core.stage import Stage
from hermes.errors import InputError, Verbatim
from hermes.routing.prefixes import Hashed, Prompts, SentPrefixes
from hermes.units import s_to_ns

__all__ = ["ApproximateView", "CacheView", "Caches", "EventsView", "RealView", "view_of"]


class Caches(Protocol):
    """A view of the caches of all candidates, by place, in blocks of the router's prompts."""

    def matches(self, stage: Stage, prompt: Hashed) -> dict[int, int]:
        """Return how many blocks of a prompt candidates are believed to hold from its beginning on; those that hold
        none may be left out."""
        ...

    def in_host(self, stage: Stage, cached: dict[int, int]) -> dict[int, int]:
        """Return how many blocks behind those `cached` candidates can load from host memory, as `matches` does; of
        views that do not see it, none."""
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


class SentCaches:
    """The approximate view."""

    def __init__(self, view: ApproximateView, context: RouterContext) -> None:
        count = len(context.candidates)
        ttl_ns = None if view.ttl is None else s_to_ns(view.ttl)
        self.prefixes = SentPrefixes([view.capacity] * count, context.now_ns, ttl_ns=ttl_ns)
        self._places = set(range(count))

    def matches(self, stage: Stage, prompt: Hashed) -> dict[int, int]:
        return self.prefixes.matches(prompt)

    def in_host(self, stage: Stage, cached: dict[int, int]) -> dict[int, int]:
        return {}

    def sent(self, place: int, prompt: Hashed) -> None:
        self.prefixes.sent(place, prompt)

    def changed(self, places: set[int]) -> None:
        """Forget what was sent to candidates that have left."""
        for place in self._places - places:
            self.prefixes.forget(place)
        self._places = places


class EventsView(ConfigModel):
    """What the events of each prefix cache say: what it gained and lost, some time ago. What it held when the router
    first asks is known at once."""

    kind: Literal["events"] = "events"
    delay: Duration = Field(default=0.01, ge=0)
    """Time from a change of a cache until the router knows (an assumption)."""
    loss: float = Field(default=0.0, ge=0, le=1)
    """Share of the messages that are lost; a message has all changes of one client at one instant."""


RealView = Literal["exact"] | EventsView
CacheView = Literal["exact"] | EventsView | ApproximateView


def view_of(view: CacheView, context: RouterContext, prompts: Prompts) -> Caches:
    """Return the view of a router that cuts prompts as `prompts` does.

    Raises `InputError` for clients whose cache cannot be seen.
    """
    if isinstance(view, ApproximateView):
        return SentCaches(view, context)
    readable: list[CacheReadable] = []
    for client in context.candidates:
        if not isinstance(client, CacheReadable):
            raise InputError(Verbatim(f"{client.name} is no LLM engine and has no prefix cache; give its kind of stage "
                                      "another router under `routers`, or take `{kind: approximate}`"), field="caches")
        readable.append(client)
    if view == "exact":
        return ExactCaches(readable, prompts)
    return EventCaches(view, readable, context, prompts)


class ExactCaches:
    """What each cache holds now."""

    def __init__(self, clients: list[CacheReadable], prompts: Prompts) -> None:
        self._clients, self._size = clients, prompts.block_tokens
        self._places = list(range(len(clients)))
        self._in_host = {place for place, client in enumerate(clients) if client.caches_in_host()}

    def matches(self, stage: Stage, prompt: Hashed) -> dict[int, int]:
        if not prompt.runs:
            return {}
        held = {place: self._clients[place].cached_tokens(stage) // self._size for place in self._places}
        return {place: blocks for place, blocks in held.items() if blocks}

    def in_host(self, stage: Stage, cached: dict[int, int]) -> dict[int, int]:
        if not self._in_host or stage.content is None:
            return {}
        size = self._size
        held = {place: self._clients[place].host_tokens(stage, cached.get(place, 0) * size) // size
                for place in self._places if place in self._in_host}
        return {place: blocks for place, blocks in held.items() if blocks}

    def sent(self, place: int, prompt: Hashed) -> None:
        pass

    def changed(self, places: set[int]) -> None:
        self._places = sorted(places)


class _Known:
    """What the router knows of one cache: for each name, its blocks and how often each is held."""

    def __init__(self, client: CacheReadable, seed: int, router: str, view: EventsView) -> None:
        self.events: CacheEvents = client.cache_events()
        self._loss, self._seed, self._stream = view.loss, seed, f"views/{router}/{client.name}/"
        self._delay_ns = s_to_ns(view.delay)
        self._message, self._lost = -1, False
        self.held: dict[Hashable, dict[int, int]] = {}
        self._begin()

    def _begin(self) -> None:
        """Begin with an empty cache, of which nothing is known."""
        self._incarnation = self.events.incarnation
        self.naming, self.block_tokens = self.events.naming, self.events.block_tokens
        self.held.clear()

    def update(self, now: int) -> None:
        """Take the events that have come by now."""
        source = self.events
        source.catch_up()
        if source.incarnation != self._incarnation:   # it is known at once that the engine has gone
            self._begin()
        events, until = source.events, now - self._delay_ns
        while events and events[0][0] <= until:
            time_ns, stored, name, first, end = events.popleft()
            if time_ns < 0 or not self._loses(time_ns):
                self._note(name, first, end, 1 if stored else -1)

    def _loses(self, time_ns: int) -> bool:
        """Whether the message of an instant is lost."""
        if not self._loss:
            return False
        if time_ns != self._message:
            self._message = time_ns
            self._lost = request_stream(self._seed, f"{self._stream}{time_ns}").random() < self._loss
        return self._lost

    def _note(self, name: Hashable, first: int, end: int, change: int) -> None:
        blocks = self.held.get(name)
        if blocks is None:
            if change < 0:   # it was stored in a message that was lost
                return
            blocks = self.held[name] = {}
        for block in range(first, end):
            count = blocks.get(block, 0) + change
            if count > 0:
                blocks[block] = count
            else:
                blocks.pop(block, None)
        if not blocks:
            del self.held[name]

    def reach(self, names: list[tuple[Hashable, int, int]]) -> int:
        """Return the blocks of a prompt that are held from its beginning on."""
        found = 0
        for name, first, end in names:
            blocks = self.held.get(name)
            if blocks is None:
                return found
            for block in range(first, end):
                if block not in blocks:
                    return found
                found += 1
        return found


class EventCaches:
    """What each cache held some time ago, as its events say."""

    def __init__(self, view: EventsView, clients: list[CacheReadable], context: RouterContext,
                 prompts: Prompts) -> None:
        self._now_ns, self._size = context.now_ns, prompts.block_tokens
        self._view, self._clients, self._seed, self._router = view, clients, context.seed, context.name
        self._known: list[_Known] = []   # from the first prompt on
        self._places = list(range(len(clients)))

    def matches(self, stage: Stage, prompt: Hashed) -> dict[int, int]:
        if not prompt.runs or not isinstance(stage, Generation):
            return {}
        if not self._known:
            self._known = [_Known(client, self._seed, self._router, self._view) for client in self._clients]
        now, found = self._now_ns(), {}
        names: dict[Hashable, list[tuple[Hashable, int, int]]] = {}
        for place in self._places:
            known = self._known[place]
            known.update(now)
            runs = names.get(known.naming)
            if runs is None:
                runs = names[known.naming] = known.events.names(stage)
            blocks = known.reach(runs)
            if blocks:
                size = known.block_tokens
                blocks = min(blocks, (stage.prompt_tokens - 1) // size) * size // self._size
                if blocks:
                    found[place] = blocks
        return found

    def in_host(self, stage: Stage, cached: dict[int, int]) -> dict[int, int]:
        return {}

    def sent(self, place: int, prompt: Hashed) -> None:
        pass

    def changed(self, places: set[int]) -> None:
        self._places = sorted(places)
