"""METIS's decision: prune the configurations by a query's profile, then take the best fit in free memory.

    space = prune(profile)
    choice = choose(space, lengths, reading, joint=profile.joint)

This file needs the standard library only: a serving system can use it with a real reading of its free KV memory. The
rules are those of METIS (Ray et al., SOSP '25), section by section of its pipeline. Where the paper leaves a rule open,
this module defines it:

- **Calls.** With c chunk, q question, o answer and s summary tokens, k chunks: map_rerank is k calls of c+q -> o; stuff
  one of k*c+q -> o; map_reduce k of c+q -> s, then one of k*s+q -> o.
- **Need** of a configuration: KV of the calls that the engine would have in memory at once, each rounded up to blocks.
  Of k mappers these are fewer than k if slots or the token budget of a step are short (`Reading.at_once`); map_reduce
  needs the larger of its mappers and its last call.
- **Fits**: the need plus the buffer of 2% is free, and a slot is free.
- **Best fit**: of the configurations that fit whole, the one with the highest need.
- **Part of the mappers.** Only if none fits whole, a map_* configuration may start with the mappers that fit: at least
  two, and at least the share `partial` (a half) of those it would have at once; its last call must fit. Its need is
  that of these mappers. (A single mapper would nearly always fit and make the rule meaningless.)
- **Ties** in need: fewer chunks, then the method named first in `METHODS`, then longer summaries.
- **Nothing fits**: with joint reasoning stuff, else map_rerank, with as many chunks as fit. If not even one fits, the
  query queues in any case: with one chunk (`full="one"`), or with the least need of the space (`full="space"`).
- **Low confidence**: the union of the spaces of the last 10 confident queries.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "BUFFER", "MAX_CHUNKS", "METHODS", "TOKENS_PER_WORD", "Box", "Choice", "Configuration", "ConfigurationError",
    "Lengths", "Profile", "Reading", "Space", "SpaceHistory", "choose", "configurations", "prune", "summary_tokens",
]

METHODS = ("map_rerank", "stuff", "map_reduce")
MAX_CHUNKS, MAX_WORDS = 35, 300
BUFFER = 0.02
TOKENS_PER_WORD = 4 / 3
"""Tokens per word of English text, a common rule of thumb."""
CONFIDENT = 0.90


@dataclass(frozen=True)
class Profile:
    """Profile of a query. Raises `ValueError` for values out of range.

    Attributes:
        pieces: Pieces of information that it needs, 1 to 10.
        summary_words: Shortest and longest summary of a chunk, within 30 to 200.
        confidence: The profiler's own, 0 to 1.
    """

    joint: bool
    complex: bool
    pieces: int
    summary_words: tuple[int, int]
    confidence: float = 1.0

    def __post_init__(self) -> None:
        low, high = self.summary_words
        if not 1 <= self.pieces <= 10:
            raise ValueError(f"pieces: expected 1 to 10, found {self.pieces}")
        if not 30 <= low <= high <= 200:
            raise ValueError(f"summary_words: expected a range within 30 to 200, found {low} to {high}")
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence: expected 0 to 1, found {self.confidence}")


class ConfigurationError(ValueError):
    """A configuration that METIS does not have."""


@dataclass(frozen=True)
class Configuration:
    """One setting of the knobs. summary_words: of each chunk, for map_reduce; else 0."""

    method: str
    num_chunks: int
    summary_words: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigurationError(f"method: expected one of {', '.join(METHODS)}, found {self.method}")
        if int(self.num_chunks) != self.num_chunks or not 1 <= self.num_chunks <= MAX_CHUNKS:
            raise ConfigurationError(f"num_chunks: expected an integer from 1 to {MAX_CHUNKS}, found {self.num_chunks}")
        if not (1 <= self.summary_words <= MAX_WORDS if self.method == "map_reduce" else self.summary_words == 0):
            raise ConfigurationError(f"summary_words: expected 1 to {MAX_WORDS} for map_reduce, 0 for the others, "
                             f"found {self.summary_words} for {self.method}")

    def __str__(self) -> str:
        words = f", {self.summary_words} words" if self.summary_words else ""
        return f"{self.method}, {self.num_chunks} chunks{words}"


@dataclass(frozen=True)
class Box:
    """All configurations of one method within ranges, both ends included."""

    method: str
    chunks: tuple[int, int]
    words: tuple[int, int] = (0, 0)

    def __contains__(self, item: Configuration) -> bool:
        return (item.method == self.method and self.chunks[0] <= item.num_chunks <= self.chunks[1]
                and self.words[0] <= item.summary_words <= self.words[1])


Space = tuple[Box, ...]


def prune(profile: Profile) -> Space:
    """Return the configurations that the profile leaves.

    - no joint reasoning -> map_rerank; joint, low complexity -> stuff; joint, high complexity -> stuff or map_reduce
    - n to 3n chunks for n pieces
    - summaries within the profile's range
    """
    chunks = profile.pieces, min(3 * profile.pieces, MAX_CHUNKS)
    if not profile.joint:
        return (Box("map_rerank", chunks),)
    if not profile.complex:
        return (Box("stuff", chunks),)
    return Box("stuff", chunks), Box("map_reduce", chunks, profile.summary_words)


def configurations(space: Space) -> Iterator[Configuration]:
    """Yield every configuration of a space once."""
    seen = set()
    for box in space:
        for chunks in range(box.chunks[0], box.chunks[1] + 1):
            for words in range(box.words[0], box.words[1] + 1):
                one = Configuration(box.method, chunks, words)
                if one not in seen:
                    seen.add(one)
                    yield one


class SpaceHistory:
    """The spaces of the last confident queries, for queries whose profile is not trusted."""

    def __init__(self, length: int = 10, threshold: float = CONFIDENT) -> None:
        self.threshold = threshold
        self._spaces: deque[Space] = deque(maxlen=length)

    def space(self, profile: Profile) -> tuple[Space, bool]:
        """Return (the space of a query, whether its own profile was trusted). Before any confident query: its own
        space."""
        own = prune(profile)
        if profile.confidence >= self.threshold:
            self._spaces.append(own)
            return own, True
        if not self._spaces:
            return own, False
        return tuple(dict.fromkeys(box for space in self._spaces for box in space)), False


def summary_tokens(words: int) -> int:
    """Return the tokens of a summary of so many words."""
    return math.ceil(words * TOKENS_PER_WORD)


@dataclass(frozen=True)
class Lengths:
    """Tokens of a chunk, of the question, and of the longest answer expected."""

    chunk: int
    question: int
    answer: int

    def mapper(self, config: Configuration) -> tuple[int, int]:
        """Return (prompt, output) tokens of one mapper; (0, 0) for stuff."""
        if config.method == "stuff":
            return 0, 0
        words = config.summary_words
        return self.chunk + self.question, summary_tokens(words) if words else self.answer

    def last(self, config: Configuration) -> tuple[int, int]:
        """Return (prompt, output) tokens of the call that answers; (0, 0) for map_rerank, whose mappers answer."""
        if config.method == "map_rerank":
            return 0, 0
        each = self.chunk if config.method == "stuff" else summary_tokens(config.summary_words)
        return config.num_chunks * each + self.question, self.answer


@dataclass(frozen=True)
class Reading:
    """State of the serving engine at one moment.

    Attributes:
        free_bytes: Free KV memory.
        bytes_per_token: KV of a token, all layers.
        block_tokens: Tokens of a KV block.
        free_seqs: Sequences that it could still run.
        batched_tokens: Most tokens of one step.
    """

    free_bytes: float
    bytes_per_token: float
    block_tokens: int = 16
    free_seqs: int = 256
    batched_tokens: int = 2048

    def call_bytes(self, prompt: int, output: int) -> float:
        """Return the KV bytes of one call, in whole blocks."""
        return -(-(prompt + output) // self.block_tokens) * self.block_tokens * self.bytes_per_token

    def holds(self, need_bytes: float) -> bool:
        """Whether this many bytes are free, with the buffer, and a slot."""
        return self.free_seqs > 0 and need_bytes * (1 + BUFFER) <= self.free_bytes

    def at_once(self, count: int, prompt: int, output: int) -> int:
        """Return how many of `count` equal calls the engine would have in memory at once at most, memory aside.

        A call stays for the steps of its prompt, one more if it begins in the middle of a step, and one for each
        further token. Meanwhile each step takes in `batched_tokens` tokens of prompts.
        """
        steps = -(-prompt // self.batched_tokens) + output
        taken_in = -(-steps * self.batched_tokens // prompt) + 1
        return max(0, min(count, self.free_seqs, taken_in))

    def need(self, config: Configuration, lengths: Lengths) -> tuple[int, float]:
        """Return (calls at once, bytes) of a configuration that starts whole."""
        last = self.call_bytes(*lengths.last(config))
        if config.method == "stuff":
            return 1, last
        prompt, output = lengths.mapper(config)
        calls = self.at_once(config.num_chunks, prompt, output)
        return calls, max(calls * self.call_bytes(prompt, output), last)


@dataclass(frozen=True)
class Choice:
    """A decision.

    Attributes:
        how: "fits", "partial" (fewer mappers at once than it could have), "fallback" (outside the space, fits) or
            "queued" (not even one chunk fits).
        at_once: Calls in memory at once.
        need_bytes: Their need, without the buffer.
    """

    configuration: Configuration
    how: str
    at_once: int
    need_bytes: float


def choose(space: Space, lengths: Lengths, reading: Reading, *, joint: bool, partial: float = 0.5,
           full: str = "one") -> Choice:
    """Return the best fit (see the module's definitions). Raises `ValueError` for an empty space or an unknown `full`.

    Args:
        partial: Share of its mappers that a map_* configuration may start with; 1 for all or nothing.
        full: Configuration to queue if not even one chunk fits: `one` chunk, or the least of the `space`.
    """
    if not space:
        raise ValueError("space: expected at least one method, found none")
    if full not in ("one", "space"):
        raise ValueError(f"full: expected one or space, found {full}")
    whole = [choice for box in space for choice in _whole(box, lengths, reading)]
    if whole:
        return max(whole, key=_rank)
    parts = [choice for box in space for choice in _parts(box, lengths, reading, partial)] if partial < 1 else []
    if parts:
        return max(parts, key=_rank)
    outside = _outside(space, lengths, reading, joint=joint)
    return _least(space, lengths, reading) if outside.how == "queued" and full == "space" else outside


def _rank(choice: Choice) -> tuple[float, int, int, int]:
    config = choice.configuration
    return choice.need_bytes, -config.num_chunks, -METHODS.index(config.method), config.summary_words


def _whole(box: Box, lengths: Lengths, reading: Reading) -> Iterator[Choice]:
    """For each number of chunks, the configuration with the longest summaries that fits: need grows with their
    length."""
    low, high = box.words
    for chunks in range(box.chunks[0], box.chunks[1] + 1):
        def fits(words: int, chunks: int = chunks) -> bool:
            return reading.holds(reading.need(Configuration(box.method, chunks, words), lengths)[1])

        if fits(low):
            best, above = low, high + 1
            while above - best > 1:
                middle = (best + above) // 2
                best, above = (middle, above) if fits(middle) else (best, middle)
            config = Configuration(box.method, chunks, best)
            yield Choice(config, "fits", *reading.need(config, lengths))


def _parts(box: Box, lengths: Lengths, reading: Reading, share: float) -> Iterator[Choice]:
    """Return configurations that may start with some of their mappers. The mappers that fit do not depend on the number
    of chunks, so the fewest chunks win every tie, and more chunks need not be tried."""
    if box.method == "stuff" or not reading.free_seqs:
        return
    for words in range(box.words[0], box.words[1] + 1):
        config = Configuration(box.method, box.chunks[0], words)
        each = reading.call_bytes(*lengths.mapper(config))
        wanted = reading.at_once(config.num_chunks, *lengths.mapper(config))
        calls = min(wanted, int(reading.free_bytes / (each * (1 + BUFFER))))
        last = reading.call_bytes(*lengths.last(config))
        if calls >= max(2, math.ceil(share * wanted)) and reading.holds(max(last, calls * each)):
            yield Choice(config, "partial", calls, calls * each)


def _outside(space: Space, lengths: Lengths, reading: Reading, *, joint: bool) -> Choice:
    """Yield as many chunks as fit, of the method without summaries."""
    method = "stuff" if joint else "map_rerank"
    for chunks in range(max(box.chunks[1] for box in space), 0, -1):
        config = Configuration(method, chunks)
        calls, need = reading.need(config, lengths)
        if reading.holds(need):
            return Choice(config, "fallback", calls, need)
    config = Configuration(method, 1)
    return Choice(config, "queued", *reading.need(config, lengths))


def _least(space: Space, lengths: Lengths, reading: Reading) -> Choice:
    """Return the configuration of the space that needs least: need grows with chunks and with summaries."""
    configs = [Configuration(box.method, box.chunks[0], box.words[0]) for box in space]
    choices = [Choice(config, "queued", *reading.need(config, lengths)) for config in configs]
    return min(choices, key=_rank)
