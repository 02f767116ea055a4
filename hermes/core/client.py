"""Clients as the coordinator, routers and pipelines know them: serving instances that take stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

__all__ = ["LOADS", "Client", "ClientView", "StageDone"]

LOADS = ("input_tokens", "output_tokens", "kv_tokens", "tokens_left", "requests")


class ClientView(NamedTuple):
    """One client at one moment. Counts of KV are tokens in whole blocks, zero for clients without KV memory.

    At a step's end the next step has not started; of the sequences that end with a step, those before the one whose
    pipeline looks have given up their blocks, in order of admission.

    kv_capacity_tokens: of all blocks; free_kv_tokens: of blocks that nobody holds; uncommitted_kv_tokens: of these,
    what the prompts of running and waiting sequences will not take, negative where they ask for more than there is
    running, waiting: sequences in the batch and before it (tasks assigned, for clients that are no engines)
    max_num_seqs, max_num_batched_tokens: limits of a step
    """

    name: str
    model: str
    kv_capacity_tokens: int = 0
    free_kv_tokens: int = 0
    uncommitted_kv_tokens: int = 0
    block_tokens: int = 0
    running: int = 0
    waiting: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0


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
