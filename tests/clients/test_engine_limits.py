"""Limits of vLLM's scheduler and API server: what the recordings cannot show, on the clock and by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.api import load_scenario, simulate
from hermes.core.block_hashes import AdapterText
from hermes.core.generation import Generation
from hermes.core.record import STATUS_COMPLETED, STATUS_REJECTED
from hermes.errors import InputError
from hermes.hardware.descriptions.devices import load_device
from hermes.memory import BlockPool
from hermes.scenario.build import build
from hermes.schedulers.adapters import AdapterSlots
from hermes.schedulers.chunked_config import ChunkedConfig
from hermes.schedulers.parts import part_of
from hermes.workload.attributes import Adapters

RANKS = {"model": "qwen3-30b-a3b", "device": "h100-sxm", "parallel": {"dp": 2, "ep": 2}, "frontend": {},
         "memory": {"num_blocks": 500, "block_size": 16, "prefix_caching": False}}
ALONE = {"model": "llama-3.1-8b", "device": "l40s", "memory": {"num_blocks": 300}}
LENGTHS = {"kind": "independent", "prompt": {"kind": "uniform", "min": 20, "max": 900},
           "output": {"kind": "uniform", "min": 2, "max": 60}}


def scenario(client, *, stepping="runs", scheduler=None, **workload):
    return {
        "name": "limits", "seed": 4, "stepping": stepping,
        "workload": {"requests": 40, "arrivals": {"kind": "poisson", "rate": 15}, "lengths": LENGTHS, **workload},
        "clients": [{**client, "scheduler": {"kind": "chunked", "max_num_batched_tokens": 512, **(scheduler or {})}}],
    }


def same(first, second):
    columns = ["ttft_s", "e2e_s"]
    np.testing.assert_array_equal(first.requests[columns].to_numpy(), second.requests[columns].to_numpy())


# -- the cadence of prefills -----------------------------------------------------------------------------------------


@quick_and_full(2, 6)
@given(st.sampled_from([2, 5, 16]), st.booleans(), st.sampled_from([5, 20]))
def test_runs_of_steps_are_single_steps_with_a_cadence(interval, asynchronous, rate):
    scheduler = {"prefill_schedule_interval": interval, "async_scheduling": asynchronous}
    load = {"arrivals": {"kind": "poisson", "rate": rate}}
    runs = simulate(scenario(RANKS, scheduler=scheduler, **load))
    same(runs, simulate(scenario(RANKS, stepping="every_step", scheduler=scheduler, **load)))
    assert runs.summary["requests"]["completed"] == 40


def test_all_ranks_compute_prompts_in_the_same_steps():
    interval = 6
    results = simulate(scenario(
        RANKS, stepping="every_step", requests=30, arrivals={"kind": "poisson", "rate": 40},
        lengths={"kind": "fixed", "prompt": 100, "output": 60},
        scheduler={"prefill_schedule_interval": interval, "async_scheduling": False}))
    runs = results.runs
    starts = {start: number for number, start in enumerate(sorted(runs["start_s"].unique()))}
    first, computing = {}, set()
    for client, start, prompts in runs[["client", "start_s", "prefill_tokens"]].itertuples(index=False):
        if prompts and client in first:   # before its first prompt a rank has no decodes, and defers nothing
            computing.add(starts[start])
        first.setdefault(client, start)
    assert len(computing) > 5
    assert {number % interval for number in computing} == {0}


# -- requests in flight ----------------------------------------------------------------------------------------------


def test_requests_beyond_the_limit_are_rejected():
    at_once = {"requests": 10, "arrivals": {"kind": "at_once"}}
    one = scenario(ALONE, scheduler={"max_num_queued_reqs": 4}, **at_once)
    summary = simulate(one).summary["requests"]
    assert summary["rejected"] == 6
    [(reason, count)] = summary["reject_reasons"].items()
    assert (reason, count) == ("llm: max_num_queued_reqs: no more than 4 requests may wait or run", 6)
    two = {**one, "clients": [{**one["clients"][0], "count": 2}]}   # a router tries another client
    assert simulate(two).summary["requests"]["rejected"] == 2
    branches = scenario(ALONE, scheduler={"max_num_queued_reqs": 4}, branches=3, **at_once)
    assert simulate(branches).summary["requests"]["completed"] == 1


@pytest.mark.parametrize("client", [RANKS, {**ALONE, "parallel": {"pp": 2}}], ids=["ranks", "stages"])
def test_ranks_and_stages_of_one_engine_share_its_limit(client):
    at_once = {"requests": 10, "arrivals": {"kind": "at_once"}}
    one = scenario(client, scheduler={"max_num_queued_reqs": 4}, **at_once)
    assert simulate(one).summary["requests"]["completed"] == 4
    two = {**one, "clients": [{**one["clients"][0], "count": 2}]}
    assert simulate(two).summary["requests"]["completed"] == 8


def test_prompts_that_wait_for_their_first_token_are_limited():
    results = simulate(scenario(
        ALONE, requests=8, arrivals={"kind": "at_once"}, lengths={"kind": "fixed", "prompt": 100, "output": 30},
        scheduler={"max_num_queued_tokens": 250}))
    assert results.summary["requests"]["completed"] == 3   # 0, 100 and 200 tokens wait when they come
    assert "max_num_queued_tokens" in next(iter(results.summary["requests"]["reject_reasons"]))
    later = simulate(scenario(   # each has its first token before the next comes
        ALONE, requests=8, arrivals={"kind": "uniform", "rate": 2}, scheduler={"max_num_queued_tokens": 1},
        lengths={"kind": "fixed", "prompt": 100, "output": 300}))
    assert later.summary["requests"]["completed"] == 8


def apart(decode=None, prefill=None, *, decoders=1, transfer="full", **workload):
    """A client that prefills and some that decode, each with limits of its own."""
    given = scenario(ALONE, **workload)
    [client] = given.pop("clients")
    given["clients"] = [
        {**client, "name": name, "role": name, "count": count, "scheduler": {**client["scheduler"], **(limits or {})}}
        for name, count, limits in (("prefill", 1, prefill), ("decode", decoders, decode))]
    return given | {"kv_transfer": transfer}


def assert_conserved(given):
    """Nothing is held when all is over; the same in both modes."""
    simulation = build(load_scenario(given))
    record = simulation.run()
    steps = build(load_scenario(given | {"stepping": "every_step"})).run()
    for name in ("status", "finish_ns"):
        assert getattr(record, name).tolist() == getattr(steps, name).tolist()
    assert record.reject_reasons == steps.reject_reasons
    for client in simulation.clients:
        client.scheduler.plan(1)
        assert client.scheduler.pool.free_blocks == client.scheduler.pool.num_blocks
        assert (client.num_assigned, client.input_tokens, client.output_tokens, client.emitted) == (0, 0, 0, 0)
    return record


@pytest.mark.feature("LLM clients", "Limits of requests in flight at clients that decode for others")
@pytest.mark.parametrize("transfer", ["full", "layerwise"])
def test_a_decode_client_turns_requests_away_when_their_prompts_are_computed(transfer):
    """Ten requests at once: all prompts are computed, the first four are decoded, the others end with their prefill."""
    given = apart({"max_num_queued_reqs": 4}, transfer=transfer, requests=10, arrivals={"kind": "at_once"},
                  lengths={"kind": "fixed", "prompt": 500, "output": 400})
    record = assert_conserved(given)
    assert record.status.tolist() == [STATUS_COMPLETED] * 4 + [STATUS_REJECTED] * 6
    assert set(record.reject_reasons.values()) == {
        "decode on decode: max_num_queued_reqs: no more than 4 requests may wait or run"}
    assert np.bincount(record.stages["client"]).tolist() == [10, 4]
    assert len(record.transfers["start_ns"]) == 4


def test_another_decode_client_is_tried():
    load = {"requests": 10, "arrivals": {"kind": "at_once"}, "lengths": {"kind": "fixed", "prompt": 500, "output": 400}}
    record = assert_conserved(apart({"max_num_queued_reqs": 4}, decoders=2, **load))
    assert (record.status == STATUS_COMPLETED).sum() == 8


def test_kv_that_moves_counts_at_the_decode_client():
    """Each KV takes 0.5 s to move: at most two requests are in flight there, and none has a token for that long."""
    given = apart({"max_num_queued_reqs": 2}, requests=6, arrivals={"kind": "at_once"},
                  lengths={"kind": "fixed", "prompt": 512, "output": 2})
    given["network"] = {"kind": "kv_link", "bandwidth": 512 * 131072 / 0.5}
    record = assert_conserved(given)
    assert (record.status == STATUS_COMPLETED).sum() == 2
    tokens = apart({"max_num_queued_tokens": 1000}, requests=6, arrivals={"kind": "at_once"},
                   lengths={"kind": "fixed", "prompt": 512, "output": 2}) | {"network": given["network"]}
    assert (assert_conserved(tokens).status == STATUS_COMPLETED).sum() == 2   # 0 and 512 prompt tokens wait


def test_a_prefill_client_has_a_request_until_its_prompt_is_computed():
    """Requests that are decoded elsewhere for seconds do not count where their prompts were computed."""
    given = apart(prefill={"max_num_queued_reqs": 1}, requests=8, arrivals={"kind": "uniform", "rate": 2},
                  lengths={"kind": "fixed", "prompt": 100, "output": 300})
    assert (assert_conserved(given).status == STATUS_COMPLETED).all()


# -- adapters --------------------------------------------------------------------------------------------------------

ADAPTERS = {"adapters": {"count": 5, "fraction": 0.8, "weights": [5, 3, 2, 1, 1]}}


@pytest.mark.parametrize("lengths", [LENGTHS, {"kind": "conversations", "turns": 3, "system_tokens": 64, "message": 60,
                                               "output": 40, "think_time": 0.5}], ids=["prompts", "conversations"])
def test_runs_of_steps_are_single_steps_with_adapters(lengths):
    client = {**ALONE, "adapter_bytes": "100 MB"}
    runs = simulate(scenario(client, scheduler={"max_loras": 2}, lengths=lengths, **ADAPTERS))
    steps = simulate(scenario(client, scheduler={"max_loras": 2}, lengths=lengths, stepping="every_step", **ADAPTERS))
    same(runs, steps)
    np.testing.assert_array_equal(runs.requests["cached_tokens"], steps.requests["cached_tokens"])


@pytest.mark.feature("LLM clients", (
    "Its limits: LoRA slots (`adapters`), the cadence of prefills among ranks, requests in flight"))
def test_a_first_use_waits_for_the_adapter():
    load = {"requests": 1, "lengths": {"kind": "fixed", "prompt": 100, "output": 30}, "adapters": {"count": 1}}
    before = simulate(scenario(ALONE, scheduler={"max_loras": 1}, **load)).requests
    after = simulate(scenario({**ALONE, "adapter_bytes": "200 MB"}, scheduler={"max_loras": 1}, **load)).requests
    expected = 200e6 / load_device("l40s", None).host_bandwidth
    for column in ("ttft_s", "e2e_s"):
        assert after[column][0] - before[column][0] == pytest.approx(expected, abs=2e-9)


def test_the_adapter_used_least_recently_goes_first():
    scheduler = ChunkedConfig(max_num_batched_tokens=64, max_loras=2).build(BlockPool(100, 16), every_step=False)
    slots = part_of(scheduler, AdapterSlots)
    assert slots is not None
    loads = []
    for number in (1, 2, 1, 3, 1, 2):   # one after the other: 3 takes the place of 2, then 2 that of 3
        scheduler.enqueue(Generation(20, 1, content=AdapterText(number, None)))
        plan = scheduler.plan(10)
        [seq] = scheduler.complete(plan, 1, 0, 0)
        scheduler.release(seq)
        loads.append(slots.take_loads())
    assert loads == [1, 1, 0, 1, 0, 1]


def test_prompts_share_blocks_within_an_adapter():
    load = {"requests": 60, "prefixes": {"groups": 1, "tokens": 160}, "arrivals": {"kind": "uniform", "rate": 1},
            "lengths": {"kind": "fixed", "prompt": 200, "output": 4}}
    hits = simulate(scenario(ALONE, scheduler={"max_loras": 3}, adapters={"count": 3}, **load)).requests
    assert (hits["cached_tokens"] == 160).sum() == 57   # all but the first of each adapter
    assert (hits["cached_tokens"] == 0).sum() == 3


def test_adapters_are_drawn_by_weight():
    drawn = Adapters(count=3, weights=[6, 3, 1], fraction=0.5).draw(20_000, np.random.default_rng(1))
    shares = np.bincount(drawn) / len(drawn)
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.15, 0.05], atol=0.02)


# -- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("client", "scheduler", "said"), [
    ({**ALONE, "engine": "vllm-0.32"}, {"prefill_schedule_interval": 4},
     "scheduler.prefill_schedule_interval: needs parallel.dp: before 0.33 vLLM reads it"),
    ({**ALONE, "engine": "vllm-0.30"}, {"max_loras": 2}, "scheduler.max_loras: vLLM 0.30.0 does not have it"),
    ({**ALONE, "engine": "vllm-0.30"}, {"max_num_active_seqs": 2}, "set `engine: vllm-0.31`"),
    ({**ALONE, "engine": "vllm-0.28"}, {"max_num_queued_reqs": 2}, "only 0.29 and later"),
    (ALONE, {"max_num_seqs": 8, "max_num_active_seqs": 9}, "max_num_active_seqs: expected at most max_num_seqs (8)"),
    ({**ALONE, "adapter_bytes": "1 MB"}, {}, "adapter_bytes: needs scheduler.max_loras"),
])
def test_limits_without_a_meaning_are_refused(client, scheduler, said):
    with pytest.raises(InputError) as error:
        load_scenario(scenario(client, scheduler=scheduler))
    assert said in str(error.value)
    assert str(error.value).count("\n") == 0


def test_adapters_need_slots():
    with pytest.raises(InputError, match=r"clients\.0\.scheduler: a workload has adapters: give max_loras"):
        simulate(scenario(ALONE, **ADAPTERS))
    with pytest.raises(InputError, match="as many weights as"):
        load_scenario(scenario(ALONE, adapters={"count": 3, "weights": [1]}, scheduler={"max_loras": 1}))
