"""Queries of four data sets, as distributions of lengths and of true profiles.

The module has no text. Its figures are METIS's table of lengths (inputs, outputs) and public facts about how the data
sets were made: SQuAD asks for one fact of one passage; MuSiQue composes 2 to 4 hops (its 2,417 dev questions: 1,252,
760 and 405); the other two ask about whole documents and meetings. Everything else is assumed:

- chunk sizes, so that n to 2n chunks for n pieces give the table's input lengths (n to 2.5n for MuSiQue);
- shares of joint reasoning and of high complexity;
- the lengths of summaries that a profile asks for, more words for complex queries;
- **the ranks of the needed pieces**: going down the ranking, each chunk is a needed one with probability `precision`
  until all are found, so that gaps between them are geometric; a piece is missed altogether with probability `missed`.
  `precision` is higher for a single fact (0.75) than for several that are combined (0.5).

The heavy-tailed alternative ranks each piece independently by DPR's top-k accuracy on Natural Questions (Karpukhin et
al. 2020, table 2: 79.4% within 20, 86.0% within 100), log-linear in k between these and an assumed 46% at the top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hermes.errors import InputError, suggest
from hermes.plugins.metis.decision import Lengths, Profile

__all__ = ["DATASETS", "Dataset", "Query", "dataset"]

NEVER = 10**6
"""Rank of a piece that is not found."""
_DPR = ((1, 0.46), (20, 0.794), (100, 0.860))


@dataclass(frozen=True)
class Query:
    """A drawn query: its true profile, and the ranks of its pieces (and those of the heavy-tailed alternative)."""

    profile: Profile
    ranks: tuple[int, ...]
    heavy_ranks: tuple[int, ...]


@dataclass(frozen=True)
class Dataset:
    """A data set.

    Attributes:
        input_tokens, output_tokens: Least and most.
        pieces: Number of pieces -> weight.
        joint: Share of joint reasoning.
        complex_joint, complex_other: Share of high complexity with and without joint reasoning.
    """

    name: str
    input_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    chunk_tokens: int
    question_tokens: tuple[int, int]
    pieces: dict[int, float]
    joint: float
    complex_joint: float
    complex_other: float = 0.0
    precision: float = 0.5
    missed: float = 0.02

    def lengths(self, question_tokens: int) -> Lengths:
        """Return the lengths for a decision: the longest answers are assumed."""
        return Lengths(self.chunk_tokens, question_tokens, self.output_tokens[1])

    def draw(self, rng: np.random.Generator) -> Query:
        """Draw one query. How many numbers are drawn depends only on the number of pieces, which is drawn first."""
        u = rng.random(6)
        weights = np.cumsum(list(self.pieces.values()))
        pieces = list(self.pieces)[int(np.searchsorted(weights / weights[-1], u[0], side="right"))]
        joint = bool(u[1] < self.joint)
        hard = bool(u[2] < (self.complex_joint if joint else self.complex_other))
        low = 50 + int(u[3] * 21) if hard else 30
        words = low, low + (30 + int(u[4] * 71) if hard else 10 + int(u[4] * 41))
        gaps, lost, heavy = rng.random((3, pieces))
        return Query(Profile(joint, hard, pieces, words), self._ranks(gaps, lost, pieces), _heavy(heavy))

    def _ranks(self, gaps: np.ndarray, lost: np.ndarray, pieces: int) -> tuple[int, ...]:
        precision = 0.75 if pieces == 1 else self.precision
        steps = 1 + np.floor(np.log1p(-gaps) / math.log1p(-precision)).astype(int)
        return tuple(NEVER if miss else int(rank)
                     for rank, miss in zip(np.cumsum(steps), lost < self.missed, strict=True))


def _heavy(u: np.ndarray) -> tuple[int, ...]:
    """Return ranks distributed as the DPR curve."""
    (low, first), (mid, second), (high, third) = _DPR
    ranks = []
    for x in u.tolist():
        if x < first:
            ranks.append(low)
        elif x < second:
            ranks.append(math.ceil(mid ** ((x - first) / (second - first))))
        elif x < third:
            ranks.append(math.ceil(mid * (high / mid) ** ((x - second) / (third - second))))
        else:
            ranks.append(NEVER)
    return tuple(ranks)


DATASETS = {
    one.name: one for one in (
        Dataset("squad", (400, 2000), (5, 10), 400, (10, 20), {1: 0.85, 2: 0.15}, 0.10, 0.10, 0.05, precision=0.75),
        Dataset("musique", (1000, 5000), (5, 20), 500, (15, 40), {2: 1252, 3: 760, 4: 405}, 0.90, 0.40, 0.10),
        Dataset("finsec", (4000, 10_000), (20, 40), 1000, (15, 40), {4: 0.6, 5: 0.4}, 0.85, 0.50, 0.20),
        Dataset("qmsum", (4000, 12_000), (20, 60), 1000, (10, 30), {4: 0.35, 5: 0.35, 6: 0.3}, 0.95, 0.65, 0.20),
    )
}


def dataset(name: str) -> Dataset:
    """Return a data set by name. Raises `InputError` for an unknown one."""
    if name not in DATASETS:
        raise InputError(f"a data set: one of {', '.join(DATASETS)}", name, field="dataset",
                         suggestion=suggest(name, DATASETS))
    return DATASETS[name]
