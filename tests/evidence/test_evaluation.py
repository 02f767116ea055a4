"""Measures by hand; the generated corpus: judged by its world alone, the same every time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence.retrieval import MEASURES, CorpusConfig, make_corpus, paired_test
from evidence.retrieval.measures import mrr, ndcg, recall

SMALL = CorpusConfig(documents=400, queries=60, topics=10)


def test_measures_by_hand():
    ranking, relevant = [7, 1, 9, 2], {1, 2, 3}
    assert recall(ranking, relevant, 3) == 1 / 3
    assert recall(ranking, relevant, 2) == 1 / 2     # of two places, one is right
    assert mrr(ranking, relevant, 10) == 1 / 2
    assert mrr(ranking, relevant, 1) == 0
    best = 1 + 1 / math.log2(3) + 1 / 2
    assert ndcg(ranking, relevant, 10) == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / best)
    assert recall([], {1}, 10) == mrr([], {1}, 10) == ndcg([1], set(), 10) == 0


@given(st.permutations(range(20)), st.sets(st.integers(0, 19), min_size=1))
def test_measures_lie_between_nothing_and_perfect(ranking, relevant):
    perfect = sorted(relevant) + sorted(set(range(20)) - relevant)
    for name, measure in MEASURES.items():
        assert 0 <= measure(ranking, relevant) <= 1, name
        assert measure(perfect, relevant) == pytest.approx(1), name


def test_paired_test_sees_what_pairs_show():
    """A tenth better on every query is certain, though queries differ by far more."""
    rng = np.random.default_rng(0)
    hard = rng.random(200)
    better = paired_test(hard + 0.1 + 0.02 * rng.standard_normal(200), hard)
    assert better.low < 0.1 < better.high
    assert better.p < 1e-10
    same = paired_test(rng.random(200), rng.random(200))
    assert same.low < 0 < same.high
    assert paired_test([1, 1, 1], [1, 1, 1]).p == 1


def test_paired_test_is_wrong_one_time_in_twenty():
    rng = np.random.default_rng(4)
    found = [paired_test(rng.standard_normal(25), rng.standard_normal(25)).p < 0.05 for _ in range(800)]
    assert 0.03 < np.mean(found) < 0.075


def test_corpus_is_the_same_every_time_and_differs_by_seed():
    a, b = make_corpus(SMALL), make_corpus(SMALL)
    assert a.texts == b.texts
    assert (a.embeddings == b.embeddings).all()
    assert [q.words for q in a.queries] == [q.words for q in b.queries]
    assert make_corpus(CorpusConfig(documents=400, queries=60, topics=10, seed=1)).texts != a.texts


def test_what_is_relevant_is_about_what_is_asked():
    """The judgement can be read off the texts by somebody who knows all synonyms; at least one document answers."""
    corpus = make_corpus(SMALL)
    about = [{word.split("x")[0] for word in text.split() if word[0] == "c"} for text in corpus.texts]
    for query in corpus.queries:
        asked = {word.split("x")[0] for word in query.words if word[0] == "c"}
        assert query.relevant == {i for i, concepts in enumerate(about) if asked <= concepts}
        assert query.relevant
        assert 2 <= len(query.words) <= 24
    assert np.allclose(np.linalg.norm(corpus.embeddings, axis=1), 1, atol=1e-5)


def test_embeddings_know_synonyms_and_blur():
    """Better than chance by far, and not perfect: both scorers leave something for the other."""
    corpus = make_corpus(SMALL)
    top = [np.argsort(-(corpus.embeddings @ q.embedding))[:10].tolist() for q in corpus.queries]
    recall_at_10 = MEASURES["recall@10"]
    found = np.mean([recall_at_10(ranking, q.relevant) for ranking, q in zip(top, corpus.queries, strict=True)])
    assert 0.3 < found < 0.99
