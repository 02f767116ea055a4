"""Routers of vLLM's production stack: sessions on a hash ring, or the longest prefix in a trie.

Rules of https://github.com/vllm-project/production-stack at 008a23b (src/vllm_router/routers/routing_logic.py,
src/vllm_router/prefix/hashtrie.py).

- `by: session`: the node of a consistent hash ring (as uhashring 2.5 makes it by default: 160 MD5 sums a node), so that
  few sessions move when a client comes or goes. A request without a session goes to the client with the fewest
  requests sent in the last `window`, at first to those that have got none.
- `by: prefix`: one at random of the clients with the longest match in a trie of chunks, that loses nothing; of all
  clients where none matches. Chunks have 128 characters there, 32 tokens here (4 characters a token); the last one is
  hashed also where it is shorter.
"""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections import deque
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from hermes.config import ConfigModel, Duration
from hermes.core.client import Client
from hermes.core.router import RouterContext
from hermes.core.stage import Stage
from hermes.routing.decisions import settled
from hermes.routing.prefixes import Prompts, SentPrefixes
from hermes.routing.ties import Draws
from hermes.units import s_to_ns

__all__ = ["HashRing", "ProductionStackConfig"]

POINTS = 160   # of a node on the ring


class ProductionStackConfig(ConfigModel):
    """vLLM's production stack: sessions on a consistent hash ring, or the longest prefix in a trie."""

    kind: Literal["production_stack"] = "production_stack"
    by: Literal["session", "prefix"] = "session"
    """What keeps requests together: `session` (a hash ring) or `prefix` (a trie)."""
    chunk: int = Field(default=32, ge=1, le=2**20)
    """Tokens of a chunk of the trie (128 characters there)."""
    window: Duration = Field(default=60.0, gt=0)
    """Time over which requests without a session are counted."""

    def build(self, context: RouterContext) -> SessionRing | PrefixTrie:
        return SessionRing(self, context) if self.by == "session" else PrefixTrie(self, context)


class HashRing:
    """A consistent hash ring over names."""

    def __init__(self, names: Sequence[str]) -> None:
        owners = {_point(f"{name}-{number}"): place for place, name in enumerate(names) for number in range(POINTS)}
        self._points = sorted(owners)
        self._owners = [owners[point] for point in self._points]

    def place(self, key: str) -> int:
        """Return the position of the name that owns a key."""
        here = bisect(self._points, _point(key))
        return self._owners[here % len(self._owners)]


def _point(key: str) -> int:
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest(), "big")


class SessionRing:
    """See the module's docstring."""

    def __init__(self, config: ProductionStackConfig, context: RouterContext) -> None:
        self._context = context
        self._now_ns, self._window_ns = context.now_ns, s_to_ns(config.window)
        self._sent: dict[int, deque[int]] = {}   # by client: when requests were sent, of those that have got some
        self.changed(context.candidates)

    def changed(self, members: Sequence[Client]) -> None:
        self._members = list(members)
        self._ring = HashRing([client.name for client in members])
        self._homes: dict[int, Client] = {}

    def choose(self, stage: Stage) -> Client:
        session, now = stage.request.session, self._now_ns()
        if session < 0:
            client = self._fewest(now)
        else:
            home = self._homes.get(session)
            if home is None:
                home = self._homes[session] = self._members[self._ring.place(str(session))]
            client = home
        if self._context.decisions is not None:
            client = self._settled(stage, client)
            if session >= 0:
                self._homes[session] = client
        times = self._sent.setdefault(client.index, deque())
        times.append(now)
        while times[0] <= now - self._window_ns:
            times.popleft()
        return client

    def _settled(self, stage: Stage, client: Client) -> Client:
        clients = self._context.candidates
        places = [place for place, one in enumerate(clients) if one in self._members]
        sent = {place: len(self._sent.get(clients[place].index, ())) for place in places}
        return clients[settled(self._context, stage, places, clients.index(client), lambda: {
            "sent": list(sent.values())}, lowest=True)]

    def _fewest(self, now: int) -> Client:
        """Return the first client that has got no request, else the one with the fewest in the window."""
        counts = []
        for client in self._members:
            times = self._sent.get(client.index)
            if times is None:
                return client
            while times and times[0] <= now - self._window_ns:
                times.popleft()
            counts.append(len(times))
        return self._members[counts.index(min(counts))]


class PrefixTrie:
    """See the module's docstring."""

    def __init__(self, config: ProductionStackConfig, context: RouterContext) -> None:
        self._context = context
        self._place_of = {client.index: place for place, client in enumerate(context.candidates)}
        self._prompts = Prompts(config.chunk, partial=True)
        self.trie = SentPrefixes([None] * len(self._place_of), context.now_ns)
        self._draws = Draws(context.rng)
        self.changed(context.candidates)

    def changed(self, members: Sequence[Client]) -> None:
        """Choose among the members; numbers drawn ahead are dropped."""
        self._draws.drop()
        self._members = list(members)
        self._places = [self._place_of[client.index] for client in members]

    def choose(self, stage: Stage) -> Client:
        prompt = self._prompts.hashed(stage)
        matches = self.trie.matches(prompt)
        matched = [matches.get(place, 0) for place in self._places]
        longest = max(matched)
        equal = [here for here, blocks in enumerate(matched) if blocks == longest]
        place = self._places[equal[self._draws.below(len(equal))]]
        if self._context.decisions is not None:
            place = settled(self._context, stage, self._places, place, lambda: {"matched chunks": matched})
        self._context.believed(stage, self._prompts.tokens_of(matches.get(place, 0), prompt))
        self.trie.sent(place, prompt)
        return self._context.candidates[place]
