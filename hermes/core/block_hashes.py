"""Block hashes: which KV blocks two prompts can share.

The simulator has no tokens. Two requests share KV blocks where their prompts begin with the same text. These classes
give a key for each full block. Two sequences have equal keys if and only if everything up to the block's end is the
same. The keys play the role of the engine's chained block hashes.

`block_key(index, block_size)` is the definition. A content may have a second method, which names many consecutive
blocks at once and makes a prefix cache cheap:

`name_runs(block_size)` yields pairs (name, end) in order. The blocks from the end of the run before up to `end`
(exclusive) have that name. Block `index` of two sequences has the same content if and only if it has the same name in
both. The runs end where `block_key` is None; a content that covers the answer as well ends beyond the prompt, at any
large number. A run may be empty. A name is hashable, is not None, and begins with the kind of content, so that contents
of different kinds never share a name.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

__all__ = [
    "AdapterText", "ConversationText", "GroupPrefix", "HashedPieces", "HashedPrompt", "JoinedPrompt", "NameRuns",
    "PromptContent", "TokenPrompt", "name_runs", "named_runs",
]

NameRuns = Iterable[tuple[Hashable, int]]


class PromptContent(Protocol):
    """Content of a prompt's blocks, as far as blocks can be shared. May also have `name_runs`."""

    def block_key(self, index: int, block_size: int) -> object:
        """Return the key of full block `index`, or None where the block holds tokens of this sequence alone."""
        ...


def adapter_of(content: PromptContent | None) -> int:
    """Return the number of a content's LoRA adapter, 0 for none."""
    number: int = getattr(content, "adapter", 0)
    return number


