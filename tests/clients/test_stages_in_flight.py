"""Pipeline stages with several batches in flight, against cases computed by hand."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.api import simulate
from hermes.clients.config import LLMClientConfig
from hermes.clients.pipeline import Pipeline
from hermes.errors import InputError
from hermes.hardware.base import StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.fitted.adjusted import StepAdjustment

BIG = {"model": "llama-3.1-405b", "device": "h100-sxm", "parallel": {"pp": 2, "tp": 8}}


def scenario(count, *, output=20, **client):
    return {
        "name": "stages", "workload": {"requests": count, "arrivals": {"kind": "at_once"},
                                       "lengths": {"kind": "fixed", "prompt": 100, "output": output}},
        "clients": [{**BIG, "frontend": {}, "memory": {"prefix_caching": False},
                     "scheduler": {"kind": "chunked", "async_scheduling": False}, **client}],
    }


def hardware(**more):
    return Composed(model="llama-3.1-405b", device="h100-sxm", tp=8, pp=2, asynchronous=False, **more).build()


def test_stages_add_up_to_a_step():
    model = hardware()
    for stats in (StepStats(decode_seqs=16, decode_ctx=16_000, decode_ctx_max=1000, sampled=16),
                  StepStats(prefill_seqs=1, prefill_tokens=2000, prefill_attn=2_001_000, prefill_max=2000)):
        assert sum(model.stages_ns(stats)) == pytest.approx(model.step_ns(stats), abs=3)
        terms = model.terms_ns(stats)
        assert terms["hops"] > 0
        assert "infiniband-ndr" in model.sources_of()["hops"]   # 16 devices are two machines


def test_a_hop_by_hand():
    model = hardware(hop={"latency": 15e-6, "bandwidth": 25e9})
    stats = StepStats(decode_seqs=16, decode_ctx=16_000, decode_ctx_max=1000, sampled=16)
    sent = 16 * 16384 * 2 / 8   # each of 8 devices sends its part of the activations
    assert model.terms_ns(stats)["hops"] == pytest.approx((15e-6 + sent / 25e9) * 1e9)


def test_a_batch_takes_as_long_after_others_as_alone():
    """What batches of as many rows share is kept; their attention, and padding beyond a graph, are of each."""
    batches = [StepStats(decode_seqs=seqs, decode_ctx=context, decode_ctx_max=context // seqs, sampled=sampled)
               for seqs in (1, 16, 600) for context in (seqs * 10, seqs * 900) for sampled in (seqs, 0)]
    batches += [StepStats(prefill_seqs=1, prefill_tokens=15, prefill_attn=120, prefill_max=15, decode_seqs=1,
                          decode_ctx=10, decode_ctx_max=10, sampled=1)]
    model = hardware()
    for stats in [*batches, *batches]:
        assert model.stages_ns(stats) == hardware().stages_ns(stats)
        assert model.lockstep_stages_ns([stats]) == hardware().lockstep_stages_ns([stats])


def test_layers_are_spread_as_the_engine_does():
    """126 layers on 4 stages: 31, 32, 32, 31 (the rest goes to the stages before the last)."""
    model = Composed(model="llama-3.1-405b", device="b200", tp=8, pp=4, engine="vllm-0.32").build()
    stats = StepStats(prefill_seqs=1, prefill_tokens=4000, prefill_attn=8_002_000, prefill_max=4000)   # samples nothing
    hop = model.terms_ns(stats)["hops"] / 3
    first, second, third, last = model.stages_ns(stats)
    engine = model.terms_ns(stats)["engine"]
    assert second == third
    assert last - hop == pytest.approx((second - hop) * 31 / 32, rel=1e-6)
    assert first - engine == pytest.approx((second - hop) * 31 / 32, rel=1e-6)


@pytest.mark.feature("Hardware", "Pipeline stages with several batches in flight: `parallel: {pp}`")
def test_two_batches_fill_two_stages_by_hand():
    pipeline = Pipeline(2)
    assert pipeline.enter(0, [10, 12]) == 22
    assert pipeline.enter(0, [10, 12]) == 34     # waits for the first stage until 10, for the second until 22
    assert pipeline.enter(22, [10, 12]) == 46    # the first again: its stage is free, the second until 34
    assert pipeline.enter(34, [10, 12]) == 58    # a batch each 12: the longest stage


def test_loads_of_a_batch_by_hand():
    """A stage loads when the one before has loaded, while that computes: the second load of 4 hides behind 10."""
    assert Pipeline(2).enter(0, [10, 12], 4) == 4 + 10 + 12
    assert Pipeline(2).enter(0, [10, 12], 15) == 15 + 15 + 12   # the second stage loads longer than the first computes
    pipeline = Pipeline(2)
    assert pipeline.enter(0, [10, 12]) == 22
    assert pipeline.enter(0, [10, 12], 4) == 38   # the stages are free at 10 and 22, and have loaded at 14 and 26


@given(st.lists(st.tuples(st.integers(0, 1000), st.lists(st.integers(1, 50), min_size=3, max_size=3)), max_size=30))
def test_no_stage_serves_two_batches_at_once(batches):
    pipeline, now, busy = Pipeline(3), 0, 0
    for wait, times in batches:
        now += wait
        before = list(pipeline.free_ns)
        end = pipeline.enter(now, times)
        assert end >= now + sum(times)
        assert all(free >= was + ns for free, was, ns in zip(pipeline.free_ns, before, times, strict=True))
        busy += times[0]
    assert pipeline.free_ns[0] >= busy


def test_a_full_pipeline_serves_nearly_twice_as_much_as_a_lone_batch():
    one = simulate(scenario(1))
    two = simulate(scenario(2))
    lone, both = (found.requests["e2e_s"].max() for found in (one, two))
    model = hardware()
    longest = max(model.stages_ns(StepStats(decode_seqs=1, decode_ctx=110, decode_ctx_max=110, sampled=1))) / 1e9
    assert lone < both < lone + 3 * longest + 0.05   # each in its own batch: the second is one stage behind
    assert set(two.runs["client"]) == {"llm.pp0", "llm.pp1"}


def test_a_lone_request_takes_all_stages_in_turn():
    model = hardware()
    found = simulate(scenario(1, output=3)).requests
    steps = [StepStats(prefill_seqs=1, prefill_tokens=100, prefill_attn=5050, prefill_max=100, sampled=1),
             *(StepStats(decode_seqs=1, decode_ctx=100 + i, decode_ctx_max=100 + i, sampled=1) for i in range(2))]
    assert found["e2e_s"][0] == pytest.approx(sum(sum(model.stages_ns(one)) for one in steps) / 1e9, abs=1e-8)


def test_memory_of_an_engine_with_stages():
    """All blocks of the engine, shared out to the batches in flight; each has half of its devices."""
    both = simulate(scenario(2)).clients
    assert both["num_devices"].tolist() == [8, 8]
    weights = 405_853_388_800 * 2 / 16
    assert weights < 0.9 * 79.11 * 2**30   # 50.7 GB: fits in 16 devices, not in 8
    assert (both["num_blocks"] > 1000).all()
    with pytest.raises(InputError, match="do not fit"):
        simulate(scenario(1, parallel={"tp": 8}))


def test_the_printed_memory_of_each_batch_is_its_part_of_the_engines():
    """4 of 8 devices, half of the blocks: half of the tokens, and of the range that the engine's sum has a device."""
    client = LLMClientConfig.model_validate({"model": "llama-3.1-70b", "device": "h100-sxm", "max_model_len": 8192,
                                             "parallel": {"tp": 4, "pp": 2}})
    filled, model = client.completed(None)
    whole, part = filled.engine_memory(model, None), filled.resources(model, None).memory
    assert (part.num_blocks, part.devices) == (whole.num_blocks // 2, 4)
    left = 0.92 * whole.capacity.bytes - whole.weights.bytes - whole.activations.bytes - whole.engine.bytes
    assert part.device_bytes == pytest.approx(left, rel=1e-4)
    assert part.range == pytest.approx(whole.range, rel=1e-4)
    assert 2 * part.printed(8192) == pytest.approx(whole.printed(8192), rel=1e-4)
    assert 2 * part.fits(8192) == pytest.approx(whole.fits(8192), rel=1e-4)
    assert 2 * part.unreserved_tokens == pytest.approx(whole.unreserved_tokens, rel=1e-4)


@pytest.mark.parametrize("transfer", ["full", "layerwise"])
def test_stages_that_prefill_or_decode(transfer):
    """A batch of one engine hands over to a batch of the other."""
    given = scenario(30) | {"kv_transfer": transfer}
    given["clients"][0]["count"] = "1P1D"
    runs, steps = simulate(given), simulate(given | {"stepping": "every_step"})
    assert runs.summary["requests"]["completed"] == 30
    assert runs.requests.e2e_s.tolist() == steps.requests.e2e_s.tolist()
    moved, clients = runs.record.transfers, [client.name for client in runs.record.clients]
    assert len(moved["start_ns"]) == 30
    assert len({clients[a] for a in moved["src"]}) == len({clients[b] for b in moved["dst"]}) == 2
    alone = simulate(scenario(30)).requests.ttft_s.min()
    assert runs.requests.ttft_s.min() > alone   # the KV moves first


def test_batches_share_the_serving_stacks_thread():
    """Four requests at once, 0.5 s of the thread each: the last one waits 2 s, whatever its batch."""
    times = [simulate(scenario(4, output=1, request_overhead=overhead)).requests.ttft_s.max()
             for overhead in (None, {"mode": "overlapped", "generate": 0.5})]
    assert times[1] >= 2.0
    assert times[1] <= 2.0 + times[0]


PROMPT = StepStats(prefill_seqs=1, prefill_tokens=100, prefill_attn=5050, prefill_max=100, sampled=1)


def test_batches_share_the_engines_thread_by_hand():
    """Two requests at once in two batches: the thread handles one after the other, and a step starts with its own."""
    times, pipeline = hardware().stages_ns(PROMPT), Pipeline(2)
    found = simulate(scenario(2, output=1, request_overhead={"generate": 0.5}))
    expected = [pipeline.enter(round(0.5e9 * (i + 1)), times) / 1e9 for i in range(2)]
    assert found.requests.ttft_s.tolist() == pytest.approx(expected, abs=1e-9)
    assert found.record.runs["overhead_ns"].tolist() == [500_000_000, 1_000_000_000]


def test_a_step_waits_for_the_thread_that_handles_another_batch():
    """The second step of the first batch, which is done with its first after 0.5 s, waits until 1 s."""
    found = simulate(scenario(2, output=2, request_overhead={"generate": 0.5}))
    mine = found.record.runs["client"] == 0
    start, held = (found.record.runs[name][mine].tolist() for name in ("start_ns", "overhead_ns"))
    assert start[1] + held[1] == 1_000_000_000
    assert held[1] > 0


def test_loads_of_adapters_by_hand():
    load_ns = 300_000_000
    given = scenario(2, output=1)
    given["clients"][0] |= {"adapter_bytes": round(0.3 * load_device("h100-sxm", None).host_bandwidth),
                            "hardware": {"kind": "composed", "terms": {"lora": {"scale": 0.0}}}}
    given["clients"][0]["scheduler"]["max_loras"] = 1
    given["workload"]["adapters"] = {"count": 1}
    times, pipeline = hardware().stages_ns(PROMPT), Pipeline(2)
    expected = [pipeline.enter(0, times, load_ns) / 1e9 for _ in range(2)]   # each batch counts its own adapters
    assert simulate(given).requests.ttft_s.tolist() == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("change", [
    {"decodes": 1.5}, {"prompts": 2.0, "decodes": 0.5},
    {"prompts": 0.5, "decodes": 2.0, "fixed": 1e-3, "per_seq": 1e-4}])
def test_adjusted_stages_add_up_to_the_adjusted_step(change):
    base = hardware()
    model = StepAdjustment(**change).apply(base)
    decodes = StepStats(decode_seqs=16, decode_ctx=16_000, decode_ctx_max=1000, sampled=16)
    for stats in (decodes, PROMPT, StepStats(1, 100, 0, 5050, 16, 16_000, 1000, 17, prefill_max=100)):
        assert sum(model.stages_ns(stats)) == model.step_ns(stats)
    added = 1e9 * (change.get("fixed", 0) + 16 * change.get("per_seq", 0))
    by_hand = [change["decodes"] * ns for ns in base.stages_ns(decodes)]
    assert model.stages_ns(decodes) == pytest.approx([by_hand[0] + added, by_hand[1]], abs=2)


# -- ranks of several stages -----------------------------------------------------------------------------------------

BOTH = {"model": "qwen3-30b-a3b", "parallel": {"pp": 2, "dp": 2, "ep": 2}}


def both(**more):
    return Composed(model="qwen3-30b-a3b", device="h100-sxm", pp=2, dp=2, ep=2, asynchronous=False, **more).build()


def test_stages_of_a_common_step_add_up():
    model, small = both(), StepStats(decode_seqs=4, decode_ctx=4000, decode_ctx_max=1000, sampled=4)
    large = StepStats(decode_seqs=64, decode_ctx=64_000, decode_ctx_max=1000, sampled=64)
    for batches in ([small, large], [large, small], [PROMPT, small], [None, PROMPT], [large, None]):
        stages = model.lockstep_stages_ns(batches)
        assert sum(stages) == model.lockstep_ns(batches, 1)[0]
        assert min(stages) > 0.3 * sum(stages)   # 24 layers each
        adjusted = StepAdjustment(prompts=2.0, fixed=1e-3).apply(model)
        assert sum(adjusted.lockstep_stages_ns(batches)) == adjusted.lockstep_ns(batches, 1)[0]
    for stats in (small, large, PROMPT):   # like batches: one rank's stages
        assert model.lockstep_stages_ns([stats, stats]) == pytest.approx(model.stages_ns(stats), abs=2)
    assert model.lockstep_stages_ns([small, large]) == pytest.approx(model.lockstep_stages_ns([large, small]))


@pytest.mark.feature("Hardware", "Ranks of several stages: `parallel: {dp, pp}`")
def test_batches_of_ranks_go_through_the_stages_together_by_hand():
    """Six requests at once, in turn to pp0.dp0, pp0.dp1, pp1.dp0, ...: the first batches have two on each rank."""
    model, pipeline = both(), Pipeline(2)
    two = StepStats(prefill_seqs=2, prefill_tokens=200, prefill_attn=10_100, prefill_max=100, sampled=2)
    first = pipeline.enter(0, model.lockstep_stages_ns([two, two]))
    second = pipeline.enter(0, model.lockstep_stages_ns([PROMPT, PROMPT]))
    found = simulate(scenario(6, output=1, **BOTH))
    assert found.requests.sort_values("request").ttft_s.tolist() == pytest.approx(
        [ns / 1e9 for ns in (first, first, second, second, first, first)], abs=1e-9)
    assert [client.name for client in found.record.clients] == ["llm.pp0.dp0", "llm.pp0.dp1", "llm.pp1.dp0",
                                                                "llm.pp1.dp1"]


def test_a_rank_without_requests_goes_along():
    model = both()
    steps = [PROMPT, StepStats(decode_seqs=1, decode_ctx=100, decode_ctx_max=100, sampled=1)]
    expected = sum(int(model.lockstep_ns([one, None], 1)[0]) for one in steps) / 1e9
    assert simulate(scenario(1, output=2, **BOTH)).requests.e2e_s[0] == pytest.approx(expected, abs=1e-8)


def test_ranks_of_stages_that_fill_a_box_exchange_between_boxes():
    """Devices are numbered by rank, stage, tensor: two ranks of 2 x 4 are two boxes of 8; their stages lie in one."""
    sources = Composed(model="mixtral-8x7b", device="h100-sxm", tp=4, pp=2, dp=2).build().sources_of()
    assert "infiniband-ndr" in sources["dispatch"]
    assert "infiniband-ndr" not in sources["hops"]
    alone = Composed(model="mixtral-8x7b", device="h100-sxm", tp=2, pp=2, dp=2).build().sources_of()
    assert "infiniband-ndr" not in alone["dispatch"]


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.sampled_from([None, 0.002]), st.sampled_from([4, 80]))
def test_ranks_of_several_stages(count, output, overhead, rate):
    """Nothing is lost; both modes agree; a batch's ranks step together, and no stage serves two steps at once."""
    more = {} if overhead is None else {"request_overhead": {"generate": overhead}}
    given = scenario(count, output=output, **BOTH, **more)
    given["workload"]["arrivals"] = {"kind": "poisson", "rate": rate}
    runs, steps = simulate(given), simulate(given | {"stepping": "every_step"})
    assert runs.summary["requests"]["completed"] == count
    assert runs.requests.e2e_s.tolist() == steps.requests.e2e_s.tolist()
    for batch in (0, 1):
        mine = [(start, end) for name, start, end in runs.runs[["client", "start_s", "end_s"]].itertuples(index=False)
                if name.startswith(f"llm.pp{batch}")]
        ordered = sorted(set(mine))
        assert all(start >= end - 1e-12 for (_, end), (start, _) in pairwise(ordered))
    ends = sorted(set(runs.runs["end_s"]))
    one = StepStats(decode_seqs=1, decode_ctx=1, decode_ctx_max=1, sampled=1)
    shortest = min(both().lockstep_stages_ns([one, None]))
    assert all(later - end >= shortest * 0.999e-9 for end, later in pairwise(ends))   # the last stage is one at a time


@pytest.mark.parametrize("count", [1, 5])
def test_stepping_makes_no_difference(count):
    runs, steps = (simulate(scenario(count) | {"stepping": stepping}) for stepping in ("runs", "every_step"))
    assert runs.requests["e2e_s"].tolist() == steps.requests["e2e_s"].tolist()
    assert runs.summary["requests"]["completed"] == count
