"""Count-Min sketch: upper estimates of how often keys were seen, in constant memory.

Cormode and Muthukrishnan, "An improved data stream summary" (J. Algorithms 55, 2005): with width w = ceil(e / epsilon)
and depth d = ceil(ln(1 / delta)), an estimate lies between the true count f and f + epsilon * N (N: all counts) with
probability at least 1 - delta. Width 2048 and depth 4 give epsilon = 0.00133 and delta = 0.0183.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Sequence

import numpy as np

from hermes.arrays import IntArray

__all__ = ["CountMinSketch"]

_PRIME = (1 << 61) - 1


class CountMinSketch:
    """Counts of keys: `width` counters in each of `depth` rows, with hash functions derived from `seed`."""

    def __init__(self, width: int = 2048, depth: int = 4, seed: int = 0) -> None:
        if width < 1 or depth < 1:
            raise ValueError(f"width and depth must be at least 1, got {width} and {depth}")
        self.width, self.depth = width, depth
        self.total = 0
        self._rows = np.zeros((depth, width), dtype=np.int64)
        rng = np.random.default_rng(seed)
        # h(x) = ((a x + b) mod p) mod w: pairwise independent, which is what the bound needs
        self._a = [int(a) for a in rng.integers(1, _PRIME, depth)]
        self._b = [int(b) for b in rng.integers(0, _PRIME, depth)]

    @property
    def epsilon(self) -> float:
        """Error bound as a share of all counts."""
        return math.e / self.width

    @property
    def delta(self) -> float:
        """Probability of a larger error."""
        return math.exp(-self.depth)

    def _columns(self, key: Hashable) -> list[int]:
        x = _number(key)
        return [((a * x + b) % _PRIME) % self.width for a, b in zip(self._a, self._b, strict=True)]

    def add(self, key: Hashable, count: int = 1) -> int:
        """Add `count` to a key's count; return its estimate."""
        if count < 0:
            raise ValueError(f"count must be at least 0, got {count}")
        self.total += count
        rows = self._rows
        least = None
        for row, column in enumerate(self._columns(key)):
            rows[row, column] += count
            value = int(rows[row, column])
            least = value if least is None else min(least, value)
        assert least is not None
        return least

    def estimate(self, key: Hashable) -> int:
        """Return how often a key was counted: never less than the truth, and rarely much more."""
        return min(int(self._rows[row, column]) for row, column in enumerate(self._columns(key)))

    def add_many(self, keys: Sequence[Hashable] | IntArray) -> None:
        """Count each of `keys` once, shape (n,). An array's equal keys are hashed once."""
        if isinstance(keys, np.ndarray):
            distinct, counts = np.unique(keys, return_counts=True)
            plain: Sequence[Hashable] = distinct.tolist()
        else:
            plain, counts = keys, np.ones(len(keys), dtype=np.int64)
        columns = np.array([self._columns(key) for key in plain], dtype=np.int64).reshape(-1, self.depth)
        for row in range(self.depth):
            np.add.at(self._rows[row], columns[:, row], counts)
        self.total += len(keys)

    def halve(self) -> None:
        """Halve every count, rounded down (the reset of TinyLFU, Einziger et al. 2017, section 3.3)."""
        self._rows >>= 1
        self.total >>= 1


def _number(key: Hashable) -> int:
    """Return the same number for equal keys in every process, unlike Python's hash of text."""
    if isinstance(key, int | np.integer):   # 5 and numpy's 5 are equal
        key = int(key)
        if 0 <= key < _PRIME:
            return key
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % _PRIME
