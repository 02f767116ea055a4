"""Prompts as routers hash them, and an index of the prompts that a router has sent to each client.

A router cuts a prompt into blocks of its own size, whatever the engine's is. Blocks are kept as ranges of names
(`hermes.core.block_hashes.name_runs`): block `index` of a name is one hash. All prompts with a name have its blocks
from the same block on, so that a prompt sent again renews the beginning of what was known of each of its names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from hermes.core.block_hashes import name_runs
from hermes.core.stage import Stage

__all__ = ["Hashed", "Prompts", "SentPrefixes"]

Runs = list[tuple[Hashable, int, int]]


class Hashed(NamedTuple):
    """A prompt in blocks.

    Attributes:
        runs: Name, first block and block after the last, in order, of what other prompts may share.
        own: Blocks behind them, which no other prompt has.
        blocks: All blocks.
        tokens: Tokens of the prompt.
    """

    runs: Runs
    own: int
    blocks: int
    tokens: int


class Prompts:
    """Cuts prompts into blocks of `block_tokens`.

    Args:
        partial: Whether the last block counts when the prompt does not fill it. Its hash is that of whole prompts: two
            are equal only where the prompts are.
        most_tokens: Tokens of a prompt that are hashed; None for all.
    """

    def __init__(self, block_tokens: int, *, partial: bool = False, most_tokens: int | None = None) -> None:
        self.block_tokens, self.partial = block_tokens, partial
        self._most = None if most_tokens is None else most_tokens // block_tokens

    def hashed(self, stage: Stage) -> Hashed:
        """Return the prompt of a stage in blocks."""
        tokens, size = stage.prompt_tokens, self.block_tokens
        full, rest = divmod(tokens, size)
        ends_partial = bool(rest) and self.partial
        blocks = full + ends_partial
        if self._most is not None and blocks > self._most:
            blocks = self._most
            full, ends_partial = min(full, blocks), False
        runs: Runs = []
        known, content = 0, stage.content
        if content is not None:
            for name, end in name_runs(content, size):
                if end > full:
                    end = full
                if end > known:
                    runs.append((name, known, end))
                    known = end
                if known == full:
                    break
            if ends_partial and known == full:
                for name, end in name_runs(content, 1):
                    if end >= tokens:
                        runs.append((("end", name, tokens), 0, 1))
                        known += 1
                        break
        return Hashed(runs, blocks - known, blocks, tokens)

    def tokens_of(self, blocks: int, prompt: Hashed) -> int:
        """Return the tokens in the first blocks of a prompt."""
        return min(blocks * self.block_tokens, prompt.tokens)


class _Range:
    """Blocks `lo` to `hi` (exclusive) of a name, None for blocks that only one prompt has; sent last at `sent_ns`."""

    __slots__ = ("hi", "lo", "name", "sent_ns")

    def __init__(self, name: Hashable, lo: int, hi: int, sent_ns: int) -> None:
        self.name, self.lo, self.hi, self.sent_ns = name, lo, hi, sent_ns


class _Held:
    """What one client is believed to hold: ranges, the one sent longest ago first."""

    __slots__ = ("blocks", "capacity", "ranges")

    def __init__(self, capacity: int | None) -> None:
        self.capacity, self.blocks = capacity, 0
        self.ranges: OrderedDict[_Range, None] = OrderedDict()


class SentPrefixes:
    """The prompts that were sent to each of some clients, which are numbered by place.

    Args:
        capacities: Most blocks of each client, None for no limit. Beyond it the blocks sent longest ago are forgotten.
        now_ns: Returns the simulated time.
        ttl_ns: Time after which a block that was not sent again is forgotten; None for never.
        tail_first: Of a prompt, forget the last block first, as a tree loses its leaves; otherwise the first block
            first, as an LRU of hashes does that were added in order.
    """

    def __init__(self, capacities: Sequence[int | None], now_ns: Callable[[], int], *, ttl_ns: int | None = None,
                 tail_first: bool = False) -> None:
        self._now_ns, self._ttl_ns, self._tail_first = now_ns, ttl_ns, tail_first
        self._held = [_Held(capacity) for capacity in capacities]
        self._index: dict[Hashable, dict[int, list[_Range]]] = {}   # ranges in order of blocks

    def blocks(self, place: int) -> int:
        """Return the number of blocks of a client, those included whose time is over."""
        return self._held[place].blocks

    # -- lookups -------------------------------------------------------------------------------------------------

    def matches(self, prompt: Hashed) -> dict[int, int]:
        """Return the blocks of a prompt that clients hold from its beginning on, by place; none for clients that do
        not hold the first one."""
        found: dict[int, int] = {}
        index, before = self._index, 0
        oldest = self._oldest()
        for name, first, end in prompt.runs:
            places = index.get(name)
            if places is None:
                break
            whole = False
            for place, ranges in places.items():
                if before and found.get(place) != before:
                    continue
                to = first
                for held in ranges:
                    if held.lo > to or held.sent_ns <= oldest:
                        break
                    to = held.hi
                if to > first:
                    found[place] = before + min(to, end) - first
                    whole = whole or to >= end
            if not whole:
                break
            before += end - first
        return found

    def matches_with_gaps(self, prompt: Hashed) -> dict[int, int]:
        """Return how many of a prompt's blocks clients hold up to the first block that *no* client holds, by place:
        also where a client has lost the ones before."""
        found: dict[int, int] = {}
        oldest = self._oldest()
        for name, first, end in prompt.runs:
            places = self._index.get(name)
            if places is None:
                break
            reach = self._reach(places, first, end, oldest)
            for place, ranges in places.items():
                blocks = 0
                for held in ranges:
                    if held.lo < reach and held.sent_ns > oldest:
                        blocks += min(held.hi, reach) - held.lo
                if blocks:
                    found[place] = found.get(place, 0) + blocks
            if reach < end:
                break
        return found

    @staticmethod
    def _reach(places: dict[int, list[_Range]], first: int, end: int, oldest: int) -> int:
        """Return the first block of a name that no client holds, at most `end`."""
        spans = []
        for ranges in places.values():
            for held in ranges:
                if held.sent_ns > oldest:
                    if held.lo <= first and held.hi >= end:
                        return end
                    spans.append((held.lo, held.hi))
        reach = first
        for lo, hi in sorted(spans):
            if lo > reach:
                break
            if hi > reach:
                reach = hi
        return min(reach, end)

    def _oldest(self) -> int:
        """Return the time such that blocks sent then or before are forgotten."""
        return -1 if self._ttl_ns is None else self._now_ns() - self._ttl_ns

    # -- changes -------------------------------------------------------------------------------------------------

    def sent(self, place: int, prompt: Hashed) -> None:
        """Note that a prompt is sent to a client now."""
        held, now = self._held[place], self._now_ns()
        if self._tail_first:
            if prompt.own:
                self._add_own(held, prompt.own, now)
            for run in reversed(prompt.runs):
                self._add(held, place, *run, now)
        else:
            for run in prompt.runs:
                self._add(held, place, *run, now)
            if prompt.own:
                self._add_own(held, prompt.own, now)
        if self._ttl_ns is not None:
            oldest = now - self._ttl_ns
            while held.ranges and (old := next(iter(held.ranges))).sent_ns <= oldest:
                self._drop(held, place, old)
        if held.capacity is not None and held.blocks > held.capacity:
            self._shrink(held, place, held.blocks - held.capacity)

    @staticmethod
    def _add_own(held: _Held, blocks: int, now: int) -> None:
        held.ranges[_Range(None, 0, blocks, now)] = None
        held.blocks += blocks

    def _add(self, held: _Held, place: int, name: Hashable, first: int, end: int, now: int) -> None:
        places = self._index.get(name)
        if places is None:
            places = self._index[name] = {}
        known = places.get(place, ())
        if len(known) == 1 and known[0].hi <= end:   # a prompt that is as long, or goes on
            only = known[0]
            held.blocks += end - first - (only.hi - only.lo)
            only.lo, only.hi, only.sent_ns = first, end, now
            held.ranges.move_to_end(only)
            return
        fresh = _Range(name, first, end, now)
        kept = [fresh]
        for old in known:
            if old.hi <= end:
                held.blocks -= old.hi - old.lo
                del held.ranges[old]
            else:
                if old.lo < end:
                    held.blocks -= end - old.lo
                    old.lo = end
                kept.append(old)
        places[place] = kept
        held.ranges[fresh] = None
        held.blocks += end - first

    def _shrink(self, held: _Held, place: int, blocks: int) -> None:
        """Forget the blocks that were sent longest ago."""
        while blocks > 0:
            old = next(iter(held.ranges))
            size = old.hi - old.lo
            if size > blocks:
                if self._tail_first:
                    old.hi -= blocks
                else:
                    old.lo += blocks
                held.blocks -= blocks
                return
            self._drop(held, place, old)
            blocks -= size

    def _drop(self, held: _Held, place: int, old: _Range) -> None:
        del held.ranges[old]
        held.blocks -= old.hi - old.lo
        if old.name is not None:
            places = self._index[old.name]
            places[place].remove(old)
            if not places[place]:
                del places[place]
                if not places:
                    del self._index[old.name]

    def trim(self, most: int) -> None:
        """Forget the blocks sent longest ago of each client that has more than `most`."""
        for place, held in enumerate(self._held):
            if held.blocks > most:
                self._shrink(held, place, held.blocks - most)

    def forget(self, place: int) -> None:
        """Forget all that was sent to a client."""
        held = self._held[place]
        while held.ranges:
            self._drop(held, place, next(iter(held.ranges)))
