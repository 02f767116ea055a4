"""Everything on at which requests can be lost, in one scenario, run by run and step by step."""

import gc

import pytest
from conservation import assert_steps_give_the_same
from everything import check, scenario

from hermes.config.streams import stream
from hermes.core.request import Request
from hermes.gateway import config
from hermes.gateway.config import draws
from hermes.gateway.fairness import Flow, Held
from hermes.scenario import load_scenario
from hermes.scenario.build import build


def test_nothing_is_lost_with_everything_on() -> None:
    data = scenario(1500, seed=3, often=8.0)
    record = check(data)
    assert (record.status == 1).sum() > 500
    assert len(record.membership) > 20


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_step_by_step_it_is_the_same(seed: int) -> None:
    data = scenario(20_000, seed=seed)
    record = check(data)
    assert (record.status == 2).sum() > 100
    assert len(record.attempts["call"]) > 20_000
    assert_steps_give_the_same(data, record)


def test_what_is_over_is_not_kept_in_memory() -> None:
    """Without garbage collection, as runs are: cycles of references would stay, and timers that come much later."""
    data = scenario(800, often=8.0) | {"horizon": 12.0}
    data["workload"].pop("patience")   # short: they may keep what is over
    data["workload"]["retry"].update(per_try=900.0, backoff=0.05)
    data["gateway"]["timeout"] = 900.0
    data["gateway"]["retry"].pop("per_try")
    gc.collect()
    gc.disable()
    try:
        simulation = build(load_scenario(data))
        record = simulation.run()
        kept = [each for each in gc.get_objects() if type(each) is Request]
    finally:
        gc.enable()
    under_way = {each.id for each in kept if not each.over}   # with the offers before
    over = {each.id for each in kept} - under_way
    assert (record.status == 1).sum() > 300
    assert len(record.offers["request"]) > 20
    assert len(over) < 20


def test_a_flow_keeps_no_calls_that_have_left() -> None:
    """Calls that leave from behind the head, as those that expire do: the heap has at most twice the others, and 17."""
    flow = Flow(0)
    held = [Held(None, [], number, 0, 0, 0, 0, 0, 0) for number in range(1000)]   # type: ignore[arg-type]  # no call is read
    for one in held:
        flow.add(one)
    order = [*range(1, 900), *range(999, 899, -1), 0]
    for place, number in enumerate(order):
        assert flow.head() is held[min(order[place:])]
        held[number].waits = False
        flow.left()
        assert len(flow._heap) <= 2 * flow.count + 17
    assert not flow.count


def test_draws_are_those_of_one_stream_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of requests whose stream was let go in between."""
    monkeypatch.setattr(config, "STREAMS", 2)
    draw = draws(7, "backoff")
    found: dict[int, list[float]] = {}
    for request in (1, 2, 3, 1, 1, 4, 5, 2, 1, 3):
        found.setdefault(request, []).append(draw(request))
    for request, numbers in found.items():
        assert numbers == stream(7, f"backoff/{request}").random(len(numbers)).tolist()
