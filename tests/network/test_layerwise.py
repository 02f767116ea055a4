"""Layer-wise transfer: the formula against a simulation of the layers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.network import exposed_bytes


def test_fast_link_exposes_the_last_layer() -> None:
    assert exposed_bytes(80, layers=80, compute_s=1.0, bandwidth=1e9) == 1
    assert exposed_bytes(81, layers=80, compute_s=1.0, bandwidth=1e9) == 2


def test_slow_link_exposes_what_it_could_not_move() -> None:
    # layers are ready at 0.25, 0.5, 0.75 and 1 s: 0.75 s at 40 bytes/s
    assert exposed_bytes(100, layers=4, compute_s=1.0, bandwidth=40.0) == 70


def test_one_layer_or_no_time_hides_nothing() -> None:
    assert exposed_bytes(100, layers=1, compute_s=1.0, bandwidth=1e9) == 100
    assert exposed_bytes(100, layers=10, compute_s=0.0, bandwidth=1e9) == 100
    assert exposed_bytes(0, layers=10, compute_s=1.0, bandwidth=1e9) == 0


def test_infinite_bandwidth() -> None:
    assert exposed_bytes(100, layers=10, compute_s=1.0, bandwidth=float("inf")) == 10


@pytest.mark.parametrize(
    "bad", [{"num_bytes": -1}, {"layers": 0}, {"compute_s": -1.0}, {"bandwidth": 0.0}, {"bandwidth": float("nan")}],
)
def test_nonsense(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        exposed_bytes(**{"num_bytes": 1, "layers": 1, "compute_s": 1.0, "bandwidth": 1.0} | bad)  # type: ignore[arg-type]


@given(st.integers(0, 10**6), st.integers(1, 100), st.floats(0, 10), st.floats(1, 1e7))
def test_is_what_a_queue_of_layers_leaves(num_bytes: int, layers: int, compute_s: float, bandwidth: float) -> None:
    free_s = 0.0     # when the link has moved all layers before
    for layer in range(1, layers + 1):
        free_s = max(free_s, compute_s * layer / layers) + num_bytes / layers / bandwidth
    left = (free_s - compute_s) * bandwidth
    assert exposed_bytes(num_bytes, layers, compute_s, bandwidth) == pytest.approx(left, abs=1 + 1e-6 * left)
