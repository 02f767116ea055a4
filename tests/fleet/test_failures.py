"""Crashes, attempts and time-outs over random scenarios: nothing is lost, nothing leaks, runs equal single steps."""

from __future__ import annotations

from typing import Any

import pytest
from conservation import (
    assert_conserved,
    assert_migrations_add_up,
    assert_nothing_leaks,
    assert_steps_give_the_same,
    assert_tokens_add_up,
    ran,
)
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.errors import InputError
from hermes.scenario import load_scenario
from hermes.scenario.build import build

SCHEDULERS = ("chunked", "continuous", "static", "mixed", "sglang")
HARDWARE = {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}
HOPS: tuple[dict[str, Any], ...] = (
    {}, {}, {"delay": 0.01}, {"capacity": 60.0, "backlog": 2}, {"replicas": 2, "spread": "random", "delay": 0.005},
    {"delay": 0.02, "capacity": 100.0, "replicas": 3})
BUDGET = {"share": 0.1, "min": 1}
RETRIES: tuple[dict[str, Any] | None, ...] = (
    None, {"kind": "envoy", "per_try": 0.2, "begun": "restart", "budget": BUDGET},
    {"kind": "openai", "retries": 3, "backoff": 0.02, "per_try": 0.3},
    {"kind": "sglang", "backoff": 0.01, "breaker": {"failures": 2, "successes": 2, "time": 0.2}, "begun": "restart"},
    {"kind": "litellm", "cooldown": {"allowed_fails": 0, "time": 0.1}, "budget": BUDGET},
    {"kind": "sglang", "retries": 2, "per_try": 0.1, "breaker": None})
OF_CLIENTS: tuple[dict[str, Any] | None, ...] = (
    None, {"kind": "envoy", "retries": 2, "begun": "restart", "budget": BUDGET},
    {"kind": "openai", "backoff": 0.05, "per_try": 0.2, "begun": "restart"}, {"kind": "openai", "per_try": 0.4})
MIGRATIONS: tuple[dict[str, Any] | None, ...] = (
    None, {"limit": 1}, {"limit": 3, "idle": 0.2}, {"limit": 2, "max_seq_len": 250}, {"limit": 4, "idle": 0.05})
times = st.integers(1, 60).map(lambda n: n / 20)


def failures(draw: Any, slots: int) -> list[dict[str, Any]]:
    """Return a few failures of all kinds, of which those at random times are of different ones."""
    found = []
    for kind in draw(st.lists(st.sampled_from(["crash", "hang", "straggler", "reclaim", "node"]), max_size=4)):
        one: dict[str, Any] = {"kind": kind}
        if draw(st.booleans()) and all(kind != other["kind"] or "at" in other for other in found):
            one["every"] = {"mean": draw(st.sampled_from([1.0, 4.0])), "shape": draw(st.sampled_from([0.7, 1.0, 2.0]))}
        else:
            one |= {"at": draw(times), "replica": draw(st.integers(0, slots - 1))}
        if kind == "hang":
            one |= {"lasts": draw(st.sampled_from([0.05, 0.7])), "answers_probes": draw(st.booleans())}
        elif kind == "straggler":
            one |= {"factor": draw(st.sampled_from([1.5, 4.0])), "lasts": draw(st.sampled_from([None, 0.3]))}
        elif kind == "reclaim":
            one["notice"] = draw(st.sampled_from([0.0, 0.1, 2.0]))
        elif kind == "node":
            one |= {"repair": draw(st.sampled_from([0.1, 1.0])), "notice": draw(st.sampled_from([0.0, 0.2])),
                    "evict": draw(st.sampled_from([None, 0.0, 0.3]))}
        found.append(one)
    return found


def fleet(draw: Any, count: int) -> dict[str, Any]:
    crashes = draw(st.lists(st.fixed_dictionaries({"at": times, "replica": st.integers(0, count - 1)}), max_size=5))
    changes = draw(st.lists(st.tuples(times, st.integers(1, count)), max_size=3, unique_by=lambda one: one[0]))
    schedule = {"kind": "schedule", "changes": [{"at": at, "replicas": n} for at, n in sorted(changes)]}
    start = draw(st.integers(1, count))
    if not changes:   # no other slot has a replica, ever
        crashes = [{**crash, "replica": crash["replica"] % start} for crash in crashes]
    return {"start": start, "start_up": {"total": draw(st.sampled_from([0.0, 0.1, 1.0]))},
            "crashes": crashes, "failures": failures(draw, count if changes else start),
            "restarts": {"backoff": draw(st.sampled_from([0.0, 0.2])), "max_backoff": 0.5},
            "liveness": draw(st.sampled_from([None, {"period": 0.1, "failures": 2, "timeout": 0.02, "grace": 0.05}])),
            "autoscaler": schedule if changes else {"kind": "static"},
            "drain": draw(st.sampled_from([{"grace": None}, {"grace": 0.2}, {"grace": 0.2, "end": "cancel"},
                                           {"grace": 0.5, "pre_stop": 0.3}])),
            "probe": {"period": draw(st.sampled_from([0.05, 0.5])), "failures": draw(st.integers(1, 3)),
                      "delay": draw(st.sampled_from([0.0, 0.1]))}}


