"""Base of the parts that a deployment adds to an LLM client: limits of its queue, tiers of KV.

A part sees requests on their way in and out. It works with every role, scheduler, rank and stage, because it knows none
of them. Parts that decide what a step computes belong to the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes.compiled import mypyc_attr
from hermes.core.generation import Generation

if TYPE_CHECKING:
    from hermes.clients.llm import LLMClient

__all__ = ["ClientPart"]


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientPart:
    """A part of one client. The hooks are called in the order in which they stand here; a part overrides some.

    None of them may change the scheduler's queues, nor the fields of the sequence that a docstring does not name.
    """

    def refusal(self, client: LLMClient, stage: Generation) -> str | None:
        """Return why the client turns a request away at this instant, or None.

        Called each time that the coordinator looks for a client, also for requests that go elsewhere.
        """
        return None

    def submitted(self, client: LLMClient, stage: Generation) -> None:
        """Note a request that the client has taken. Called once for each, before the front end's time."""

    def keeps(self, client: LLMClient, stage: Generation, go_on: Callable[[], None]) -> bool:
        """Whether the part keeps a request back that has come through the front end; it calls `go_on` later, once.

        Called once for each, in the order of the client's parts. It may set `num_computed` and `cached_tokens`, to what
        is in memory when `go_on` is called.
        """
        return False

    def done(self, client: LLMClient, stage: Generation) -> None:
        """Note a sequence that has ended at this instant; it still holds its blocks. Called once for each."""

    def waits(self) -> bool:
        """Whether it keeps requests back: then the client is not idle, although no step runs."""
        return False
