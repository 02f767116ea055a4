"""Rolling updates: by hand, and over random limits, scales and crashes."""

from __future__ import annotations

from typing import Any

import pytest
from conservation import assert_conserved, assert_nothing_leaks, ran
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.core.record import DOWN, DRAINING, GONE, READY, STARTING
from hermes.errors import InputError
from hermes.fleet.rolling import Update, moves
from hermes.scenario import load_scenario

S = 1_000_000_000


def scenario(start: int, count: int, updates: list[dict[str, Any]], **own: Any) -> dict[str, Any]:
    client = {"name": "llm", "count": count, "model": "llama-3.1-8b", "memory": {"num_blocks": 400},
              "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
              "fleet": {"start": start, "start_up": {"total": 1.0}, "updates": updates, **own}}
    return {"clients": [client], "gateway": {"retries": 5, "backoff": 0.2, "begun": "restart", "queue": {"ttl": 60.0}},
            "workload": {"requests": 200, "arrivals": {"kind": "poisson", "rate": 20},
                         "lengths": {"kind": "fixed", "prompt": 64, "output": 16}}}


def changes(record: Any, *states: int) -> list[tuple[int, float, int]]:
    return [(client, time / S, state) for client, _, time, state in record.membership.tolist()
            if state in states and time]


@pytest.mark.feature("Plug-ins of research", "Rolling updates of replicas (`fleet.updates`)")
def test_three_with_a_surge_of_one_by_hand() -> None:
    """One new replica starts at 2 s, and is ready at 3 s: the newest old one (slot 2) drains, and the next new one
    starts, in slot 4 since slot 2 is not free yet. So at 4 s and 5 s; at 5 s all three are new."""
    _simulation, record = ran(scenario(3, 5, [{"at": 2.0, "surge": 1, "unavailable": 0}]))
    assert changes(record, STARTING, READY, DRAINING) == [
        (3, 2.0, STARTING), (3, 3.0, READY), (2, 3.0, DRAINING), (4, 3.0, STARTING),
        (4, 4.0, READY), (1, 4.0, DRAINING), (2, 4.0, STARTING), (2, 5.0, READY), (0, 5.0, DRAINING)]
    assert (record.status == 1).all()


def test_three_with_one_that_may_be_lacking_by_hand() -> None:
    """Without a surge an old one drains at once, and a new one starts as soon as its slot is free."""
    _simulation, record = ran(scenario(3, 3, [{"at": 2.0, "surge": 0, "unavailable": 1}]))
    gone = {client: time for client, time, _ in changes(record, GONE)}
    drains = [(client, time) for client, time, state in changes(record, DRAINING)]
    starts = [(client, time) for client, time, state in changes(record, STARTING)]
    assert drains[0] == (2, 2.0)
    assert starts[0] == (2, gone[2])
    assert drains[1] == (1, pytest.approx(gone[2] + 1.0, abs=1e-9))
    assert [client for client, _ in drains] == [2, 1, 0]
    assert [client for client, _ in starts] == [2, 1, 0]
    assert (record.status == 1).all()


def test_shares_are_rounded_as_kubernetes_does() -> None:
    assert Update(at=0).limits(3) == (1, 0)
    assert Update(at=0).limits(10) == (3, 2)
    assert Update(at=0, surge="0%", unavailable="10%").limits(5) == (0, 1)
    assert Update(at=0, surge=2, unavailable="50%").limits(5) == (2, 2)


@pytest.mark.parametrize(("state", "expected"), [
    # wanted, surge, unavailable, new, new ready, old, old ready -> start, not ready, ready
    ((10, 3, 2, 0, 0, 10, 10), (3, 0, 2)),   # three more start, two old ones go: 8 are ready, 13 in all
    ((10, 3, 2, 3, 0, 8, 8), (2, 0, 0)),     # two places of the surge are free
    ((10, 3, 2, 5, 5, 8, 8), (0, 0, 5)),     # five are ready: five old ones may go
    ((10, 0, 2, 0, 0, 10, 10), (0, 0, 2)),
    ((10, 3, 0, 0, 0, 10, 7), (3, 0, 0)),    # too few are ready: nothing that is ready goes
    ((10, 3, 2, 0, 0, 10, 8), (3, 2, 0)),    # the two that are not ready go first
    ((3, 1, 0, 3, 3, 1, 1), (0, 0, 1)),
])
def test_what_may_happen_now(state: tuple[int, ...], expected: tuple[int, ...]) -> None:
    wanted, surge, unavailable, new, new_ready, old, old_ready = state
    assert tuple(moves(wanted, surge, unavailable, new=new, new_ready=new_ready, old=old, old_ready=old_ready)
                 ) == expected


@quick_and_full(8, 50, thorough=1000)
@given(start=st.integers(1, 4), free=st.integers(0, 3), surge=st.sampled_from([0, 1, 2, "25%", "100%"]),
       unavailable=st.sampled_from([0, 1, "25%", "50%"]), at=st.sampled_from([0.5, 2.0]),
       again=st.sampled_from([None, 2.5, 4.0]), replicas=st.sampled_from([None, 1, 3]), crash=st.booleans(),
       seed=st.integers(0, 99), spares=st.sampled_from([None, None, 1]))
def test_no_more_and_no_fewer_than_the_limits(start: int, free: int, surge: Any, unavailable: Any, at: float,
                                              again: float | None, replicas: int | None, crash: bool, seed: int,
                                              spares: int | None) -> None:
    if surge in (0, "0%") and unavailable in (0, "0%"):
        unavailable = 1
    update = {"surge": surge, "unavailable": unavailable}
    updates = [{"at": at, **update}] + ([] if again is None else [{"at": again, **update}])
    own: dict[str, Any] = {"crashes": [{"at": at + 0.3, "replica": 0}]} if crash else {}
    if replicas is not None:
        own["autoscaler"] = {"kind": "schedule", "changes": [{"at": at + 1.1, "replicas": min(replicas, start + free)}]}
    if spares is not None and free:
        own["spares"] = {"count": spares}
    data = scenario(start, start + free, updates, **own) | {"seed": seed}
    simulation, record = ran(data)
    assert_nothing_leaks(simulation)
    assert_conserved(record)
    _other, steps = ran(data | {"stepping": "every_step"})
    assert record.membership.tolist() == steps.membership.tolist()
    assert record.finish_ns.tolist() == steps.finish_ns.tolist()
    if crash or replicas is not None or "spares" in own:
        return
    most, lacking = Update.model_validate({"at": 0, **update}).limits(start)
    state = dict.fromkeys(range(start + free), GONE)
    rows = record.membership.tolist()
    for place, (client, _number, time, now) in enumerate(rows):
        state[client] = now
        if not time or (place + 1 < len(rows) and rows[place + 1][2] == time):
            continue
        alive = sum(one in (STARTING, READY, DOWN) for one in state.values())
        ready = sum(one == READY for one in state.values())
        assert alive <= start + most
        assert ready >= start - lacking


@pytest.mark.parametrize(("update", "said"), [
    ({"at": 1, "surge": 0, "unavailable": "0%"}, "no replica can be replaced"),
    ({"at": 1, "surge": "130%"}, "a share of them"), ({"at": 1, "surge": -1}, "a number of replicas from 0"),
])
def test_a_wrong_update_is_one_line(update: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as found:
        load_scenario(scenario(2, 3, [update]))
    assert found.value.field == "clients.0.fleet.updates.0.surge"
