"""Conversations: each turn follows the answer to the one before, and its prompt repeats the conversation so far.

The prompt of a turn is the prompt before, its answer and a new message. All conversations may begin with the same text
(a system prompt). The arrival process gives the *starts* of conversations. The next turn arrives when the answer is
complete and the user has thought. In a closed loop each user holds one conversation after the other.

A conversation is one text that only grows, so that its position in the text identifies a block, at any block size and
including answers (`hermes.core.block_hashes.ConversationText`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field

from hermes.arrays import IntArray
from hermes.config import Duration, Tokens
from hermes.workload.base import MAX_TOKENS, Ends, LengthModel, Lengths, ThinkDistribution, inside, think_times_ns
from hermes.workload.lengths import Counts

__all__ = ["ConversationLengths"]


class ConversationLengths(LengthModel):
    """Turns of conversations: each waits for the answer before, and repeats the conversation so far. `arrivals` gives
    the starts of conversations (`rate: 17 /s` is 17 conversations a second), or the number of users who hold one at a
    time. `requests` counts turns."""

    has_turns = True
    kind: Literal["conversations"] = "conversations"
    turns: Counts
    """Turns of a conversation: `3`, or e.g. `{kind: geometric, mean: 5}`."""
    message: Counts
    """Tokens that a user adds in each turn."""
    output: Counts
    """Tokens of each answer. With several branches the conversation continues with the first."""
    system_tokens: Annotated[int, Field(ge=0, le=2**30)] = 0
    """Tokens with which all conversations of the workload begin."""
    think_time: Duration
    """Mean time between an answer and the next turn."""
    think_distribution: ThinkDistribution = "fixed"
    """Think times: all equal to the mean, or exponentially distributed around it."""
    longest: Tokens = 131_072
    """Longest prompt. A conversation ends before a turn whose prompt would be longer."""

    @property
    def ends(self) -> Ends:
        ends: Ends = self.output.ends
        return ends

    def bound(self, base_dir: Path) -> Self:
        found = {}
        for name in ("turns", "message", "output"):
            with inside(name):
                found[name] = getattr(self, name).bound(base_dir)
        return self.model_copy(update=found)

    def draw(self, n: int, rng: np.random.Generator) -> Lengths:
        return self.turns_of(n, rng)

    def turns_of(
        self, n: int, rng: np.random.Generator, *, goes_on_with: Callable[[IntArray], IntArray] = lambda tokens: tokens,
        max_total_tokens: int | None = None,
    ) -> Lengths:
        """Draw the first `n` turns; the last conversation may be incomplete.

        Args:
            goes_on_with: Function from the drawn output tokens to those that the next prompts repeat.
            max_total_tokens: A conversation ends before a turn with more tokens, prompt and answer; a first turn is
                truncated.
        """
        of_turns, of_messages, of_outputs, of_thoughts = rng.spawn(4)
        turns = self.turns.draw(n, of_turns).tolist()
        messages, outputs = self.message.draw(n, of_messages), self.output.draw(n, of_outputs)
        most = MAX_TOKENS if max_total_tokens is None else max_total_tokens
        session, turn, prompts = (np.zeros(n, dtype=np.int64) for _ in range(3))
        number, place, said = -1, 0, 0   # the conversation, its next turn, its tokens so far
        left = 0
        for i, (message, answer) in enumerate(zip(messages.tolist(), goes_on_with(outputs).tolist(), strict=True)):
            prompt = said + message
            if not left or prompt > self.longest or prompt + answer > most:
                number, place = number + 1, 0
                left = turns[number]
                prompt = min(self.system_tokens + message, MAX_TOKENS, most - 1)
                answer = min(answer, most - prompt)
            session[i], turn[i], prompts[i] = number, place, prompt
            place, left, said = place + 1, left - 1, prompt + answer
        return Lengths(
            prompts, outputs, session=session, turn=turn,
            prefix_group=np.full(n, 0 if self.system_tokens else -1, dtype=np.int64),
            prefix_tokens=np.minimum(self.system_tokens, prompts),
            think_ns=think_times_ns(self.think_time, self.think_distribution, n, of_thoughts),
        )

    def turns_in(self, conversations: int, draw: Callable[[int], Lengths]) -> int:
        """Return the number of turns in `conversations` conversations; `draw` is `turns_of` with all but the number."""
        n = 4 * conversations
        while True:
            session = draw(n).session
            assert session is not None
            if len(session) == 0 or session[-1] >= conversations:
                return int(np.searchsorted(session, conversations))
            n *= 4
