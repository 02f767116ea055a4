"""A generated corpus with relevance judgements that do not come from a dense or sparse scorer.

Its world has *concepts*. Each has several words (synonyms) and a direction in the space of meanings. A document is
about a few concepts of one topic: its text mentions each with one of its words, among filler words; its embedding is
the mean of its concepts' directions and its topic's, with noise. A query asks for some of the concepts of one document,
with its own choice of words, and is embedded from its words in the same way.

**A document is relevant if it is about every concept that the query asks for.** This is a fact of the world,
independent of texts and embeddings. A sparse scorer misses synonyms and is misled by filler words; a dense one knows
synonyms and blurs concepts that lie close together. A query's embedding gets noise for each word, averaged over its
words: no parameter depends on the query's length, yet short queries come out noisier (`noise_words` turns that off).
The strength of either scorer depends on `synonyms` and `word_noise`. The corpus is not a real collection (the paper
uses FIQA); orders and signs may carry over, sizes need not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from hermes.arrays import FloatArray, IntArray

__all__ = ["Corpus", "CorpusConfig", "Query", "make_corpus"]

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class CorpusConfig:
    """Sizes of the world. Lengths are in words; noise is the length of the noise over a meaning of length 1."""

    documents: int = 10_000
    queries: int = 600
    topics: int = 100
    concepts_per_topic: int = 25
    synonyms: int = 4
    concepts_per_document: int = 6
    mentions: int = 2
    filler_words: int = 4000
    filler_per_document: int = 60
    dims: int = 64
    topic_share: float = 0.6
    """Share of the topic in a concept's direction: concepts of a topic lie close together."""
    document_noise: float = 0.3
    word_noise: float = 1.2
    noise_words: int | None = None
    """Number of words that the noise of a query is averaged over: its own (None), so that short queries come out
    noisier; or this number for every query, so that its length does not affect the quality of its embedding."""
    seed: int = 0


@dataclass(frozen=True)
class Query:
    """A query.

    Attributes:
        words: Its text.
        embedding: Shape (dims,), unit length.
        relevant: Documents that answer it.
    """

    words: tuple[str, ...]
    embedding: Vectors
    relevant: frozenset[int]


@dataclass(frozen=True)
class Corpus:
    """A corpus.

    Attributes:
        texts: One per document.
        embeddings: Shape (documents, dims), unit length.
    """

    texts: list[str]
    embeddings: Vectors
    queries: list[Query]


def _unit(x: npt.NDArray[Any]) -> Vectors:
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True), dtype=np.float32)


class _World:
    """Meanings of concepts and words."""

    def __init__(self, config: CorpusConfig) -> None:
        self.config = config
        self.rng = np.random.default_rng([config.seed, 0x5EED])
        c, rng = config, self.rng
        topics = rng.standard_normal((c.topics, c.dims)) / np.sqrt(c.dims)
        own = rng.standard_normal((c.topics * c.concepts_per_topic, c.dims)) / np.sqrt(c.dims)
        of_topic = np.repeat(topics, c.concepts_per_topic, axis=0)
        self.meaning = c.topic_share * of_topic + np.sqrt(1 - c.topic_share**2) * own
        weights = 1.0 / np.arange(1, c.filler_words + 1)
        self.filler = weights / weights.sum()

    def words_of(self, concepts: IntArray) -> list[str]:
        """Return a word for each concept, one of its synonyms."""
        chosen = self.rng.integers(0, self.config.synonyms, len(concepts))
        return [f"c{concept}x{word}" for concept, word in zip(concepts.tolist(), chosen.tolist(), strict=True)]

    def fillers(self, count: int) -> list[str]:
        return [f"f{word}" for word in self.rng.choice(self.config.filler_words, size=count, p=self.filler).tolist()]

    def noise(self) -> FloatArray:
        return np.asarray(self.rng.standard_normal(self.config.dims) / np.sqrt(self.config.dims))


def make_corpus(config: CorpusConfig | None = None) -> Corpus:
    """Return the corpus of a configuration; equal, word for word, at each call. Lengths of queries: 2 to 24 words."""
    config = config or CorpusConfig()
    world = _World(config)
    about, texts, embeddings = [], [], []
    for _ in range(config.documents):
        topic = int(world.rng.integers(config.topics))
        concepts = topic * config.concepts_per_topic + world.rng.choice(
            config.concepts_per_topic, size=config.concepts_per_document, replace=False)
        words = world.words_of(np.repeat(concepts, config.mentions)) + world.fillers(config.filler_per_document)
        about.append(frozenset(concepts.tolist()))
        texts.append(" ".join(words[i] for i in world.rng.permutation(len(words))))
        embeddings.append(world.meaning[concepts].mean(axis=0) + config.document_noise * world.noise())
    holders: dict[int, set[int]] = {}
    for document, concepts_of in enumerate(about):
        for concept in concepts_of:
            holders.setdefault(concept, set()).add(document)
    queries = [_query(world, sorted(about[int(world.rng.integers(config.documents))]), holders)
               for _ in range(config.queries)]
    return Corpus(texts, _unit(np.array(embeddings)), queries)


def _query(world: _World, concepts: list[int], holders: dict[int, set[int]]) -> Query:
    """Return a query for one to three concepts; its other words are fillers."""
    config, rng = world.config, world.rng
    asked = rng.choice(np.array(concepts), size=int(rng.integers(1, 4)), replace=False)
    length = int(rng.integers(max(2, len(asked)), 25))
    words = world.words_of(asked) + world.fillers(length - len(asked))
    averaged = config.noise_words or length
    noise = config.word_noise * reduce(np.add, (world.noise() for _ in range(averaged))) / averaged
    relevant = frozenset.intersection(*(frozenset(holders[int(concept)]) for concept in asked))
    embedding = _unit(world.meaning[asked].mean(axis=0) + noise)
    return Query(tuple(words[i] for i in rng.permutation(len(words))), embedding, relevant)
