"""Element-wise kernels whose operands are in the second-level cache: by hand, and without falls."""

import pytest

from hermes.hardware.composed.elementwise import elementwise_ns
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.operators import Work

CARD = load_device("rtx-pro-6000")
WORK = Work.of(load_model("llama-3.1-8b"))


def test_small_operands_move_at_the_caches_rate():
    """Two norms of 4 x 4,096 values, a rotation of 2 x 40 x 128, an activation of 3 x 14,336, each of 16 bits."""
    layer = 2 * (2 * 4 * 4096 + 2 * 40 * 128 + 3 * 14336)
    moved = 32 * layer + 2 * 2 * 4096
    assert WORK.elementwise_bytes == moved
    assert elementwise_ns(WORK, CARD, 128) == pytest.approx(128 * moved / 5.09e12 * 1e9)


def test_large_ones_at_the_memorys():
    assert elementwise_ns(WORK, CARD, 100_000) == pytest.approx(100_000 * WORK.elementwise_bytes / 1.792e12 * 1e9)


def test_more_rows_never_take_less():
    times = [elementwise_ns(WORK, CARD, rows) for rows in range(1, 6000, 7)]
    assert times == sorted(times)
