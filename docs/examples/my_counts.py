from typing import Literal

import numpy as np
from pydantic import Field

from hermes.arrays import IntArray
from hermes.config import Tokens
from hermes.workload import TOKEN_COUNTS, TokenCounts


@TOKEN_COUNTS.register("two_sizes")
class TwoSizes(TokenCounts):
    """Short or long, nothing in between."""

    kind: Literal["two_sizes"] = "two_sizes"
    short: Tokens = 100
    """Tokens of the short ones."""
    long: Tokens = 4000
    """Tokens of the long ones."""
    share: float = Field(default=0.1, ge=0, le=1)
    """Share of the long ones."""

    def draw(self, n: int, rng: np.random.Generator) -> IntArray:
        return np.where(rng.random(n) < self.share, self.long, self.short).astype(np.int64)
