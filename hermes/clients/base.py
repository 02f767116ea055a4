"""Who serves: the client protocol, and the configuration every client shares."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

from hermes.clients.view import ClientView
from hermes.config.registry import Registry

__all__ = ["CLIENTS", "LOADS", "Client", "StageDone", "platform_name"]

CLIENTS: Registry[Any] = Registry("clients", "a client")

LOADS = ("input_tokens", "output_tokens", "kv_tokens", "tokens_left", "requests")

StageDone = Callable[[Any, Any], None]   # (client, stage): a stage has completed at this instant


class Client(Protocol):
    """Something that serves stages. The coordinator calls `submit`; the client calls back when a stage is done.

    index: position among all clients; name: unique; stages: kinds of stage it serves; model: the model it serves, or
    "" for any; platform: group of clients that count as local to each other.
    """

    index: int
    name: str
    stages: frozenset[str]
    model: str
    platform: str
    on_done: StageDone

    def submit(self, stage: Any) -> None:
        """A stage arrives. May complete later only, never inside this call."""
        ...

    def refusal(self, stage: Any) -> str | None:
        """Why this stage can never be served here, or None."""
        ...

    def load(self, kind: str) -> int:
        """Load of one of `LOADS`, as of now."""
        ...

    def view(self) -> ClientView:
        """What pipelines may know of it, as of now."""
        ...


def platform_name(pattern: str | None, number: int) -> str:
    """The platform of a group's client: `{i}` in the pattern is its number, `{i//4}` its number divided by 4."""
    return re.sub(r"\{i(?://([1-9]\d*))?\}", lambda found: str(number // int(found[1] or 1)), pattern or "")
