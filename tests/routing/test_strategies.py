"""Who is chosen, computed by hand: the nine strategies, and those beside them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from pydantic import ValidationError
from stand_ins import Routing

from hermes.routing import ROUTERS

TOKENS = ("input_tokens", "output_tokens", "kv_tokens", "tokens_left")
LOADS = (*TOKENS, "requests")
every_load = pytest.mark.parametrize("load", LOADS)


def test_round_robin_takes_turns() -> None:
    routing = Routing(3, "round_robin")
    routing.load("input_tokens", 900, 0, 0)
    assert [routing.choose() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.feature("Routing and networks", (
    "Routers `round_robin`, `random`, `least_loaded`, `heavy_light`, `power_of_two`, `session`, `locality`"))
@every_load
def test_least_loaded_takes_the_least_and_the_first_of_equals(load: str) -> None:
    routing = Routing(4, "least_loaded", load=load)
    assert routing.choose() == 0
    for other in LOADS:   # only its own load counts
        if other != load:
            routing.load(other, 0, 9, 9, 9)
    for values, chosen in (((5, 3, 4, 9), 1), ((5, 3, 3, 3), 1), ((2, 2, 3, 1), 3), ((7, 7, 7, 7), 0)):
        routing.load(load, *values)
        assert routing.choose() == chosen


def test_random_takes_each_client_as_often_as_any_other() -> None:
    routing = Routing(4, "random")
    routing.load("requests", 0, 900, 900, 900)
    chosen = [routing.choose() for _ in range(4000)]
    counts = Counter(chosen)
    assert set(counts) == {0, 1, 2, 3}
    assert all(abs(count - 1000) < 5 * (1000 * 0.75) ** 0.5 for count in counts.values())
    pairs = Counter(pairwise(chosen))   # and none depends on the one before
    assert all(abs(count - 250) < 5 * (250 * 0.94) ** 0.5 for count in pairs.values())
    again = Routing(4, "random")
    assert [again.choose() for _ in range(50)] == chosen[:50]
    assert Routing(1, "random").choose() == 0


@every_load
def test_least_loaded_of_many(load: str) -> None:
    routing = Routing(40, "least_loaded", load=load)
    rng = np.random.default_rng(3)
    for _ in range(50):
        values = rng.integers(0, 12, 40)
        routing.load(load, *values.tolist())
        assert routing.choose() == int(values.argmin())


@pytest.mark.parametrize("load", TOKENS)
def test_heavy_requests_go_to_the_heavy_clients(load: str) -> None:
    routing = Routing(4, "heavy_light", load=load, threshold=100, heavy_share=0.25)
    sizes = {"output_tokens": {"output": 101}, "tokens_left": {"output": 101}}.get(load, {"prompt": 101})
    equal = {name: size - 1 for name, size in sizes.items()}
    assert routing.choose(**sizes) == 3, "a quarter of four"
    assert routing.choose(**equal) == 0, "exactly the threshold is light"
    routing.load(load, 5, 4, 4, 0)
    assert routing.choose() == 1
    assert routing.choose(**sizes) == 3
    routing.load(load, 5, 4, 3, 99)
    assert (routing.choose(), routing.choose(**sizes)) == (2, 3)


def test_the_size_that_counts_is_that_of_the_load() -> None:
    for load, prompt, output, heavy in (
        ("input_tokens", 50, 500, False), ("input_tokens", 500, 50, True), ("kv_tokens", 500, 50, True),
        ("output_tokens", 500, 50, False), ("output_tokens", 50, 500, True), ("tokens_left", 50, 500, True),
    ):
        routing = Routing(2, "heavy_light", load=load, threshold=100)
        assert routing.choose(prompt, output) == int(heavy)


@pytest.mark.parametrize(
    ("count", "share", "light"), [(4, 0.5, 2), (5, 0.5, 2), (3, 0.01, 2), (3, 0.99, 1), (2, 0.9, 1), (10, 0.3, 7)]
)
def test_both_subsets_have_clients(count: int, share: float, light: int) -> None:
    """The heavy subset is the last ceil(share x count), of which at least one, and at least one is left."""
    routing = Routing(count, "heavy_light", threshold=100, heavy_share=share)
    assert routing.choose(prompt=101) == light
    routing.load("input_tokens", *[1] * (light - 1), 0, *[1] * (count - light))
    assert routing.choose(prompt=1) == light - 1


def test_a_single_client_takes_heavy_and_light() -> None:
    routing = Routing(1, "heavy_light", threshold=100)
    assert [routing.choose(prompt=1), routing.choose(prompt=101)] == [0, 0]


@every_load
def test_power_of_two_takes_the_less_loaded_of_its_two(load: str) -> None:
    routing = Routing(5, "power_of_two", load=load)
    routing.load(load, 10, 20, 30, 40, 50)
    seen = Counter(routing.choose() for _ in range(5000))
    # Of the pairs of five, client i is the lesser of 4 - i, of ten in all.
    for client in range(5):
        assert seen[client] / 5000 == pytest.approx((4 - client) / 10, abs=0.03)


def test_power_of_two_takes_the_first_drawn_of_equals() -> None:
    routing = Routing(5, "power_of_two")
    seen = Counter(routing.choose() for _ in range(5000))
    assert all(count / 5000 == pytest.approx(0.2, abs=0.03) for count in seen.values())
    assert Routing(1, "power_of_two").choose() == 0


def test_power_of_two_draws_from_its_own_stream() -> None:
    first, same, other = (Routing(9, "power_of_two", seed=seed) for seed in (1, 1, 2))
    draws = [[routing.choose() for _ in range(2000)] for routing in (first, same, other)]
    assert draws[0] == draws[1] != draws[2]


@every_load
def test_sessions_stay_where_they_began(load: str) -> None:
    routing = Routing(3, "session", load=load)
    routing.load(load, 5, 2, 9)
    assert routing.choose(session=7) == 1
    routing.load(load, 0, 9, 1)
    assert routing.choose(session=7) == 1
    assert routing.choose(session=8) == 0
    routing.load(load, 9, 9, 1)
    assert [routing.choose(session=s) for s in (8, 7, -1, -1)] == [0, 1, 2, 2]
    routing.load(load, 9, 1, 1)
    assert routing.choose(session=-1) == 1, "without a session there is no home"


@every_load
def test_locality_takes_the_nearest_and_the_least_loaded_of_equals(load: str) -> None:
    routing = Routing(4, "locality", load=load, transfers={0: 500, 1: 200, 2: 200, 3: 900})
    routing.load(load, 0, 7, 6, 0)
    assert routing.choose() == 2
    routing.load(load, 0, 6, 6, 0)
    assert routing.choose() == 1


@pytest.mark.parametrize("kind", [kind for kind in ROUTERS if kind != "mixed_pool"])
def test_unknown_settings_are_refused(kind: str) -> None:
    with pytest.raises(ValidationError):
        ROUTERS.get(kind).model_validate({"kind": kind, "loads": "input_tokens"})
