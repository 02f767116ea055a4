"""The derivation behind intra-batch scheduling, held against simulated schedules on the unit-cost model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from long_runs import quick_and_full
from theory import (
    EMBED_FIRST,
    GENERATE_FIRST,
    MIXED,
    area_bound,
    homogeneous_bound,
    mean_latency,
    requests,
    simulated,
)

from hermes.plugins.orthrus import SLOTS, BatchState

quick = quick_and_full(25, 100, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


class GenerationsFirst:
    """As many generations as memory holds; embeddings have what is left over, and that may be nothing for a while: not
    a policy to serve people with."""

    def slots(self, state: BatchState) -> tuple[int, int]:
        memory = state.resources[1]
        generations = min(state.waiting_generations + state.running_generations,
                          int(memory.capacity // memory.generation))
        return int(memory.capacity - generations * memory.generation), generations


class Split:
    """Fixed slots for either kind; nobody takes over what is left idle. This is what the derivation is about."""

    fixed = (1, 1)

    def slots(self, state: BatchState) -> tuple[int, int]:
        return self.fixed


@pytest.fixture(autouse=True, scope="module")
def _policies() -> Iterator[None]:
    SLOTS.register("test_generations_first")(GenerationsFirst)
    SLOTS.register("test_split")(Split)
    yield
    SLOTS.unregister("test_generations_first")
    SLOTS.unregister("test_split")


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """(w_e, w_g, F, L)."""
    f = draw(st.integers(1, 9))
    return draw(st.integers(0, 90)), draw(st.integers(0, 30)), f, draw(st.integers(f, 6 * f + 5))


@quick
@given(case=cases(), first=st.sampled_from([EMBED_FIRST, GENERATE_FIRST]))
def test_homogeneous_batches_take_the_steps_of_the_formula(case: tuple[int, int, int, int], first: str) -> None:
    w_e, w_g, f, units = case
    steps, _ = simulated(requests(w_e, w_g, f, first), units, batches="drain")
    if w_g % (units // f) == 0:
        assert steps == homogeneous_bound(*case)
    else:   # the last wave is not full, and takes F steps all the same
        assert homogeneous_bound(*case) <= steps <= homogeneous_bound(*case) + f


@quick
@given(case=cases(), seed=st.integers(0, 99))
def test_mixed_batches_take_no_longer_than_homogeneous_ones(case: tuple[int, int, int, int], seed: int) -> None:
    w_e, w_g, f, units = case
    homogeneous, _ = simulated(requests(w_e, w_g, f, GENERATE_FIRST), units, batches="drain")
    for order in (GENERATE_FIRST, EMBED_FIRST, MIXED):
        arrivals = requests(w_e, w_g, f, order, seed)
        first, _ = simulated(arrivals, units, slots="test_generations_first")
        assert first <= homogeneous, f"generations first, {order}"
        for slots in ("fcfs", "ibs"):
            steps, _ = simulated(arrivals, units, slots=slots)
            assert steps <= homogeneous + f, f"{slots}, {order}"
            assert steps >= area_bound(*case)
        assert first >= area_bound(*case)


@quick
@given(case=cases(), more=st.integers(0, 40))
def test_the_area_bound_is_reached_when_embeddings_fill_what_is_left_to_the_end(
    case: tuple[int, int, int, int], more: int
) -> None:
    _, w_g, f, units = case
    waves = -(-w_g // (units // f))
    w_e = f * waves * units - f * f * w_g + more   # what the waves leave free, at least
    steps, _ = simulated(requests(w_e, w_g, f, GENERATE_FIRST), units, slots="test_generations_first")
    assert steps == area_bound(w_e, w_g, f, units)


# (w_e, w_g, F, L) with slots enough that rounding y* to a whole slot is small, and a dozen waves of generations
LARGE = [(2000, 250, 8, 400), (3000, 300, 5, 240), (1200, 400, 6, 300), (3000, 150, 10, 500), (500, 500, 4, 200)]


@pytest.mark.parametrize("case", [LARGE[-1], *(pytest.param(case, marks=pytest.mark.long) for case in LARGE[:-1])])
def test_average_latency_is_least_where_ibs_puts_the_slots(case: tuple[int, int, int, int]) -> None:
    """y* = L w_g / (w_e + F w_g), rounded to whole slots, against every other y, simulated."""
    w_e, w_g, f, units = case
    arrivals = requests(w_e, w_g, f, GENERATE_FIRST)
    star = units * w_g / (w_e + f * w_g)
    assert star > 12

    def latency(y: int) -> float:
        Split.fixed = units - f * y, y
        return mean_latency(simulated(arrivals, units, slots="test_split")[1])

    best = min(latency(y) for y in range(max(1, int(star / 2)), min(int(star * 1.7), (units - 1) // f) + 1))
    assert min(latency(int(star)), latency(int(star) + 1)) <= best * 1.005


@pytest.mark.parametrize("case", LARGE)
def test_the_formula_of_average_latency_is_what_the_simulation_gives(case: tuple[int, int, int, int]) -> None:
    """(w_e^2 / (L - F y) + F w_g^2 / y) / 2 + half a wave each, over all requests."""
    w_e, w_g, f, units = case
    for share in (0.6, 1.0, 1.5):
        y = min(round(share * units * w_g / (w_e + f * w_g)), (units - 1) // f)
        Split.fixed = units - f * y, y
        _, served = simulated(requests(w_e, w_g, f, GENERATE_FIRST), units, slots="test_split")
        fluid = (w_e**2 / (units - f * y) + f * w_g**2 / y) / 2 + (w_e + f * w_g) / 2
        assert mean_latency(served) == pytest.approx(fluid / (w_e + w_g), rel=0.02)


@quick
@given(case=cases())
def test_ibs_divides_the_memory_in_proportion_to_the_queues(case: tuple[int, int, int, int]) -> None:
    w_e, w_g, f, units = case
    if not (w_e and w_g) or units < f + 1:
        return
    _, served = simulated(requests(w_e, w_g, f, MIXED), units, slots="ibs")
    started = served.prefills[0]
    embeddings = sum(1 for number, _ in started if requests(w_e, w_g, f, MIXED)[number].embed)
    generations = len(started) - embeddings
    y = max(1, int(units * w_g / (w_e + f * w_g) + 1e-9))
    assert generations == min(y, w_g)
    assert embeddings == min(w_e, units - f * y)


def test_everything_by_hand() -> None:
    """L = 10, F = 4: two generations and two embeddings side by side; w_e = 6, w_g = 3."""
    assert homogeneous_bound(6, 3, 4, 10) == 1 + 6
    assert area_bound(6, 3, 4, 10) == 6
    steps, served = simulated(requests(6, 3, 4, GENERATE_FIRST), 10, slots="test_generations_first")
    assert steps == 8    # the third generation starts at 4
    ends = np.array([step for step, _ in sorted(served.finished, key=lambda pair: pair[1])])
    assert ends.tolist() == [4, 4, 8, 1, 1, 2, 2, 3, 3]
