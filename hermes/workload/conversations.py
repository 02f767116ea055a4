"""Conversations: requests whose prompts go on where an earlier one and its answer ended, with block hashes.

For prefix caches and tiers where no trace is at hand. Users talk side by side; each turn's prompt is everything said
so far plus a new message, and after a turn the conversation ends with a fixed probability. All conversations may begin
with the same text (a system prompt). Hashes are those of full blocks, numbered as they come up: equal numbers mean
equal text up to the block's end, as in Mooncake's traces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field

from hermes.config import Component, Tokens
from hermes.workload.base import MAX_TOKENS, LengthModel, Lengths, inside
from hermes.workload.lengths import LENGTHS, TOKEN_COUNTS

__all__ = ["ConversationLengths"]


@LENGTHS.register("conversations")
class ConversationLengths(LengthModel):
    """Turns of conversations: sessions, growing prompts, chained block hashes."""

    kind: Literal["conversations"] = "conversations"
    users: Annotated[int, Field(ge=1, le=10**6)]
    """How many conversations go on at the same time; each request is the next turn of one of them, chosen evenly."""
    turns: Annotated[float, Field(ge=1, le=1e6)] = 5.0
    """Mean number of turns of a conversation (geometric)."""
    message: Annotated[Any, Component(TOKEN_COUNTS)]
    """Tokens that a user adds in each turn."""
    output: Annotated[Any, Component(TOKEN_COUNTS)]
    """Tokens of each answer."""
    system_tokens: Annotated[int, Field(ge=0, le=2**30)] = 0
    """Tokens that all conversations begin with."""
    longest: Tokens = 131_072
    """A conversation whose next prompt would be longer ends."""
    block_tokens: Annotated[int, Field(ge=1, le=2**20)] = 512
    """Tokens per hashed block."""

    def bound(self, base_dir: Path) -> Self:
        with inside("message"):
            message = self.message.bound(base_dir)
        with inside("output"):
            output = self.output.bound(base_dir)
        return self.model_copy(update={"message": message, "output": output})

    def draw(self, n: int, rng: np.random.Generator) -> Lengths:
        of_users, of_ends, of_messages, of_outputs = rng.spawn(4)
        users = of_users.integers(0, self.users, n).tolist()
        ends = (of_ends.random(n) < 1 / self.turns).tolist()
        messages, outputs = self.message.draw(n, of_messages), self.output.draw(n, of_outputs)
        shared = tuple(range(self.system_tokens // self.block_tokens))
        number, sessions, next_id = 0, np.zeros(n, dtype=np.int64), len(shared)
        prompts, hashes = np.zeros(n, dtype=np.int64), []
        talks: dict[int, tuple[int, int, list[int]]] = {}   # user -> (session, tokens so far, full blocks)
        for i, user in enumerate(users):
            session, so_far, blocks = talks.get(user, (-1, 0, []))
            prompt = so_far + int(messages[i])
            if session < 0 or prompt > self.longest:
                session, blocks = number, list(shared)
                number += 1
                prompt = self.system_tokens + int(messages[i])
            prompt = min(prompt, MAX_TOKENS)
            while len(blocks) < prompt // self.block_tokens:
                blocks.append(next_id)
                next_id += 1
            sessions[i], prompts[i] = session, prompt
            hashes.append(tuple(blocks))
            if ends[i]:
                talks.pop(user, None)
            else:
                talks[user] = session, prompt + int(outputs[i]), blocks
        return Lengths(prompts, outputs, session=sessions, hash_ids=hashes, hash_block_tokens=self.block_tokens)