@st.composite
def scenarios(draw: Any, schedulers: tuple[str, ...] = SCHEDULERS) -> dict[str, Any]:
    scheduler = draw(st.sampled_from(schedulers))
    blocks = draw(st.sampled_from([40, 400]))
    client: dict[str, Any] = {
        "name": "llm", "count": 3, "model": "llama-3.1-8b", "hardware": HARDWARE,
        "scheduler": {"kind": scheduler, "max_num_seqs": 8}, "memory": {"num_blocks": blocks}}
    if scheduler == "sglang":   # a block of one token
        client |= {"scheduler": {"kind": scheduler}, "memory": {"num_blocks": 16 * blocks}}
    if draw(st.booleans()):
        client["frontend"] = {"before": "3ms", "after": "1ms"}
    if draw(st.integers(0, 3)) == 0:
        client["request_overhead"] = {"mode": "overlapped", "generate": "2ms"}
    gateway = {
        "retries": draw(st.integers(0, 3)), "begun": draw(st.sampled_from(["fail", "restart"])),
        "backoff": draw(st.sampled_from([0.0, 0.05, 0.4])),
        "per_try": draw(st.sampled_from([None, 0.1, 0.5])), "timeout": draw(st.sampled_from([None, 0.3, 1.0])),
        "cancel_delay": draw(st.sampled_from([0.0, 0.05])),
        "queue": draw(st.sampled_from([None, {"ttl": 0.2}, {"ttl": 30.0, "max": 5}])),
        "migration": draw(st.sampled_from(MIGRATIONS)),
        **draw(st.sampled_from(HOPS)),
    }
    if draw(st.booleans()):
        own, behind = draw(st.sampled_from(RETRIES)), draw(st.sampled_from(RETRIES))
        if own is not None and behind is not None and {own["kind"], behind["kind"]} <= {"sglang", "litellm"}:
            behind = None   # both might keep replicas out
        if own is not None:
            gateway = {key: value for key, value in gateway.items()
                       if key not in ("retries", "begun", "backoff", "per_try")} | {"retry": own}
        gateway["router_retry"] = behind
    if draw(st.integers(0, 3)) == 0 and scheduler == "chunked":
        client["scheduler"]["max_num_queued_reqs"] = 6
    workload: dict[str, Any] = {
        "retry": draw(st.sampled_from(OF_CLIENTS)), "requests": 60,
        "arrivals": {"kind": "poisson", "rate": draw(st.sampled_from([10.0, 40.0, 200.0]))},
        "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 5, "max": 300},
                    "output": {"kind": "uniform", "min": 1, "max": 60}}}
    if draw(st.integers(0, 2)) == 0:
        workload["patience"] = draw(st.sampled_from([{"total": "400ms"}, {"first_token": "100ms"}]))
    if scheduler in ("chunked", "continuous", "static") and draw(st.integers(0, 2)) == 0:
        workload["branches"] = 2
    data = {"seed": draw(st.integers(0, 1000)), "workload": workload, "gateway": gateway,
            "router": {"kind": draw(st.sampled_from(["round_robin", "least_loaded", "power_of_two"]))}}
    if scheduler in ("chunked", "continuous", "mixed") and draw(st.booleans()):
        client["count"] = 2
        data |= {"network": {"kind": "link", "bandwidth": draw(st.sampled_from(["50 MB/s", "5 GB/s"]))},
                 "kv_transfer": draw(st.sampled_from(["full", "layerwise"])),
                 "kv_transfer_retry": draw(st.sampled_from([None, 0.05])),
                 "first_token": draw(st.sampled_from(["decode", "prefill"]))}
        node = draw(st.sampled_from([None, "n{i}"]))   # each with a prefill and a decode client
        clients = [client | {"name": role, "role": role, "platform": node, "fleet": fleet(draw, 2)}
                   for role in ("prefill", "decode")]
    else:
        clients = [client | {"fleet": fleet(draw, 3)}]
    return data | {"clients": clients}


@pytest.mark.feature("Plug-ins of research", (
    "Crashes at given times, readiness probes (`fleet.crashes`, `fleet.probe`); attempts, back-off, "
    "time-outs, queue (`gateway`)"))
@quick_and_full(10, 75, thorough=2000)
@given(scenarios())
def test_whatever_fails_nothing_is_lost(data: dict[str, Any]) -> None:
    simulation, record = ran(data)
    assert_nothing_leaks(simulation)
    assert_conserved(record)
    assert_migrations_add_up(record)
    if data["clients"][0]["name"] == "llm" and data["clients"][0]["scheduler"]["kind"] in ("chunked", "continuous"):
        assert_tokens_add_up(record)
    assert_steps_give_the_same(data, record)




def test_a_crash_of_a_slot_that_never_has_a_replica_is_refused() -> None:
    """Of three slots one has a replica, and with a spare two; an autoscaler or a rolling update may fill all."""
    def made(replica: int, **keys: Any) -> dict[str, Any]:
        own = {"start": 1, "start_up": {"total": 0.0}, "crashes": [{"at": 1.0, "replica": replica}], **keys}
        return {"clients": [{"name": "llm", "count": 3, "model": "llama-3.1-8b", "hardware": HARDWARE, "fleet": own}],
                "gateway": {"retries": 1},
                "workload": {"requests": 1, "arrivals": {"kind": "at_once"},
                             "lengths": {"kind": "fixed", "prompt": 10, "output": 1}}}

    spare = {"spares": {"count": 1, "wake": 0.1}}
    moves = {"autoscaler": {"kind": "schedule", "changes": [{"at": 0.5, "replicas": 3}]}}
    for replica, keys, most in ((1, {}, 1), (2, spare, 2)):
        said = rf"crashes\.0\.replica: expected a slot below {most}, the replicas that there are: no other slot is used"
        with pytest.raises(InputError, match=said):
            build(load_scenario(made(replica, **keys)))
    for replica, keys in ((0, {}), (1, spare), (2, moves), (2, {"updates": [{"at": 0.5}]})):
        build(load_scenario(made(replica, **keys)))
