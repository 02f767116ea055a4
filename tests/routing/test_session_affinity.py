"""Sessions with hard and soft affinity, a time to live, and rebinding: by hand."""

from __future__ import annotations

from typing import Any

import pytest
from each import each
from stand_ins import Routing

from hermes.errors import InputError
from hermes.scenario import load_scenario

SECOND = 10**9


def test_hard_affinity_stays_whatever_the_load() -> None:
    routing = Routing(3, "session", load="requests")
    assert routing.choose(session=7) == 0
    routing.load("requests", 99, 0, 0)
    assert routing.choose(session=7) == 0
    assert routing.choose(session=8) == 1


@each("rebind, then", [(True, 1), (False, 0)])
def test_soft_affinity_goes_elsewhere_above_its_slack(rebind: bool, then: int) -> None:
    routing = Routing(3, "session", load="kv_tokens", affinity="soft", slack=10, rebind=rebind)
    assert routing.choose(session=7) == 0
    routing.load("kv_tokens", 15, 5, 6)
    assert routing.choose(session=7) == 0, "10 above the least"
    routing.load("kv_tokens", 16, 5, 6)
    assert routing.choose(session=7) == 1, "11 above the least"
    routing.load("kv_tokens", 0, 0, 0)
    assert routing.choose(session=7) == then
    assert routing.choose() == 0


def test_a_session_that_sends_nothing_is_bound_no_longer() -> None:
    routing = Routing(2, "session", load="kv_tokens", ttl=10.0)
    now = 0
    routing.router._now_ns = lambda: now   # type: ignore[attr-defined]
    assert routing.choose(session=1) == 0
    routing.load("kv_tokens", 9, 0)
    now = 10 * SECOND - 1
    assert routing.choose(session=1) == 0, "used within its time, and for another 10 s"
    now = 20 * SECOND - 2
    assert routing.choose(session=1) == 0
    now = 30 * SECOND - 2
    assert routing.choose(session=1) == 1
    assert list(routing.router._used) == [1]   # type: ignore[attr-defined]
    assert routing.choose(session=2) == 1
    now = 99 * SECOND
    assert routing.choose(session=3) == 1
    assert list(routing.router._homes) == [3], "the others have expired"   # type: ignore[attr-defined]


def test_sessions_of_clients_that_leave_find_another() -> None:
    routing = Routing(3, "session", load="requests", affinity="soft", slack=5, ttl=100.0)
    assert routing.choose(session=1) == 0
    routing.router.changed(routing.clients[1:])   # type: ignore[attr-defined]
    routing.load("requests", 0, 2, 1)
    assert routing.choose(session=1) == 2
    routing.router.changed(routing.clients)   # type: ignore[attr-defined]
    assert routing.choose(session=1) == 2


@each("router, words", [
    ({"affinity": "soft"}, "router.slack: goes with `affinity: soft`; give both"),
    ({"slack": 3}, "router.slack: goes with `affinity: soft`"),
    ({"rebind": False}, "router.rebind: a session with hard affinity never goes elsewhere"),
    ({"ttl": 0}, "router.ttl"), ({"affinity": "firm"}, "router.affinity"),
])
def test_mistakes_are_refused_by_name(router: dict[str, Any], words: str) -> None:
    made = {"workload": {"requests": 1, "arrivals": {"kind": "at_once"},
                         "lengths": {"kind": "fixed", "prompt": 8, "output": 2}},
            "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm"}], "router": {"kind": "session", **router}}
    with pytest.raises(InputError) as caught:
        load_scenario(made)
    assert words in str(caught.value)
