"""Joined hashes: names for the ids of hashed prompts that always follow one another.

A trace with block hashes gives an id to each small block of a prompt, and most ids have one neighbour everywhere: a
text of 500 tokens is 31 blocks of 16, which occur together in every prompt. A prefix cache in segments
(`hermes.memory.prefix`) costs a few operations for each name in a prompt, so that ids under one name are faster and
take less memory, with the same results: a name with an index identifies a block just as the id does.

`join_hashes` finds the *pieces* of the prompts of a simulation. Id b goes on the piece of id a if, in all prompts,

- a is followed by b and never ends a prompt, and b is preceded by a;
- a begins at one position, in tokens, and so does b. Chained hashes do so anyway. In other data an id may occur at two
  places, and two blocks with the same index in one piece could then be different ids.

A piece may end, at its last id, before that id's block is full. All tables of a simulation are joined together, because
their prompts may meet in one cache. What needs the ids themselves (KV tiers, caches by block, live servers) gets them
from `JoinedPrompt.original`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise

import numpy as np

from hermes.arrays import BoolArray, IntArray
from hermes.core.block_hashes import HashedPieces, HashedPrompt, JoinedPrompt, PromptContent
from hermes.core.int_lists import Integers, IntLists, narrowed
from hermes.core.request_table import RequestTable

__all__ = ["JoinedHashes", "hashed_prompt", "join_hashes"]

_CHUNK = 1 << 15   # ids at a time
_UNSEEN = -1
_LOW = 32          # bits of a start in a place


def hashed_prompt(table: RequestTable, row: int) -> HashedPieces | HashedPrompt:
    """Return the prompt of a row of a table with `hash_ids`, with a name for each id."""
    assert table.hash_ids is not None
    ids, tokens = table.hash_ids[row], int(table.prompt_tokens[row])
    if table.hash_tokens is None:
        return HashedPrompt(ids, table.hash_block_tokens, tokens)
    return HashedPieces(ids, tuple(accumulate(table.hash_tokens[row])), tokens)


class JoinedHashes:
    """The pieces of the prompts of one table.

    Args:
        names: The first id of each piece of each row.
        ends: The end of each piece in tokens, in the places of `names.values`.
    """

    def __init__(self, names: IntLists, ends: Integers) -> None:
        self.names, self.ends = names, ends

    def contents(self, table: RequestTable, part: slice) -> list[PromptContent | None]:
        """Return the prompts of these rows. Equal prompts share one object."""
        names, ends = self.names.values, self.ends
        made: dict[tuple[int, int, int], PromptContent] = {}
        found: list[PromptContent | None] = []
        columns = (range(len(table))[part], self.names.begins[part].tolist(), self.names.ends[part].tolist(),
                   table.prompt_tokens[part].tolist())
        for row, begin, end, tokens in zip(*columns, strict=True):
            content = made.get((begin, end, tokens))
            if content is None:
                content = made[begin, end, tokens] = JoinedPrompt(
                    names[begin:end].tolist(), ends[begin:end].tolist(), tokens, partial(hashed_prompt, table, row))
            found.append(content)
        return found


def join_hashes(tables: Sequence[RequestTable]) -> None:
    """Set `joined` of the tables with `hash_ids`, whose prompts may meet in one cache."""
    try:
        texts = [_Texts(table) for table in tables if table.hash_ids is not None]
    except (OverflowError, TypeError, ValueError):
        return   # a plug-in's ids that are no 64-bit integers: each has a name of its own
    pieces = _Pieces(texts)
    for text in texts:
        text.table.joined = pieces.joined(text)


class _Texts:
    """The distinct hashed prompts of one table.

    Attributes:
        ids, lengths: Their ids and, for pieces of unequal lengths, the tokens of each.
        number: The distinct prompt of each row of the table.
        dense: The ids in a numbering without large gaps, in the places of `ids.values`.
    """

    def __init__(self, table: RequestTable) -> None:
        self.table = table
        assert table.hash_ids is not None
        ids = table.hash_ids = IntLists.of(table.hash_ids)
        lengths = None
        if table.hash_tokens is not None:
            lengths = table.hash_tokens = IntLists.of(table.hash_tokens)
            if not np.array_equal(lengths.ends - lengths.begins, ids.ends - ids.begins):
                raise ValueError("a row has other numbers of hash_ids than of hash_tokens")
        columns = (ids.begins, ids.ends) if lengths is None else (ids.begins, ids.ends, lengths.begins)
        rows, self.number = _distinct(columns)
        self.ids = ids.take(rows)
        self.lengths = None if lengths is None else lengths.take(rows)
        self.sizes = self.ids.ends - self.ids.begins
        self.dense = ids.values
        longest = table.hash_block_tokens * int(self.sizes.max(initial=0)) if lengths is None else int(
            lengths.sums().max(initial=0))
        if longest >= 1 << _LOW:
            raise OverflowError("a prompt of more than 2**32 tokens")

    def compact(self) -> None:
        """Drop the ids of no prompt."""
        flat = _gathered(self.ids.values, self.ids.begins, self.sizes)
        ends = np.cumsum(self.sizes)
        self.ids = IntLists(flat, ends - self.sizes, ends)
        self.dense = flat

    def chunks(self) -> Iterator[_Chunk]:
        """Yield the prompts that have ids, many at a time."""
        filled = np.flatnonzero(self.sizes)
        sizes, begins = self.sizes[filled], self.ids.begins[filled]
        totals = np.cumsum(sizes)
        last = int(totals[-1]) if len(totals) else 0
        bounds = np.searchsorted(totals, np.arange(_CHUNK, last, _CHUNK), side="right")
        for low, high in pairwise(np.unique([0, *bounds.tolist(), len(totals)]).tolist()):
            part = slice(low, high)
            tokens: Integers | int = self.table.hash_block_tokens
            if self.lengths is not None:
                tokens = _gathered(self.lengths.values, self.lengths.begins[filled[part]], sizes[part])
            ids = _gathered(self.ids.values, begins[part], sizes[part])
            dense = ids if self.dense is self.ids.values else _gathered(self.dense, begins[part], sizes[part])
            yield _Chunk(ids, dense.astype(np.int64, copy=False), sizes[part], tokens)


class _Chunk:
    """The ids of some prompts, one prompt after the other.

    Attributes:
        ids, dense: The ids as they are, and as dense ones.
        sizes, firsts: Of each prompt, the number of its ids and the place of the first.
        tokens: Tokens of each id, or of all.
    """

    def __init__(self, ids: Integers, dense: IntArray, sizes: IntArray, tokens: Integers | int) -> None:
        self.ids, self.dense, self.sizes, self.tokens = ids, dense, sizes, tokens
        self.firsts = np.cumsum(sizes) - sizes

    def starts(self) -> IntArray:
        """Return the start of each id in its prompt, in tokens."""
        if isinstance(self.tokens, int):
            return (np.arange(len(self.ids)) - np.repeat(self.firsts, self.sizes)) * self.tokens
        starts = np.cumsum(self.tokens, dtype=np.int64)
        starts -= self.tokens
        starts -= np.repeat(starts[self.firsts], self.sizes)
        return starts

    def ends(self) -> IntArray:
        """Return the end of each id in its prompt, in tokens."""
        return self.starts() + self.tokens


class _Pieces:
    """Beginnings of the pieces: `begins[i]` says whether the dense id i is the first of its piece."""

    def __init__(self, texts: Sequence[_Texts]) -> None:
        count = _number(texts)
        self.begins = np.zeros(count, dtype=np.bool_)
        is_last = np.zeros(count, dtype=np.bool_)   # of its piece
        # the one place of each id: 1 + the id before it (0 for none), and its start in tokens
        place = np.full(count, _UNSEEN, dtype=np.int64)
        for text in texts:
            for chunk in text.chunks():
                self._enter(chunk, place, is_last)
        is_last[_before(place[self.begins])] = True

        parts = [slice(low, low + _CHUNK) for low in range(0, count, _CHUNK)]
        followed = np.zeros(count, dtype=np.bool_)
        for part in parts:
            before = np.sort(self._pairs(place, part)[1])
            is_last[before[1:][before[1:] == before[:-1]]] = True   # by two of this part
            is_last[before[followed.take(before)]] = True           # by one of an earlier part, too
            followed[before] = True
        for part in parts:
            ids, before = self._pairs(place, part)
            self.begins[ids] = is_last[before]

    def _enter(self, chunk: _Chunk, place: IntArray, is_last: BoolArray) -> None:
        """Note the places of the ids of some prompts; ids with two places begin a piece."""
        ids = chunk.dense
        here = np.empty(len(ids), dtype=np.int64)
        here[1:] = ids[:-1]
        here += 1
        here[chunk.firsts] = 0
        here <<= _LOW
        here |= chunk.starts()
        new = place.take(ids) == _UNSEEN
        if new.all():
            place[ids] = here
        else:
            place[ids[new]] = here[new]
        moved = place.take(ids) != here
        if moved.any():
            self.begins[ids[moved]] = True
            is_last[_before(here[moved])] = True
        self.begins[ids[chunk.firsts]] = True
        is_last[ids[chunk.firsts + chunk.sizes - 1]] = True

    def _pairs(self, place: IntArray, part: slice) -> tuple[IntArray, IntArray]:
        """Return the ids of `part` that may go on a piece, and the id before each."""
        ids = part.start + np.flatnonzero((place[part] != _UNSEEN) & ~self.begins[part])
        return ids, (place[ids] >> _LOW) - 1

    def joined(self, text: _Texts) -> JoinedHashes:
        """Return the pieces of the prompts of one table."""
        names: list[Integers] = [np.zeros(0, dtype=np.int64)]
        ends: list[Integers] = [np.zeros(0, dtype=np.int64)]
        counts: list[IntArray] = [np.zeros(0, dtype=np.int64)]
        for chunk in text.chunks():
            begins = self.begins.take(chunk.dense)
            heads = np.flatnonzero(begins)
            names.append(chunk.ids[heads])
            ends.append(chunk.ends()[np.append(heads[1:], len(begins)) - 1])
            counts.append(np.add.reduceat(begins, chunk.firsts, dtype=np.int64))
        sizes = np.zeros(len(text.sizes), dtype=np.int64)
        sizes[text.sizes > 0] = np.concatenate(counts)
        stops = np.cumsum(sizes)
        column = IntLists(narrowed(np.concatenate(names)), stops - sizes, stops).take(text.number)
        return JoinedHashes(column, narrowed(np.concatenate(ends)))


def _before(places: IntArray) -> IntArray:
    """Return the ids before those with these places."""
    ids = (places >> _LOW) - 1
    return ids[ids >= 0]


def _number(texts: Sequence[_Texts]) -> int:
    """Set `dense` of all prompts, if their ids have large gaps; return the number of dense ids."""
    total = sum(int(text.sizes.sum()) for text in texts)
    used = [text.ids.values for text in texts if text.ids.values.size]
    low, high = (min(int(v.min()) for v in used), max(int(v.max()) for v in used)) if used else (0, -1)
    if low >= 0 and high < min(2 * total + 1024, 2**31):
        return high + 1
    for text in texts:
        text.compact()
    known, dense = np.unique(np.concatenate([text.dense for text in texts]), return_inverse=True)
    for text, part in zip(texts, np.split(dense, np.cumsum([len(text.dense) for text in texts])[:-1]), strict=True):
        text.dense = part
    return len(known)


def _gathered(values: Integers, begins: IntArray, sizes: IntArray) -> Integers:
    """Return `sizes[i]` values from `begins[i]` on, one row after the other."""
    if len(begins) and np.array_equal(begins[1:], begins[:-1] + sizes[:-1]):   # as they stand
        return values[begins[0]:begins[-1] + sizes[-1]]
    return values[np.repeat(begins - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))]


def _distinct(columns: tuple[IntArray, ...]) -> tuple[IntArray, IntArray]:
    """Return (a row of each distinct combination of the columns' values, the combination's number of each row)."""
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), dtype=np.bool_)
    new[:1] = True
    for column in columns:
        ordered = column[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.cumsum(new) - 1
    return order[new], number
