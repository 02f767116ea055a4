"""Everything on at which requests can be lost, in one scenario, run by run and step by step."""

import pytest
from conservation import assert_steps_give_the_same
from everything import check, scenario


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
