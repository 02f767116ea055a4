"""The request table: what a workload is once it has been drawn, as columns.

Everything random about requests is decided before the simulation starts, so that the same seed gives the same requests
whatever serves them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Population", "RequestTable"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Population:
    """The contexts of a workload. Key k has `tokens[k]` tokens; lower keys are asked for at least as often.

    name: populations of one name are one, whichever workloads ask for them
    """

    name: str
    shared: bool
    tokens: IntArray


@dataclass
class RequestTable:
    """`n` requests as int64 columns of length n, in arrival order (closed loop: in the order users take them).

    arrival_ns: nanoseconds from the start, nondecreasing; None in a closed loop. -1 for the later turns of
        conversations, which come when the turn before has been answered
    prompt_tokens, output_tokens: both at least 1
    priority: lower is more urgent (vLLM's sense); 0 by default
    session: requests of one conversation share a number; -1 for none
    turn: the how manieth request of its conversation each is, from 0, the rows of a conversation one after the other;
        None where requests do not wait for one another. The prompt of a turn is the prompt before, the answer to it
        (its first branch) and what is new; `prefix_tokens` of `prefix_group` are what all conversations begin with
    prefix_group, prefix_tokens: the first `prefix_tokens` prompt tokens are the first tokens of that group's text, what
        follows is unique to the request; -1 and 0 for none
    hash_ids: for traces with block hashes (Mooncake): per request the chained ids of its consecutive blocks of
        `hash_block_tokens` tokens; overrides prefix_group
    branch_tokens: output tokens of each branch of the answer, shape (n, branches); None for one answer each
    context, population: the past context that each request brings along, a key of the population; -1 for none
    users, think_ns: closed loop: `users` clients; before submitting request i a user waits think_ns[i] after its
        previous answer (the first request of each waits its own from time zero). The later turns of conversations wait
        theirs in an open loop as well
    max_in_flight: open loop: at most so many requests are being served; those that come meanwhile are sent when one
        ends. None for any number
    """

    prompt_tokens: IntArray
    output_tokens: IntArray
    arrival_ns: IntArray | None = None
    priority: IntArray = None  # type: ignore[assignment]
    session: IntArray = None  # type: ignore[assignment]
    prefix_group: IntArray = None  # type: ignore[assignment]
    prefix_tokens: IntArray = None  # type: ignore[assignment]
    hash_ids: list[tuple[int, ...]] | None = None
    hash_block_tokens: int = 512
    branch_tokens: IntArray | None = None
    context: IntArray = None  # type: ignore[assignment]
    population: Population | None = None
    users: int | None = None
    think_ns: IntArray | None = None
    turn: IntArray | None = None
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        n = len(self.prompt_tokens)
        defaults = {"priority": 0, "session": -1, "prefix_group": -1, "prefix_tokens": 0, "context": -1}
        for name, value in defaults.items():
            if getattr(self, name) is None:
                setattr(self, name, np.full(n, value, dtype=np.int64))
        for name in ("prompt_tokens", "output_tokens", *defaults):
            column = np.ascontiguousarray(getattr(self, name), dtype=np.int64)
            if column.shape != (n,):
                raise ValueError(f"column {name} has shape {column.shape}, expected ({n},)")
            setattr(self, name, column)
        if (self.arrival_ns is None) == (self.users is None):
            raise ValueError("a request table has either arrival times or closed-loop users")

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def shared_texts(self) -> list[tuple[int, int]]:
        """(group, tokens) of the beginnings that prompts share, as far as any prompt has them; the most used first."""
        groups, index, counts = np.unique(self.prefix_group, return_inverse=True, return_counts=True)
        longest = np.zeros(len(groups), dtype=np.int64)
        np.maximum.at(longest, index, self.prefix_tokens)
        order = np.argsort(-counts, kind="stable")
        return [(int(groups[i]), int(longest[i])) for i in order if groups[i] >= 0 and longest[i] > 0]
