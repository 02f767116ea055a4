"""Fusion of rankings: hand-computed cases, and what must hold for any two lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.errors import InputError
from hermes.plugins.structures.fusion import METHODS, LearnedFusion, Ranking, adaptive_alpha, fuse, min_max, z_scores

DENSE = Ranking([1, 2, 3], [0.9, 0.8, 0.4])
SPARSE = Ranking([4, 3, 1], [30.0, 20.0, 10.0])


def scores(method, tokens=20):
    documents, values = METHODS[method](DENSE, SPARSE, tokens)
    return dict(zip(documents, values.round(9).tolist(), strict=True))


def test_nasf_by_hand():
    """Dense to [1, .8, 0], sparse to [1, .5, 0]; missing 0. Above ten tokens the dense weighs 0.7."""
    assert scores("nasf") == {1: 0.7, 2: 0.56, 3: 0.15, 4: 0.3}
    assert scores("nasf", 7) == {1: 0.5, 2: 0.4, 3: 0.25, 4: 0.5}
    assert scores("nasf", 3) == {1: 0.3, 2: 0.24, 3: 0.35, 4: 0.7}
    assert fuse("nasf", DENSE, SPARSE, 20, 2) == [1, 2]
    assert fuse("nasf", DENSE, SPARSE, 3, 2) == [4, 3]
    assert fuse("nasf", DENSE, SPARSE, 7, 4) == [1, 4, 2, 3]    # a tie goes to the dense list's


def test_the_others_by_hand():
    assert scores("naive")[4] == 15.2     # half of 30 and of the dense list's lowest, 0.4
    assert scores("rrf") == {1: round(1 / 61 + 1 / 63, 9), 2: round(1 / 62, 9), 3: round(1 / 63 + 1 / 62, 9),
                             4: round(1 / 61, 9)}
    assert scores("dense") == {1: 0.9, 2: 0.8, 3: 0.4}
    assert fuse("sparse", DENSE, SPARSE, 1, 9) == [4, 3, 1]
    assert scores("adaptive", 3)[1] == pytest.approx(0.3 * 0.9 + 0.7 * 10)


@pytest.mark.parametrize(("tokens", "alpha"), [(1, 0.3), (4, 0.3), (5, 0.5), (10, 0.5), (11, 0.7), (100, 0.7)])
def test_weights_by_length(tokens, alpha):
    assert adaptive_alpha(tokens) == alpha


def test_scaling():
    assert min_max(np.array([3.0, 1.0])).tolist() == [1.0, 0.0]
    assert min_max(np.array([2.0, 2.0])).tolist() == [1.0, 1.0]
    assert z_scores(np.array([1.0, 3.0])).tolist() == [-1.0, 1.0]
    assert z_scores(np.array([2.0])).tolist() == [0.0]
    assert len(min_max(np.array([]))) == len(z_scores(np.array([]))) == 0


rankings = st.lists(st.integers(0, 30), unique=True, max_size=12).flatmap(lambda documents: st.lists(
    st.floats(-1e3, 1e3).map(lambda x: round(x, 3)), min_size=len(documents), max_size=len(documents),
).map(lambda values: Ranking(documents, sorted(values, reverse=True))))


@given(rankings, rankings, st.integers(0, 30), st.sampled_from(sorted(set(METHODS) - {"dense", "sparse"})))
def test_every_document_once_and_no_other(dense, sparse, tokens, method):
    fused = fuse(method, dense, sparse, tokens, 100)
    assert sorted(fused) == sorted({*dense.documents, *sparse.documents})
    assert fuse(method, dense, sparse, tokens, 3) == fused[:3]


@given(rankings, rankings, st.integers(0, 30), st.floats(0.1, 100), st.sampled_from(["nasf", "normalised", "rrf"]))
def test_the_unit_of_a_score_does_not_matter(dense, sparse, tokens, factor, method):
    """What the plain sum gets wrong: a list with larger numbers outweighs the other."""
    power = 2.0 ** round(np.log2(factor))   # exact, so that ties stay ties
    scaled = Ranking(sparse.documents, [power * score for score in sparse.scores])
    assert fuse(method, dense, scaled, tokens, 100) == fuse(method, dense, sparse, tokens, 100)


def test_learned_weights_find_which_list_to_trust():
    """Relevant is whatever the sparse list puts first; the dense list is noise."""
    rng = np.random.default_rng(1)
    judged = []
    for _ in range(60):
        documents = rng.permutation(20).tolist()
        sparse = Ranking(documents, np.linspace(20, 1, 20).tolist())
        dense = Ranking(rng.permutation(20).tolist(), sorted(rng.random(20).tolist(), reverse=True))
        judged.append((dense, sparse, set(documents[:3])))
    fusion = LearnedFusion().fit(judged[:40])
    assert fusion.weights_[1] > 5 * abs(fusion.weights_[0])
    hits = [len(set(fuse(fusion, d, s, 8, 3)) & relevant) for d, s, relevant in judged[40:]]
    plain = [len(set(fuse("naive", d, s, 8, 3)) & relevant) for d, s, relevant in judged[40:]]
    assert np.mean(hits) > 2.9
    assert np.mean([len(set(fuse("dense", d, s, 8, 3)) & r) for d, s, r in judged[40:]]) < 1 < np.mean(plain)


def test_mistakes_are_named():
    with pytest.raises(InputError, match="nasf"):
        fuse("no", DENSE, SPARSE, 3, 3)
    with pytest.raises(InputError, match="as many scores"):
        Ranking([1, 2], [1.0])
    with pytest.raises(InputError, match="once"):
        Ranking([1, 1], [1.0, 2.0])
    with pytest.raises(InputError, match="fitted"):
        fuse(LearnedFusion(), DENSE, SPARSE, 3, 3)
    with pytest.raises(InputError, match="judged"):
        LearnedFusion().fit([])
