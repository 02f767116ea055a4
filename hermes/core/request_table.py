"""The request table: the columns of a drawn workload.

All random values of requests are drawn before the simulation starts, so that the same seed gives the same requests to
every system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hermes.arrays import IntArray
from hermes.core.columns import constant

if TYPE_CHECKING:
    from hermes.core.joined_hashes import JoinedHashes

__all__ = ["ANY_NUMBER", "NamedColumn", "Population", "RequestTable"]


ANY_NUMBER = 2**50
"""Tokens asked for by a request that sets no limit: more than any context has."""


@dataclass(frozen=True, eq=False)
class Population:
    """The contexts of a workload. Key k has `tokens[k]` tokens; lower keys are requested at least as often.

    Workloads that use the same `name` share one population.
    """

    name: str
    shared: bool
    tokens: IntArray


@dataclass(frozen=True, eq=False)
class NamedColumn:
    """A column of few distinct names: that of row i is `names[codes[i]]`."""

    codes: IntArray
    names: list[str]

    @classmethod
    def of(cls, texts: Sequence[str]) -> NamedColumn:
        """Return a column of these texts; the names are in alphabetical order."""
        names, codes = np.unique(np.asarray(texts, dtype=object).astype(str), return_inverse=True)
        return cls(codes.astype(np.int64), [str(name) for name in names])

    def take(self, rows: IntArray) -> NamedColumn:
        """Return these rows."""
        return NamedColumn(self.codes[rows], self.names)


@dataclass
class RequestTable:
    """`n` requests as int64 columns of length n, in arrival order (closed loop: in the order users take them).

    Attributes:
        arrival_ns: Nanoseconds from the start, nondecreasing; None in a closed loop. -1 for the later turns of
            conversations, which arrive after the answer to the turn before.
        prompt_tokens, output_tokens: At least 1 each.
        priority: Lower is more urgent (as in vLLM); 0 by default.
        session: Number shared by the requests of one conversation; -1 for none.
        turn: Position of each request in its conversation, from 0, with the rows of a conversation consecutive; None
            where requests do not wait for one another. The prompt of a turn is the prompt before, its answer (the first
            branch) and the new text. All conversations begin with `prefix_tokens` of `prefix_group`.
        prefix_group, prefix_tokens: The first `prefix_tokens` prompt tokens are the beginning of the group's text; the
            rest is unique to the request. -1 and 0 for none.
        tenant, service_class: Whose request it is, and its class at a gateway. None where no request has one.
        adapter: LoRA adapter of each request, from 1; 0 for none. None where no request has one.
        hash_ids: For traces with block hashes (Mooncake): for each request the chained ids of its consecutive blocks
            of `hash_block_tokens` tokens. Overrides prefix_group.
        hash_tokens: For traces with hashes of pieces of unequal lengths (RAGPulse): for each request the tokens of each
            of its `hash_ids`, which replace `hash_block_tokens`. None where all blocks are of one length.
        max_new_tokens: Output tokens that each request asks for, where a stop token may end it before; `ANY_NUMBER` for
            as many as its client's context leaves. None where all requests ask for what they get.
        branch_tokens: Output tokens of each branch of the answer, shape (n, branches); None for one answer each.
        context, population: Past context of each request, as a key of the population; -1 for none.
        users: Closed loop: number of users.
        think_ns: Before request i a user waits think_ns[i] after the previous answer (before its first request: after
            time zero). Later turns of conversations wait in an open loop as well.
        max_in_flight: Open loop: limit of requests in service. Requests above it are sent when another one ends. None
            for no limit.
        joined: Names of the `hash_ids` for prefix caches (`hermes.core.joined_hashes`), found when a simulation is
            built. None: each id has a name of its own.
    """

    prompt_tokens: IntArray
    output_tokens: IntArray
    arrival_ns: IntArray | None = None
    priority: IntArray = None  # type: ignore[assignment]
    session: IntArray = None  # type: ignore[assignment]
    prefix_group: IntArray = None  # type: ignore[assignment]
    prefix_tokens: IntArray = None  # type: ignore[assignment]
    adapter: IntArray | None = None
    hash_ids: Sequence[tuple[int, ...]] | None = None
    hash_block_tokens: int = 512
    hash_tokens: Sequence[tuple[int, ...]] | None = None
    max_new_tokens: IntArray | None = None
    branch_tokens: IntArray | None = None
    context: IntArray = None  # type: ignore[assignment]
    population: Population | None = None
    users: int | None = None
    think_ns: IntArray | None = None
    turn: IntArray | None = None
    max_in_flight: int | None = None
    joined: JoinedHashes | None = None
    tenant: NamedColumn | None = None
    service_class: NamedColumn | None = None

    def __post_init__(self) -> None:
        n = len(self.prompt_tokens)
        defaults = {"priority": 0, "session": -1, "prefix_group": -1, "prefix_tokens": 0, "context": -1}
        for name, value in defaults.items():
            if getattr(self, name) is None:
                setattr(self, name, constant(value, n))
        for name in ("prompt_tokens", "output_tokens", *defaults):
            column = np.asarray(getattr(self, name), dtype=np.int64)
            if column.shape != (n,):
                raise ValueError(f"column {name} has shape {column.shape}, expected ({n},)")
            setattr(self, name, column)
        if (self.arrival_ns is None) == (self.users is None):
            raise ValueError("a request table needs either arrival times or closed-loop users, and not both")

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def shared_texts(self) -> list[tuple[int, int]]:
        """Return (group, tokens) of each shared beginning, at its longest in any prompt; the most used first."""
        groups, index, counts = np.unique(self.prefix_group, return_inverse=True, return_counts=True)
        longest = np.zeros(len(groups), dtype=np.int64)
        np.maximum.at(longest, index, self.prefix_tokens)
        order = np.argsort(-counts, kind="stable")
        return [(int(groups[i]), int(longest[i])) for i in order if groups[i] >= 0 and longest[i] > 0]
