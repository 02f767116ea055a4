from typing import Literal

import numpy as np
from pydantic import Field

from hermes.workload import LENGTHS, LengthModel, Lengths


@LENGTHS.register("summaries")
class Summaries(LengthModel):
    """Long documents, and answers that are a share of each."""

    kind: Literal["summaries"] = "summaries"
    mean: float = Field(default=2000.0, ge=1, le=100_000)
    """Mean tokens of a document; they are distributed exponentially."""
    share: float = Field(default=0.1, gt=0, le=1)
    """Tokens of the summary for each token of the document."""

    def draw(self, n: int, rng: np.random.Generator) -> Lengths:
        prompt = np.ceil(self.mean * rng.standard_exponential(n)).astype(np.int64) + 1
        return Lengths(prompt, np.ceil(self.share * prompt).astype(np.int64))
