"""Queries of a data set, as distributions of lengths and of true profiles: `hw_profiles/rag_datasets/NAME.yaml`.

There is no text. A file has METIS's table of lengths (inputs, outputs) and public facts about how the data set was made
(SQuAD asks for one fact of one passage; MuSiQue composes 2 to 4 hops); its `provenance` says which figures are assumed.
There are two sets of the same four data sets:

- `squad`, `musique`, `finsec`, `qmsum`: n to 2n chunks for n pieces give the table's input lengths (n to 2.5n for
  MuSiQue). METIS may read 3n, more than the table's longest inputs. This was the study's first set.
- `squad-3n`, `musique-3n`, `finsec-3n`, `qmsum-3n`: 3n chunks stay within the table's input lengths, with numbers of
  pieces as broad as a profile's (1 to 10).

Assumed for all of them, in this module:

- the lengths of summaries that a profile asks for, more words for complex queries;
- **the ranks of the needed pieces**: going down the ranking, each chunk is a needed one with probability `precision`
  until all are found, so that gaps between them are geometric; a piece is missed altogether with probability `missed`.

The heavy-tailed alternative ranks each piece independently by DPR's top-k accuracy on Natural Questions (Karpukhin et
al. 2020, table 2: 79.4% within 20, 86.0% within 100), log-linear in k between these and an assumed 46% at the top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hermes.arrays import log1p
from hermes.config import ConfigModel, load
from hermes.errors import InputError
from hermes.hardware import find
from hermes.plugins.metis.decision import Lengths, Profile
from hermes.sums import float_sum

__all__ = ["Dataset", "Query", "dataset"]

NEVER = 10**6
"""Rank of a piece that is not found."""
_DPR = ((1, 0.46), (20, 0.794), (100, 0.860))

Share = Annotated[float, Field(ge=0, le=1)]
Precision = Annotated[float, Field(gt=0, lt=1)]
Tokens = Annotated[int, Field(ge=1, le=2**20)]
LeastMost = Annotated[list[Tokens], Field(min_length=2, max_length=2)]


@dataclass(frozen=True)
class Query:
    """A query: its true profile, and the ranks of its pieces (and those of the heavy-tailed alternative).

    Attributes:
        name: Its name in the files of measured queries and of measured F1; "" for a drawn one.
        answer_tokens: Tokens of its answer; None for the workload's.
    """

    profile: Profile
    ranks: tuple[int, ...]
    heavy_ranks: tuple[int, ...]
    name: str = ""
    answer_tokens: int | None = None


class Dataset(ConfigModel):
    """Format `hermes-rag-dataset/1`."""

    format: Literal["hermes-rag-dataset/1"]
    name: Annotated[str, Field(min_length=1, max_length=200)]
    """Name of the data set. Its draws depend on it."""
    task: Annotated[str, Field(min_length=1, max_length=200)]
    """Kind of task, in words."""
    input_tokens: LeastMost
    """Least and most tokens of a prompt with chunks, as published. Nothing is computed from them."""
    output_tokens: LeastMost
    """Least and most tokens of an answer."""
    question_tokens: LeastMost
    """Least and most tokens of a question."""
    chunk_tokens: Tokens
    """Tokens of a chunk."""
    pieces: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=1, max_length=10)]
    """Weights of queries that need 1, 2, ... pieces of information, up to 10."""
    joint: Share
    """Share of queries with joint reasoning."""
    complex_joint: Share
    """Share of high complexity among queries with joint reasoning."""
    complex_other: Share = 0.0
    """Share of high complexity among the others."""
    precision: Precision = 0.5
    """Probability that the next chunk of the ranking is a needed one, for queries of several pieces."""
    precision_single: Precision = 0.75
    """The same for queries of one piece: a single fact is found sooner."""
    missed: Share = 0.02
    """Probability that a piece is not found at all."""
    provenance: Annotated[list[str], Field(min_length=1)]
    """Sources of the figures; assumed ones are called so."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for field in ("input_tokens", "output_tokens", "question_tokens"):
            low, high = getattr(self, field)
            if low > high:
                raise InputError("least, then most", f"{low}, {high}", field=field)
        if not any(self.pieces):
            raise InputError("a weight above 0", ", ".join(map(str, self.pieces)), field="pieces")
        return self

    @property
    def counts(self) -> list[int]:
        """Numbers of pieces that its queries may need."""
        return [count for count, weight in enumerate(self.pieces, start=1) if weight]

    @property
    def mean_pieces(self) -> float:
        """Mean number of pieces that a query needs."""
        return float_sum(count * weight for count, weight in enumerate(self.pieces, start=1)) / float_sum(self.pieces)

    def lengths(self, question_tokens: int) -> Lengths:
        """Return the lengths for a decision: the longest answers are assumed."""
        return Lengths(self.chunk_tokens, question_tokens, self.output_tokens[1])

    def draw(self, rng: np.random.Generator) -> Query:
        """Draw one query. How many numbers are drawn depends only on the number of pieces, which is drawn first."""
        u = rng.random(6)
        weights = np.cumsum(self.pieces)
        pieces = 1 + int(np.searchsorted(weights / weights[-1], u[0], side="right"))
        joint = bool(u[1] < self.joint)
        hard = bool(u[2] < (self.complex_joint if joint else self.complex_other))
        low = 50 + int(u[3] * 21) if hard else 30
        words = low, low + (30 + int(u[4] * 71) if hard else 10 + int(u[4] * 41))
        gaps, lost, heavy = rng.random((3, pieces))
        return Query(Profile(joint, hard, pieces, words), self._ranks(gaps, lost, pieces), _heavy(heavy))

    def _ranks(self, gaps: np.ndarray, lost: np.ndarray, pieces: int) -> tuple[int, ...]:
        precision = self.precision_single if pieces == 1 else self.precision
        steps = 1 + np.floor(log1p(-gaps) / math.log1p(-precision)).astype(int)
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


def dataset(name_or_path: str) -> Dataset:
    """Return a data set by name, or by the path of a YAML file. Raises `InputError` for an unknown one, and with the
    place of a file's first mistake."""
    return load(Dataset, find(name_or_path, None, "rag_datasets", "a data set of RAG queries"))
