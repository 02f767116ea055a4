"""Affinity routers: send a request to its data, by session, context, platform or transfer time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from hermes.config import ConfigModel, Duration
from hermes.core.client import Client
from hermes.core.router import RouterContext
from hermes.core.stage import Stage
from hermes.errors import InputError, Verbatim
from hermes.routing.decisions import settled
from hermes.routing.load import Least, Load
from hermes.units import s_to_ns

__all__ = ["ContextConfig", "LocalityConfig", "PlatformConfig", "SessionConfig"]


class SessionConfig(ConfigModel):
    """Send a session's requests to one client. A new session, and a request without one, goes to the least loaded."""

    kind: Literal["session"] = "session"
    load: Load = "input_tokens"
    """Load to compare."""
    affinity: Literal["hard", "soft"] = "hard"
    """`hard` always sends a session to its client, `soft` unless the load there is more than `slack` above the
    least."""
    slack: int | None = Field(default=None, ge=0, le=2**40)
    """Load above the least up to which a session with `soft` affinity stays."""
    rebind: bool = True
    """Whether a session that `soft` affinity sends elsewhere stays there; otherwise it comes back."""
    ttl: Duration | None = Field(default=None, gt=0)
    """Time after which a session that sent nothing has no client any more. Left out, it keeps its client."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.affinity == "soft") != (self.slack is not None):
            raise InputError(Verbatim("goes with `affinity: soft`; give both, or neither"), field="slack")
        if self.affinity == "hard" and not self.rebind:
            raise InputError(Verbatim("a session with hard affinity never goes elsewhere; leave it out"),
                             field="rebind")
        return self

    def build(self, context: RouterContext) -> SessionAffinity:
        return SessionAffinity(self, context)


class SessionAffinity:
    def __init__(self, config: SessionConfig, context: RouterContext) -> None:
        self._context, self._members = context, list(context.candidates)
        self._of = Least(context, config.load).of
        self._least = self._of(context.candidates)
        self._homes: dict[int, Client] = {}
        self._load, self._slack, self._rebind = config.load, config.slack, config.rebind
        self._now_ns, self._ttl_ns = context.now_ns, None if config.ttl is None else s_to_ns(config.ttl)
        self._used: dict[int, int] = {}   # with a `ttl`: when each session was used, the longest ago first

    def changed(self, members: Sequence[Client]) -> None:
        """Forget the sessions whose client has left: each finds a new home."""
        self._members = list(members)
        self._least = self._of(members)
        left = {client.index for client in members}
        self._homes = {session: home for session, home in self._homes.items() if home.index in left}

    def choose(self, stage: Stage) -> Client:
        session = stage.request.session
        if session < 0:
            return self._least()
        if self._ttl_ns is not None:
            self._expire(session)
        home = self._homes.get(session)
        client = self._least() if home is None or self._slack is not None else home
        if home is not None and self._slack is not None and (
                home.load(self._load) - client.load(self._load) <= self._slack):
            client = home
        if self._context.decisions is not None:
            client = self._settled(stage, client)
        if home is None or self._rebind:
            self._homes[session] = client
        return client

    def _settled(self, stage: Stage, client: Client) -> Client:
        clients, home = self._context.candidates, self._homes.get(stage.request.session)
        places = [place for place, one in enumerate(clients) if one in self._members]
        return clients[settled(self._context, stage, places, clients.index(client), lambda: {
            "bound": [float(clients[place] is home) for place in places]})]

    def _expire(self, session: int) -> None:
        """Forget sessions that were not used for too long, and note that one is used now."""
        now, used = self._now_ns(), self._used
        assert self._ttl_ns is not None
        while used and now - used[oldest := next(iter(used))] >= self._ttl_ns:
            del used[oldest]
            self._homes.pop(oldest, None)
        used.pop(session, None)
        used[session] = now


class LocalityConfig(ConfigModel):
    """Send a stage to the client to which its data moves fastest, by the time of all transfers on an idle network: the
    stage's inputs (passages, found KV), and the KV of a generation that continues elsewhere. Ties go to the least
    loaded."""

    kind: Literal["locality"] = "locality"
    load: Load = "input_tokens"
    """Load to compare."""

    def build(self, context: RouterContext) -> Locality:
        return Locality(self, context)


class Locality:
    def __init__(self, config: LocalityConfig, context: RouterContext) -> None:
        self._context, self._load, self._members = context, config.load, context.candidates

    def changed(self, members: Sequence[Client]) -> None:
        self._members = list(members)

    def choose(self, stage: Stage) -> Client:
        transfer_ns = self._context.transfer_ns
        return min(self._members, key=lambda c: (transfer_ns(stage, c), c.load(self._load)))


class ContextConfig(ConfigModel):
    """Send a request to the client that holds its past context: number key modulo clients, as `start: home` fills the
    stores of one group (one group per model). A request without context goes to the least loaded."""

    kind: Literal["context"] = "context"
    load: Load = "input_tokens"
    """Load to compare."""

    def build(self, context: RouterContext) -> ContextHome:
        return ContextHome(self, context)


class ContextHome:
    def __init__(self, config: ContextConfig, context: RouterContext) -> None:
        self._candidates = context.candidates
        self._of = Least(context, config.load).of
        self._least = self._of(context.candidates)
        self._away: set[int] = set()   # clients that take no stages
        groups = {home[1] for home in (getattr(client, "starts_with", None) for client in context.candidates) if home}
        if groups and groups != {len(context.candidates)}:
            raise InputError(Verbatim(f"the {len(context.candidates)} clients with `start: home` form several groups; "
                                      "use one"))

    def changed(self, members: Sequence[Client]) -> None:
        """Requests whose home is away go to the least loaded."""
        self._least = self._of(members)
        self._away = {client.index for client in self._candidates} - {client.index for client in members}

    def choose(self, stage: Stage) -> Client:
        key = stage.request.context
        if key is None:
            return self._least()
        home = self._candidates[key[1] % len(self._candidates)]
        return self._least() if self._away and home.index in self._away else home


class PlatformConfig(ConfigModel):
    """Send a stage to the least loaded client of the platform that served the request last; at first, of all."""

    kind: Literal["platform"] = "platform"
    by: Literal["platform", "rack"] = "platform"
    """Part of the name that must be the same: the whole platform, or its rack (up to the first slash)."""
    load: Load = "input_tokens"
    """Load to compare."""

    def build(self, context: RouterContext) -> SamePlatform:
        return SamePlatform(self, context)


class SamePlatform:
    def __init__(self, config: PlatformConfig, context: RouterContext) -> None:
        self._rack, self._load = config.by == "rack", config.load
        self.changed(context.candidates)

    def changed(self, members: Sequence[Client]) -> None:
        self._all = list(members)
        self._near: dict[str, list[Client]] = {}
        for client in self._all:
            self._near.setdefault(self._place(client), []).append(client)

    def _place(self, client: Client) -> str:
        return client.platform.split("/")[0] if self._rack else client.platform

    def choose(self, stage: Stage) -> Client:
        before = stage.request.client
        near = self._all if before is None else self._near.get(self._place(before), self._all)
        return min(near, key=lambda client: client.load(self._load))
