"""Routers that remember or measure where a request's data is: session affinity and locality."""

from __future__ import annotations

from typing import Any, Literal

from hermes.clients.base import Client
from hermes.config import ConfigModel
from hermes.routing.base import ROUTERS, RouterContext
from hermes.routing.load import Load, least_loaded

__all__ = ["LocalityConfig", "SessionConfig"]


@ROUTERS.register("session")
class SessionConfig(ConfigModel):
    """A session's requests go where its first went; a new session, and a request without one, to the least loaded."""

    kind: Literal["session"] = "session"
    load: Load = "input_tokens"
    """What counts as load."""

    def build(self, context: RouterContext) -> SessionAffinity:
        return SessionAffinity(self, context)


class SessionAffinity:
    def __init__(self, config: SessionConfig, context: RouterContext) -> None:
        self._least = least_loaded(context, config.load)
        self._homes: dict[int, Client] = {}

    def choose(self, stage: Any) -> Client:
        session = stage.request.session
        if session < 0:
            return self._least()
        home = self._homes.get(session)
        if home is None:
            home = self._homes[session] = self._least()
        return home


@ROUTERS.register("locality")
class LocalityConfig(ConfigModel):
    """The client the stage's data reaches first; among equals the least loaded."""

    kind: Literal["locality"] = "locality"
    load: Load = "input_tokens"
    """What counts as load."""

    def build(self, context: RouterContext) -> Locality:
        return Locality(self, context)


class Locality:
    def __init__(self, config: LocalityConfig, context: RouterContext) -> None:
        self._context, self._load = context, config.load

    def choose(self, stage: Any) -> Client:
        transfer_ns = self._context.transfer_ns
        return min(self._context.candidates, key=lambda c: (transfer_ns(stage, c), c.load(self._load)))
