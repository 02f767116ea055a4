"""A router's own books: what it sent to each of its candidates, and what of it has not ended.

A request is in flight from the router's choice until its end, at a client that hands its KV over until the KV has left.
A prompt counts until its first token. What a client refuses, or does not get since it cannot be reached, leaves the
books; if another client takes it then, this router does not know.
"""

from __future__ import annotations

import numpy as np

from hermes.arrays import IntArray
from hermes.core.client import Client
from hermes.core.generation import Generation
from hermes.core.router import RouterContext
from hermes.core.stage import Stage

__all__ = ["OWN_LOADS", "OwnBooks", "continues"]

OWN_LOADS = ("requests", "input_tokens", "kv_tokens")
"""Loads that the books show: requests in flight, tokens of prompts without a first token, of prompts without an end."""


def continues(stage: Stage) -> bool:
    """Whether another client has computed the prompt of a stage."""
    return isinstance(stage, Generation) and stage.source is not None


class _Sent:
    """A stage at a client. `computing`: tokens of its prompt that count until the first token."""

    __slots__ = ("client", "computing", "kv_tokens", "place")

    def __init__(self, place: int, client: int, computing: int, kv_tokens: int) -> None:
        self.place, self.client, self.computing, self.kv_tokens = place, client, computing, kv_tokens


class OwnBooks:
    """Counts by candidate.

    Attributes:
        place_of: Place of each candidate by its index.
        in_flight: Stages sent and not ended.
        computing: Prompt tokens, or those that the router expects to be computed, until the first token.
        kv_tokens: Prompt tokens of the stages in flight.
    """

    def __init__(self, context: RouterContext) -> None:
        count = len(context.candidates)
        self.place_of = {client.index: place for place, client in enumerate(context.candidates)}
        self._indices = [client.index for client in context.candidates]
        self.in_flight: IntArray = np.zeros(count, dtype=np.int64)
        self.computing: IntArray = np.zeros(count, dtype=np.int64)
        self.kv_tokens: IntArray = np.zeros(count, dtype=np.int64)
        self._sent: dict[int, _Sent] = {}

    def load(self, kind: str) -> IntArray:
        """Return the live array of one of `OWN_LOADS`."""
        return {"requests": self.in_flight, "input_tokens": self.computing, "kv_tokens": self.kv_tokens}[kind]

    def sent(self, stage: Stage, place: int, computing: int | None = None) -> None:
        """Count a stage at a client. computing: Tokens of its prompt that are to be computed; all of them if None."""
        if stage.arrival_order in self._sent:   # the router is asked again for it
            self.ended(stage.arrival_order)
        tokens = stage.prompt_tokens
        if computing is None:
            computing = tokens
        if continues(stage):
            computing = 0
        self._sent[stage.arrival_order] = _Sent(place, self._indices[place], computing, tokens)
        self.in_flight[place] += 1
        self.computing[place] += computing
        self.kv_tokens[place] += tokens

    def ended(self, number: int) -> int | None:
        """Take a stage out of the books; return the place where it was, None if it was not there."""
        sent = self._sent.pop(number, None)
        if sent is None:
            return None
        self.in_flight[sent.place] -= 1
        self.computing[sent.place] -= sent.computing
        self.kv_tokens[sent.place] -= sent.kv_tokens
        return sent.place

    def observe(self, event: str, client: Client, stage: Stage) -> None:
        """See `hermes.core.router.Router`."""
        self.seen(event, client, stage)

    def seen(self, event: str, client: Client, stage: Stage) -> int | None:
        """Note an event as `observe` does; return the place of a stage that it ends there, else None."""
        number = stage.arrival_order
        if event == "prefilled":
            sent = self._sent.get(number)
            if sent is not None and sent.computing:
                self.computing[sent.place] -= sent.computing
                sent.computing = 0
            return None
        if event == "transferred":
            sent = self._sent.get(number)
            if sent is None or sent.client != client.index:
                return None
        return self.ended(number)