def name_runs(content: PromptContent, block_size: int, ahead: int = 0) -> NameRuns:
    """Return the runs of a content or a sequence; one run per block if it has only `block_key`.

    ahead: Tokens after each block that its name covers as well: two blocks have one name if the texts are the same up
        to the last of them.
    """
    if ahead:   # a name of single tokens is one of the text up to there
        return [(name, max(0, end - ahead) // block_size) for name, end in name_runs(content, 1)]
    runs = getattr(content, "name_runs", None)
    found: NameRuns = block_by_block(content, block_size) if runs is None else runs(block_size)
    return found


def named_runs(content: PromptContent, block_size: int, ahead: int = 0) -> list[tuple[Hashable, int, int]]:
    """Return the runs of `name_runs` that are not empty as (name, first block, block after the last)."""
    runs, first = [], 0
    for name, end in name_runs(content, block_size, ahead):
        if end > first:
            runs.append((name, first, end))
            first = end
    return runs


def block_by_block(content: PromptContent, block_size: int) -> Iterator[tuple[Hashable, int]]:
    """Yield one run per block, up to the first block without a key."""
    end = 1
    while (key := content.block_key(end - 1, block_size)) is not None:
        yield key, end
        end += 1


class GroupPrefix:
    """A prompt whose first `num_tokens` tokens are the beginning of the text of `group`; the rest is its own."""

    __slots__ = ("group", "num_tokens")

    def __init__(self, group: int, num_tokens: int) -> None:
        self.group, self.num_tokens = group, num_tokens

    def block_key(self, index: int, block_size: int) -> object:
        """Return the key of full block `index`, or None where the block holds tokens of this sequence alone."""
        return ("group", self.group, index) if (index + 1) * block_size <= self.num_tokens else None

    def name_runs(self, block_size: int) -> NameRuns:
        return ((("group", self.group), self.num_tokens // block_size),)


class ConversationText:
    """The first `num_tokens` tokens of a conversation: a prompt, or a prompt and the answer to it.

    A conversation is one text that only grows, so a position identifies its token in every turn. The text begins with
    the first `shared_tokens` tokens of the text of `group` (a system prompt). A block that reaches beyond them belongs
    to the conversation alone.

    Attributes:
        awaited: Whether no other request reads this text before the one that writes its end has ended.
    """

    __slots__ = ("awaited", "group", "num_tokens", "session", "shared_tokens")

    def __init__(self, session: int, group: int, shared_tokens: int, num_tokens: int, *, awaited: bool = False) -> None:
        self.session, self.group = session, group
        self.shared_tokens, self.num_tokens = shared_tokens, num_tokens
        self.awaited = awaited

    def up_to(self, num_tokens: int, *, awaited: bool = False) -> ConversationText:
        """Return the first `num_tokens` tokens of the same conversation."""
        return ConversationText(self.session, self.group, self.shared_tokens, num_tokens, awaited=awaited)

    def block_key(self, index: int, block_size: int) -> object:
        """Return the key of full block `index`, or None where the text ends before the block does."""
        end = (index + 1) * block_size
        if end > self.num_tokens:
            return None
        return ("group", self.group, index) if end <= self.shared_tokens else ("conversation", self.session, index)

    def name_runs(self, block_size: int) -> NameRuns:
        shared = min(self.shared_tokens, self.num_tokens) // block_size
        return (("group", self.group), shared), (("conversation", self.session), self.num_tokens // block_size)


class AdapterText:
    """A content computed with a LoRA adapter, which changes keys and values: nothing is shared with other adapters.

    Args:
        adapter: The adapter's number, from 1.
        content: What prompts with the same adapter share; None for nothing.
    """

    __slots__ = ("adapter", "content")

    def __init__(self, adapter: int, content: PromptContent | None) -> None:
        self.adapter, self.content = adapter, content

    def up_to(self, num_tokens: int, *, awaited: bool = False) -> AdapterText:
        """Return the first `num_tokens` tokens of a conversation with the same adapter; another content is returned."""
        text = self.content
        return AdapterText(self.adapter, text.up_to(num_tokens)) if isinstance(text, ConversationText) else self

    def block_key(self, index: int, block_size: int) -> object:
        """Return the key of full block `index`, or None where the block holds tokens of this sequence alone."""
        key = None if self.content is None else self.content.block_key(index, block_size)
        return None if key is None else ("adapter", self.adapter, key)

    def name_runs(self, block_size: int) -> NameRuns:
        if self.content is None:
            return ()
        return [(("adapter", self.adapter, name), end) for name, end in name_runs(self.content, block_size)]


class HashedPrompt:
    """A prompt given as chained hashes of consecutive blocks of `unit` tokens, as in Mooncake's traces.

    A smaller block inside a hashed block has the same hash. A block beyond the last hash, or with tokens beyond the
    prompt's `num_tokens`, belongs to the sequence alone: answers to equal prompts differ.
    """

    __slots__ = ("ids", "num_tokens", "unit")

    def __init__(self, ids: tuple[int, ...], unit: int, num_tokens: int) -> None:
        self.ids, self.unit = ids, unit
        self.num_tokens = min(num_tokens, len(ids) * unit)

    def block_key(self, index: int, block_size: int) -> object:
        """Return the key of full block `index`, or None where the prompt ends before the block does."""
        end = (index + 1) * block_size
        return ("hash", self.ids[(end - 1) // self.unit], index) if end <= self.num_tokens else None

    def name_runs(self, block_size: int) -> NameRuns:
        last, unit, ids = self.num_tokens // block_size, self.unit, self.ids
        return [(("hash", number), end // block_size if end < self.num_tokens else last)
                for number, end in zip(ids, range(unit, unit * len(ids) + 1, unit), strict=True)]


class HashedPieces:
    """A prompt given as chained hashes of consecutive pieces of unequal lengths, as in RAGPulse's trace.

    Piece i covers the tokens from `ends[i - 1]` (0 for the first) to `ends[i]`, exclusive. A block belongs to the piece
    whose end is the first at or beyond the block's end, so a block across two pieces has the later one's hash: hashes
    are chained, and that hash stands for all text before it too. With pieces of equal lengths, keys and names are those
    of `HashedPrompt`. A block beyond the last piece, or with tokens beyond the prompt's `num_tokens`, belongs to the
    sequence alone.
    """

    __slots__ = ("_runs", "ends", "ids", "num_tokens")

    def __init__(self, ids: tuple[int, ...], ends: tuple[int, ...], num_tokens: int) -> None:
        self.ids, self.ends = ids, ends
        self.num_tokens = min(num_tokens, ends[-1]) if ends else 0
        self._runs: dict[int, list[tuple[Hashable, int]]] = {}   # by block size; several requests may share a prompt

    def block_key(self, index: int, block_size: int) -> object:
        """Return the key of full block `index`, or None where the prompt ends before the block does."""
        end = (index + 1) * block_size
        return ("hash", self.ids[bisect_left(self.ends, end)], index) if end <= self.num_tokens else None

    def name_runs(self, block_size: int) -> NameRuns:
        runs = self._runs.get(block_size)
        if runs is None:
            tokens = self.num_tokens
            runs = self._runs[block_size] = [(("hash", number), min(end, tokens) // block_size)
                                             for number, end in zip(self.ids, self.ends, strict=True)]
        return runs


class JoinedPrompt:
    """A hashed prompt in which ids that always follow one another have one name (`hermes.core.joined_hashes`).

    Its keys are those of the prompt as it was hashed.

    Args:
        names: The first id of each piece.
        ends: The end of each piece in tokens; the last may lie beyond the prompt's end.
        num_tokens: Tokens of the prompt.
        make: Function that returns the prompt with a name for each id; called once, if at all.
    """

    __slots__ = ("_ends", "_make", "_names", "_original", "_runs", "num_tokens")

    def __init__(
        self, names: Sequence[int], ends: Sequence[int], num_tokens: int,
        make: Callable[[], HashedPieces | HashedPrompt],
    ) -> None:
        self._names, self._ends, self._make = names, ends, make
        self.num_tokens = min(num_tokens, ends[-1]) if ends else 0
        self._original: HashedPieces | HashedPrompt | None = None
        self._runs: dict[int, list[tuple[Hashable, int]]] = {}   # by block size; several requests may share a prompt

    @property
    def original(self) -> HashedPieces | HashedPrompt:
        """The prompt with a name for each id."""
        found = self._original
        if found is None:
            found = self._original = self._make()
        return found

    def block_key(self, index: int, block_size: int) -> object:
        """Return the key of full block `index`, or None where the prompt ends before the block does."""
        return (self._original or self.original).block_key(index, block_size)

    def name_runs(self, block_size: int) -> NameRuns:
        runs = self._runs.get(block_size)
        if runs is None:
            tokens = self.num_tokens
            runs = self._runs[block_size] = [(("hash", number), (end if end < tokens else tokens) // block_size)
                                             for number, end in zip(self._names, self._ends, strict=True)]
        return runs


class TokenPrompt:
    """A prompt given as tokens: a block's key is the SHA-256 of its tokens, chained with the block before."""

    __slots__ = ("_chains", "tokens")

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = np.asarray(tokens, dtype="<i8")
        self._chains: dict[int, list[bytes]] = {}

    def block_key(self, index: int, block_size: int) -> object:
        """Return the key of full block `index`, or None where the prompt ends before the block does."""
        if (index + 1) * block_size > len(self.tokens):
            return None
        chain = self._chains.setdefault(block_size, [])
        while len(chain) <= index:
            start = len(chain) * block_size
            text = self.tokens[start:start + block_size].tobytes()
            chain.append(hashlib.sha256((chain[-1] if chain else b"") + text).digest())
        return "sha256", chain[index]

    def name_runs(self, block_size: int) -> NameRuns:
        return block_by_block(self, block_size)   # another prompt may diverge at every block
