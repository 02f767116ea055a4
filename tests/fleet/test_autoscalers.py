"""All autoscalers: over random parameters, loads and crashes nothing is lost, and runs decide as single steps do."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes import simulate
from hermes.core.record import DOWN, DRAINING, GONE, READY, STARTING

SCALING = {"scale_up": {"window": 0.1, "pods": 2, "period": 0.2},
           "scale_down": {"window": 0.4, "pods": 2, "period": 0.2}}
METRIC = st.sampled_from(["waiting", "running", "kv_use"])
TARGET = st.sampled_from([0.2, 1.0, 3.0])


def one_of(**keys: Any) -> Any:
    return st.fixed_dictionaries({key: value if isinstance(value, st.SearchStrategy) else st.just(value)
                                  for key, value in keys.items()})


KEDA = one_of(kind="keda", polling=st.sampled_from([0.1, 0.5]), cooldown=st.sampled_from([0.0, 0.7]), sync=0.1,
              scrape=st.sampled_from([0.05, 0.3]), min=st.integers(0, 1), **SCALING,
              triggers=st.lists(one_of(metric=st.sampled_from(["queue", "waiting", "running"]), target=TARGET),
                                min_size=1, max_size=2))
WVA = one_of(kind="wva", interval=st.sampled_from([0.2, 0.5]), window=0.4, scrape=0.1, sync=0.1, tolerance=0.0,
             scale_to_zero=st.booleans(), retention=st.sampled_from([0.3, 1.0]), poll=0.02,
             kv_threshold=st.sampled_from([0.3, 0.8]), queue_spare=st.sampled_from([0.0, 3.0]), **SCALING)
KPA = one_of(kind="kpa", metric=METRIC, target=TARGET, period=0.1, window=0.6, panic_window=0.2,
             down_cooldown=st.sampled_from([0.0, 0.5]), intended=st.booleans())
APA = one_of(kind="apa", metric=METRIC, target=TARGET, period=st.sampled_from([0.1, 0.3]), window=0.6,
             down_cooldown=st.sampled_from([0.0, 0.5]), intended=st.booleans())
EASY = one_of(kind="dynamo_planner", target=st.sampled_from(["throughput", "latency"]), load_interval=0.1)
SLA = one_of(kind="dynamo_planner", target="sla", load_scaling=st.booleans(), ttft=st.sampled_from([0.005, 0.1]),
             itl=st.sampled_from([0.003, 0.02]), load_interval=0.05, throughput_interval=0.5,
             predictor=st.sampled_from(["constant", "kalman"]))
GROUP = {"memory": {"num_blocks": 60}, "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}}


def check(first: Any, second: Any, count: int) -> None:
    """Both ways through a step give the same record; each slot goes through states in their order; nothing is lost."""
    assert np.array_equal(first.membership, second.membership)
    assert first.membership_reasons == second.membership_reasons
    assert np.array_equal(first.finish_ns, second.finish_ns)
    assert np.array_equal(first.status, second.status)
    after = {STARTING: {READY, GONE, DOWN}, READY: {DRAINING, DOWN}, DRAINING: {GONE}, GONE: {STARTING},
             DOWN: {STARTING}}
    now: dict[int, int] = {}
    for client, _, _, state in first.membership.tolist():
        assert client not in now or state in after[now[client]], (now[client], state)
        now[client] = state
    assert len(now) == count
    assert set(first.status.tolist()) <= {1, 2}
    rejected = np.flatnonzero(first.status == 2).tolist()
    assert set(rejected) == set(first.reject_reasons)


@quick_and_full(6, 60, thorough=200, derandomize=True)
@given(data=st.data())
def test_one_group_loses_nothing(data: st.DataObject) -> None:
    autoscaler = data.draw(st.one_of(KEDA, WVA, KPA, APA, EASY, SLA))
    own: dict[str, Any] = {"start": data.draw(st.integers(0, 3)), "autoscaler": autoscaler,
                           "start_up": {"total": data.draw(st.sampled_from([0.0, 0.1, 0.5]))}}
    if data.draw(st.booleans()):
        own["crashes"] = [{"at": at, "replica": n} for at, n in ((0.3, 0), (0.9, 1))]
        own["probe"] = {"period": 0.1, "failures": 1, "delay": 0.05}
    scenario = {
        "seed": data.draw(st.integers(0, 3)),
        "workload": {"requests": 80, "arrivals": {"kind": "mmpp", "rates": [data.draw(st.sampled_from([40, 300])), 2],
                                                  "dwells": [0.3, 1.0]},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": data.draw(st.sampled_from([1, 32]))}},
        "clients": [GROUP | {"name": "llm", "count": 4, "fleet": own}],
        "gateway": {"retries": 2, "queue": {"ttl": data.draw(st.sampled_from([0.2, 5.0]))}},
    }
    check(*(simulate({**scenario, "stepping": stepping}).record for stepping in ("runs", "every_step")), 4)


@quick_and_full(3, 40, thorough=120, derandomize=True)
@given(data=st.data())
def test_groups_that_are_scaled_together_lose_nothing(data: st.DataObject) -> None:
    split = data.draw(st.booleans())
    autoscaler = data.draw(st.one_of(EASY, SLA) if split else WVA)
    roles = ("prefill", "decode") if split else ("both", "both")
    scenario = {
        "seed": data.draw(st.integers(0, 3)),
        "workload": {"requests": 80, "arrivals": {"kind": "mmpp", "rates": [data.draw(st.sampled_from([40, 300])), 2],
                                                  "dwells": [0.3, 1.0]},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 32}},
        "clients": [GROUP | {"name": name, "role": role, "count": 3, "fleet": {
            "start": data.draw(st.integers(1, 3)), "start_up": {"total": data.draw(st.sampled_from([0.0, 0.3]))}}}
            for name, role in zip("ab", roles, strict=True)],
        "gateway": {"queue": {"ttl": 5.0}},
        "autoscalers": [{"groups": ["a", "b"], "autoscaler": autoscaler}],
    }
    check(*(simulate({**scenario, "stepping": stepping}).record for stepping in ("runs", "every_step")), 6)
