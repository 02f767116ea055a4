"""Count-Min: never below the truth, seldom far above it, the same in every process."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import count

from hermes.memory.sketch import CountMinSketch

keys_of_all_kinds = st.lists(st.one_of(st.integers(-5, 20), st.text(max_size=2)), max_size=200)


@pytest.mark.feature("Plug-ins of research", "Data structures: sketches, indexed heap, micro-batcher, fusion")
@given(keys_of_all_kinds, st.integers(1, 8), st.integers(1, 3))
def test_never_below_the_truth_and_never_above_the_total(keys, width, depth):
    sketch = CountMinSketch(width, depth)
    for key in keys:
        assert sketch.add(key) == sketch.estimate(key)
    for key in {*keys, "never seen"}:
        assert keys.count(key) <= sketch.estimate(key) <= len(keys) == sketch.total


def test_without_collisions_it_counts():
    sketch = CountMinSketch(1 << 16, 4)
    for key in range(10):
        sketch.add(key, key)
    assert [sketch.estimate(key) for key in range(10)] == list(range(10))


def test_width_and_depth_of_the_paper():
    sketch = CountMinSketch()
    assert (sketch.width, sketch.depth) == (2048, 4)
    assert sketch.epsilon == pytest.approx(0.00133, abs=5e-6)
    assert sketch.delta == pytest.approx(0.0183, abs=5e-5)


@pytest.mark.long(quick=2)
@pytest.mark.parametrize("zipf", [0.0, 0.8, 1.1])
def test_errors_exceed_epsilon_n_no_more_often_than_delta(zipf):
    """Over 2 hash functions, 8 in long runs, and every seventh key seen: the share of estimates above f + epsilon N."""
    rng = np.random.default_rng(3)
    weights = np.arange(1, 20_001) ** -zipf
    keys = rng.choice(20_000, size=40_000, p=weights / weights.sum())
    counts = np.bincount(keys, minlength=20_000)
    above = []
    for seed in range(count(2, 8)):
        sketch = CountMinSketch(width=256, depth=2, seed=seed)
        sketch.add_many(keys)
        estimates = np.array([sketch.estimate(key) for key in range(0, 20_000, 7)])
        assert (estimates >= counts[::7]).all()
        above.append((estimates > counts[::7] + sketch.epsilon * sketch.total).mean())
    assert np.mean(above) <= CountMinSketch(256, 2).delta


def test_many_at_once_is_one_by_one():
    one, many = CountMinSketch(64, 3, seed=5), CountMinSketch(64, 3, seed=5)
    keys = [*range(100), "a", ("b", 1)]
    for key in keys:
        one.add(key)
    many.add_many(keys)
    assert [one.estimate(key) for key in keys] == [many.estimate(key) for key in keys]
    assert one.total == many.total == 102
    many.halve()
    assert many.total == 51
    assert all(many.estimate(key) == one.estimate(key) // 2 for key in keys)


@given(st.integers(-(2**62), 2**62))
def test_a_number_is_the_same_key_whoever_brings_it(number):
    sketch = CountMinSketch()
    sketch.add(number)
    sketch.add(np.int64(number))
    sketch.add_many(np.array([number]))
    assert sketch.estimate(number) == sketch.estimate(np.int64(number)) == 3


def test_text_hashes_the_same_in_every_process():
    code = "from hermes.memory.sketch import CountMinSketch as S\ns = S(64, 3)\nfor k in 'abcdefgh': s.add(k)\n" \
           "print(s._rows.tolist())"
    printed = {
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
                       capture_output=True, text=True, check=True).stdout for seed in ("1", "2")
    }
    assert len(printed) == 1
