"""Prompts of a scenario as token ids: texts that two requests share in the scenario are the same tokens here.

The simulator has no tokens; a content says which parts of a prompt are which text (`hermes.core.block_hashes`). Every
text gets random tokens, drawn from a generator that its key and the seed give, so a text is the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterator

from hermes.config.streams import stream
from hermes.core.block_hashes import GroupPrefix, HashedPieces, HashedPrompt, JoinedPrompt, PromptContent
from hermes.core.request import Request
from hermes.errors import InputError, Verbatim

__all__ = ["Vocabulary"]

RESERVED = 1000   # ids at both ends of a large vocabulary: special tokens stand there


class Vocabulary:
    """Random texts over the ids that are ordinary tokens.

    Args:
        size: Tokens of the model's vocabulary.
        seed: Seed of all texts.
        attempt: Other attempts have other texts, so that no attempt finds those of an earlier one in a cache.
    """

    def __init__(self, size: int, seed: int, attempt: int = 1) -> None:
        if size < 10:
            raise InputError("a vocabulary of at least 10 tokens", size, field="vocab_size")
        reserved = min(RESERVED, size // 4)
        self._low, self._high, self._seed = reserved, size - reserved, seed
        self._name = "observe" if attempt == 1 else f"observe-attempt-{attempt}"

    def prompt(self, request: Request) -> list[int]:
        """Return the `prompt_tokens` ids of a request's prompt."""
        ids: list[int] = []
        for key, tokens in pieces(request.content, request.prompt_tokens):
            ids += self._text(key, tokens)
        return ids + self._text(f"own-{request.id}", request.prompt_tokens - len(ids))

    def _text(self, key: str, tokens: int) -> list[int]:
        draw = stream(self._seed, f"{self._name}-{key}")
        found: list[int] = draw.integers(self._low, self._high, tokens).tolist()
        return found


def pieces(content: PromptContent | None, prompt_tokens: int) -> Iterator[tuple[str, int]]:
    """Yield (key of a text, how many of its first tokens) of the shared part of a prompt, in order.

    Raises `InputError` for contents that only a conversation has: its later prompts repeat answers of the server.
    """
    if isinstance(content, JoinedPrompt):
        content = content.original
    if isinstance(content, GroupPrefix):
        yield f"group-{content.group}", min(content.num_tokens, prompt_tokens)
    elif isinstance(content, HashedPrompt):
        left = content.num_tokens
        for number in content.ids:
            yield f"hash-{number}", min(content.unit, left)
            left -= min(content.unit, left)
    elif isinstance(content, HashedPieces):
        start = 0
        for number, end in zip(content.ids, content.ends, strict=True):
            end = min(end, content.num_tokens)
            yield f"hash-{number}", end - start
            start = end
    elif content is not None:
        raise InputError(Verbatim(f"{type(content).__name__}: prompts of conversations repeat the server's answers, "
                                  "which are not known before; drive single requests"), field="workload")

