"""A column of lists of integers in flat arrays: the hashes of prompts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from hermes.arrays import IntArray

__all__ = ["IntLists", "Integers", "narrowed"]

Integers = npt.NDArray[np.integer]
_ROWS = 4096   # made into lists at a time


class IntLists(Sequence[tuple[int, ...]]):
    """A sequence of tuples of integers: row i is `values[begins[i]:ends[i]]`. Rows may share values.

    A trace has tens of millions of hashes: as Python objects they would take ten times the memory.
    """

    __slots__ = ("begins", "ends", "values")

    def __init__(self, values: Integers, begins: IntArray, ends: IntArray) -> None:
        self.values, self.begins, self.ends = values, begins, ends

    @classmethod
    def of(cls, lists: Iterable[Sequence[int]]) -> IntLists:
        """Return the lists as a column, equal ones stored once. Raises `OverflowError` for integers beyond 64 bits."""
        if isinstance(lists, cls):
            return lists
        made: dict[tuple[int, ...], int] = {}
        begins: list[int] = []
        ends: list[int] = []
        values: list[int] = []
        for items in lists:
            key = tuple(items)
            begin = made.setdefault(key, len(values))
            if begin == len(values):
                values += key
            begins.append(begin)
            ends.append(begin + len(key))
        flat = np.array(values, dtype=np.int64)
        return cls(flat, np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.begins)

    @overload
    def __getitem__(self, row: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, row: slice) -> list[tuple[int, ...]]: ...
    def __getitem__(self, row: int | slice) -> tuple[int, ...] | list[tuple[int, ...]]:
        if isinstance(row, slice):
            return list(IntLists(self.values, self.begins[row], self.ends[row]))
        return tuple(self.values[self.begins[row]:self.ends[row]].tolist())

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Iterate over the rows; equal rows close together are one tuple."""
        for low in range(0, len(self), _ROWS):
            part = slice(low, low + _ROWS)
            made: dict[tuple[int, int], tuple[int, ...]] = {}
            for place in zip(self.begins[part].tolist(), self.ends[part].tolist(), strict=True):
                row = made.get(place)
                if row is None:
                    row = made[place] = tuple(self.values[place[0]:place[1]].tolist())
                yield row

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IntLists({list(self)!r})"

    def lists(self) -> list[list[int]]:
        """Return the rows as lists, one object for equal rows."""
        made: dict[tuple[int, int], list[int]] = {}
        found = []
        for place in zip(self.begins.tolist(), self.ends.tolist(), strict=True):
            row = made.get(place)
            if row is None:
                row = made[place] = self.values[place[0]:place[1]].tolist()
            found.append(row)
        return found

    def take(self, rows: IntArray) -> IntLists:
        """Return the column of these rows."""
        return IntLists(self.values, self.begins[rows], self.ends[rows])

    def heads(self, counts: IntArray) -> IntLists:
        """Return the column of the first `counts[i]` integers of each row i."""
        return IntLists(self.values, self.begins, np.minimum(self.ends, self.begins + counts))

    def sums(self) -> IntArray:
        """Return the sum of each row. Rows sum to less than 2**63."""
        total = np.zeros(len(self.values) + 1, dtype=np.int64)
        np.cumsum(self.values, out=total[1:])
        return total[self.ends] - total[self.begins]   # right even where the running total has wrapped


def narrowed(values: Integers) -> Integers:
    """Return the values in 32 bits if they fit."""
    fits = not values.size or (int(values.min()) >= -2**31 and int(values.max()) < 2**31)
    return values.astype(np.int32) if fits else values
