"""Speculative decoding: acceptance, tokens, blocks and times.

The schedules themselves are compared with those recorded from vLLM in `test_conformance.py`.
"""

from contextlib import nullcontext

import numpy as np
import pytest

from hermes.api import simulate
from hermes.clients.drafting import drafter_of
from hermes.deploy.vllm_scheduler import VllmConfig
from hermes.errors import InputError, InputWarning
from hermes.hardware.base import StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.descriptions.engines import DeviceClass, load_engine
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.schedulers.acceptance import Acceptance
from hermes.schedulers.chunked_config import ChunkedConfig, Speculation
from hermes.schedulers.plan import Plan
from hermes.testing.schedulers import SchedulerContract

GIVEN = {"method": "eagle", "num_speculative_tokens": 3, "acceptance_rate": 0.7}


def scenario(speculative, seqs=1, requests=40, memory=None, **scheduler):
    return {
        "name": "drafts", "seed": 3,
        "workload": {"requests": requests, "arrivals": {"kind": "poisson", "rate": 20},
                     "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 20, "max": 300},
                                 "output": {"kind": "uniform", "min": 2, "max": 120}}},
        "clients": [{"model": "llama-3.1-8b", "device": "l40s", "memory": memory or {"num_blocks": 400},
                     "scheduler": {"kind": "chunked", "max_num_batched_tokens": 512, "max_num_seqs": seqs,
                                   "speculative": speculative, **scheduler}}]}


def before_0_33(given):
    return {**given, "clients": [{**client, "engine": "vllm-0.32"} for client in given["clients"]]}


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("drafts", [1, 4])
def test_accepted_drafts_have_the_mean_of_the_closed_form(rate, drafts):
    given = Speculation(method="ngram", num_speculative_tokens=drafts, acceptance_rate=rate).acceptance()
    draws = [given.draw(sequence, verified) for sequence in range(100) for verified in range(100)]
    expected = drafts if rate == 1 else rate * (1 - rate**drafts) / (1 - rate)
    assert np.mean(draws) == pytest.approx(expected, abs=0.05)
    assert draws == [given.draw(sequence, verified) for sequence in range(100) for verified in range(100)]


def test_shares_by_position_are_what_vllm_reports():
    shares = [0.8, 0.5, 0.1]
    given = Speculation(method="mtp", num_speculative_tokens=3, acceptance_by_position=shares).acceptance()
    draws = np.array([given.draw(number, 0) for number in range(20_000)])
    assert [(draws > position).mean() for position in range(3)] == pytest.approx(shares, abs=0.015)
    assert Acceptance([], [2, 0]).first(5, 5) == [2, 0, 2, 0, 2]


def test_draws_follow_the_scenarios_seed():
    one, other = Acceptance([0.5] * 8, []), Acceptance([0.5] * 8, [])
    assert one.first(7, 50) == other.first(7, 50) != one.first(8, 50)
    other.seed(2)
    assert one.first(7, 50) != other.first(7, 50)
    given = scenario(GIVEN, seqs=8)
    times = [simulate({**given, "seed": seed}).requests.e2e_s for seed in (3, 3)]
    assert times[0].equals(times[1])
    first, second = ({**given, "seed": seed, "workload": {
        "requests": 5, "arrivals": {"kind": "at_once"}, "lengths": {"kind": "fixed", "prompt": 50, "output": 60}}}
        for seed in (3, 4))
    assert not simulate(first).requests.e2e_s.equals(simulate(second).requests.e2e_s)


@pytest.mark.feature("LLM clients", (
    "Speculative decoding: `speculative` with `ngram`, `ngram_gpu`, EAGLE, MTP, draft models"))
@pytest.mark.parametrize("asynchronous", [False, True])
def test_steps_become_fewer_as_the_closed_form_says(asynchronous):
    """One sequence at a time: k drafts with rate a give (1 - a^(k + 1)) / (1 - a) tokens a step, but for its last."""
    rate, drafts = 0.6, 3
    long = {"workload": {"requests": 30, "arrivals": {"kind": "uniform", "rate": 0.01},
                         "lengths": {"kind": "fixed", "prompt": 100, "output": 400}}}
    sped = simulate({**scenario({**GIVEN, "acceptance_rate": rate}, async_scheduling=asynchronous), **long})
    steps = int(sped.record.runs["num_steps"].sum())
    a_step = (1 - rate**(drafts + 1)) / (1 - rate)
    assert 30 * 399 / (steps - 30 * (1 + asynchronous)) == pytest.approx(a_step, rel=0.03)
    plain = simulate({**scenario(None, async_scheduling=asynchronous), **long})
    ratio = plain.requests.tpot_s.mean() / sped.requests.tpot_s.mean()
    assert a_step * 0.7 < ratio < a_step   # each step costs more: four rows, and the head three times


@pytest.mark.drawn
@pytest.mark.parametrize("more", [{}, {"async_scheduling": False}, {"policy": "priority"}], ids=str)
def test_tokens_blocks_and_modes(more):
    given = scenario(GIVEN, seqs=16, memory={"num_blocks": 40}, **more)
    runs, steps = simulate(given), simulate(given, stepping="every_step")
    assert runs.requests.equals(steps.requests)
    assert runs.summary["requests"]["completed"] == 40
    assert runs.summary["clients"]["llm"]["preemptions"] > 0
    record = runs.record
    assert int(record.runs["sampled"].sum()) == int(record.output_tokens.sum())
    assert record.runs["used_blocks"].max() <= 40
    for row, segments in record.gaps.items():
        assert len(segments) == record.stages["output_tokens"][row]
        assert (np.diff(segments) >= 0).all()


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_a_prefix_hit_is_used_whole_without_a_head(method):
    """Before 0.33 EAGLE and MTP compute the last block of a hit again."""
    talks = {"workload": {"requests": 30, "arrivals": {"kind": "poisson", "rate": 4},
                          "lengths": {"kind": "conversations", "turns": 3, "system_tokens": 200, "message": 60,
                                      "output": 40, "think_time": 1.0}}}
    hits = {}
    for name in (method, "eagle"):
        drafted = {**GIVEN, "method": name, "draft_time": "1 ms"}
        hits[name] = simulate(before_0_33({**scenario(drafted, seqs=16), **talks})).record.stages["cached_tokens"]
    found = hits[method] > 0
    assert found.sum() > 20
    assert (hits[method][found] - hits["eagle"][found] >= 16).mean() > 0.9


def test_draft_model_and_head_have_their_own_time():
    hardware = Composed(model="llama-3.1-8b", device="h100-sxm")
    target = hardware.build()
    plan = Plan()
    for _ in range(8):
        plan.add_drafted(1000, 3)
    times = {}
    for name, more in {"eagle": {}, "draft_model": {"draft_model": "llama-3.2-3b"}, "ngram": {}}.items():
        given = Speculation(method=name, num_speculative_tokens=3, acceptance_rate=0.5, **more)
        times[name] = drafter_of(given, target, hardware, None).step_ns(plan)
    plain = target.step_ns(StepStats(decode_seqs=8, decode_ctx=8000, decode_ctx_max=1000, sampled=8))
    rows = target.step_ns(StepStats(decode_seqs=32, decode_ctx=32000, decode_ctx_max=1000, sampled=32))
    assert plain < times["ngram"] < rows   # 32 rows of the linear layers; each sequence's KV is read once
    assert times["ngram"] < times["eagle"] < times["draft_model"] < 2.5 * times["ngram"]
    given = Speculation(method="eagle", num_speculative_tokens=3, acceptance_rate=0.5, draft_time=0.002,
                        draft_time_per_seq=0.001)
    assert drafter_of(given, target, hardware, None).step_ns(plan) == times["ngram"] + 3 * (2_000_000 + 8 * 1_000_000)


@pytest.mark.parametrize(("given", "line"), [
    ({"acceptance_rate": None}, "needs one of acceptance_rate, acceptance_by_position and accepted; none is given"),
    ({"accepted": [1]}, "leave out accepted"),
    ({"acceptance_rate": None, "acceptance_by_position": [0.5]}, "expected 3 shares, one for each draft, found 1"),
    ({"acceptance_rate": None, "acceptance_by_position": [0.5, 0.6, 0.1]}, "shares that never rise"),
    ({"draft_model": "llama-3.2-3b"}, "eagle has no model of its own"),
    ({"method": "draft_model"}, "name the model that drafts, or give draft_time"),
])
def test_what_is_missing_or_contradicts_is_one_line(given, line):
    with pytest.raises(InputError, match=line):
        simulate(scenario(GIVEN | given))


@pytest.mark.drawn
@pytest.mark.parametrize("method", ["ngram", "eagle", "draft_model"])
@pytest.mark.parametrize("order", ["tamm", "gdsf", "lfu", "fifo"])
def test_orders_of_eviction_differ_only_where_something_is_evicted(method, order):
    """Verified tokens are hashed and found alike: with enough memory the order decides nothing."""
    def times(blocks, eviction):
        given = scenario({**GIVEN, "method": method, "draft_time": 1e-4}, seqs=8, requests=120,
                         memory={"num_blocks": blocks, "prefix_eviction": eviction})
        given["workload"] |= {"prefixes": {"groups": 12, "tokens": 160}}
        results = simulate(given)
        assert results.summary["requests"]["completed"] == 120
        assert results.summary["tokens"]["cached"] > 0
        return results.requests.e2e_s.tolist()

    assert times(20_000, order) == times(20_000, "lru")
    assert times(150, order) != times(150, "lru")


def test_older_engines_are_refused():
    base = scenario(GIVEN)
    with pytest.raises(InputError, match=r"only 0\.31 and later"):
        simulate({**base, "clients": [{**base["clients"][0], "engine": "vllm-0.30"}]})


ACCEPTED = {"method": "ngram", "num_speculative_tokens": 1, "accepted": [1]}


@pytest.mark.parametrize("caching", [True, False])
def test_branches_draft_each_for_itself_by_hand(caching):
    """The prompt's step gives each branch a token; then each verifies one draft, gets two tokens, and ends with one."""
    given = scenario(ACCEPTED, seqs=4, requests=1, memory={"num_blocks": 40, "prefix_caching": caching},
                     async_scheduling=False)
    given["workload"] |= {"branches": 2, "lengths": {"kind": "fixed", "prompt": 40, "output": 4}}
    record = simulate(given).record
    computed = [(int(row["prefill_tokens"]), int(row["decode_seqs"])) for row in _rows(record)]
    assert computed == [(40, 0), (0, 2), (0, 2)]
    assert [int(row["sampled"]) for row in _rows(record)] == [2, 4, 2]
    assert record.stages["output_tokens"].sum() == 8


@pytest.mark.parametrize("ahead", [True, False])
def test_branches_of_a_prompt_that_is_preempted_are_all_served(ahead):
    given = scenario({**GIVEN, "draft_time": 1e-4}, seqs=12, requests=60, memory={"num_blocks": 30},
                     async_scheduling=ahead)
    given["workload"] |= {"branches": 3, "arrivals": {"kind": "poisson", "rate": 80}}
    results = simulate(given)
    assert results.summary["requests"]["completed"] == 60
    assert int(results.record.runs["preempted"].sum()) > 20
    tokens = results.record.stages["output_tokens"]
    assert int(tokens.sum()) == results.summary["tokens"]["output"]


def _rows(record):
    names = record.runs.keys()
    return [dict(zip(names, values, strict=True)) for values in zip(*record.runs.values(), strict=True)]


def _lone(times, **client):
    """Return a scenario of one request whose drafts take these times."""
    given = scenario({**ACCEPTED, **times}, requests=1)
    given["workload"]["lengths"] = {"kind": "fixed", "prompt": 100, "output": 9}
    return {**given, "clients": [{**given["clients"][0], **client}]}


@pytest.mark.parametrize("client", [
    {}, {"parallel": {"pp": 2}}, {"model": "qwen3-30b-a3b", "parallel": {"dp": 2}},
    {"model": "qwen3-30b-a3b", "parallel": {"dp": 2, "pp": 2}},
], ids=["alone", "stages", "ranks", "ranks of stages"])
def test_drafting_follows_each_step_by_hand(client):
    """Nine tokens are five steps: one of the prompt, and four with two tokens each. Each drafts once more."""
    with pytest.warns(InputWarning) if client else nullcontext():
        without, with_time = (float(simulate(_lone(times, **client)).requests.e2e_s[0])
                              for times in ({"draft_time": 0.0}, {"draft_time": 0.003}))
    assert with_time - without == pytest.approx(5 * 0.003, abs=1e-8)


def test_drafting_keeps_the_last_stage_from_the_next_batch():
    """Two batches of a pipeline: with drafting as long as many steps, they take turns on the last stage."""
    def ends(requests):
        given = _lone({"draft_time": 0.1}, parallel={"pp": 2})
        given["workload"] |= {"requests": requests, "arrivals": {"kind": "at_once"}}
        return simulate(given).requests.e2e_s.max()

    with pytest.warns(InputWarning):
        assert ends(2) == pytest.approx(2 * ends(1), rel=0.1)


@pytest.mark.parametrize(("method", "share"), [("ngram", 0.0), ("eagle", 1 / 32)])
def test_the_drafters_kv_moves_with_a_sequence(method, share):
    """An EAGLE head has the KV of one layer more than the 32 of the model."""
    def moved(speculative):
        given = scenario(speculative, seqs=8, requests=20)
        given["clients"] = [{**given["clients"][0], "name": role, "role": role} for role in ("prefill", "decode")]
        record = simulate(given).record
        assert len(record.transfers["bytes"]) > 10
        return record.transfers["bytes"].sum()

    drafts = {**GIVEN, "method": method, "draft_time": 1e-4}
    assert moved(drafts) == pytest.approx((1 + share) * moved(None), rel=1e-6)


def test_with_a_connector_hashes_cover_their_block_alone():
    """From 0.33 on EAGLE's blocks are hashed with the token after them, unless KV moves through a connector."""
    base = scenario(GIVEN, seqs=8)
    ahead = [client.scheduler.pool.hash_lookahead for client in build(load_scenario(base)).clients]
    tiers = {"levels": [{"name": "host", "capacity": "8GB", "bandwidth": "50GB/s"}], "block_tokens": 32}
    base["clients"][0]["tiers"] = tiers
    pools = [client.scheduler.pool for client in build(load_scenario(base)).clients]
    assert (ahead, [pool.hash_lookahead for pool in pools], [pool.drop_last_hit for pool in pools]) == (
        [1], [0], [True])


AHEAD = {"eagle": True, "eagle3": True, "mtp": True, "draft_model": True, "ngram_gpu": True,
         "ngram": False, "suffix": False, "medusa": False, "mlp_speculator": False}
"""Methods, and whether vLLM 0.31 schedules asynchronously with them (`VllmConfig.__post_init__`)."""


@pytest.mark.parametrize("method", AHEAD)
@pytest.mark.parametrize("kind", [ChunkedConfig, VllmConfig])
def test_asynchronous_scheduling_follows_the_draft_method(method, kind):
    gpu, cpu = (load_engine("vllm-0.32").defaults(DeviceClass("l40s", 48 * 2**30, is_cpu=cpu)) for cpu in (False, True))

    def completed(given, defaults):
        return kind(async_scheduling=given, speculative={**GIVEN, "method": method}).completed(defaults)

    assert completed(None, gpu).async_scheduling is AHEAD[method]
    assert completed(None, cpu).async_scheduling is False
    assert completed(False, gpu).async_scheduling is False
    if AHEAD[method]:
        assert completed(True, gpu).async_scheduling is True
    else:
        given = before_0_33(scenario({**GIVEN, "method": method}, async_scheduling=True))
        given["clients"][0]["scheduler"]["kind"] = kind.model_fields["kind"].default
        with pytest.raises(InputError, match=rf"async_scheduling: vLLM refuses true with the draft method {method}; "):
            load_scenario(given)


def test_steps_of_a_lookup_wait_for_the_host_where_it_runs_there():
    """`ngram` is scheduled synchronously: each step ends later, and a first token does not wait for a step ahead."""
    drafted = {**GIVEN, "method": "ngram"}
    host, ahead, off = (simulate(before_0_33(scenario(given, seqs=16, **more))).requests for given, more in (
        (drafted, {}), ({**drafted, "method": "ngram_gpu"}, {}), (drafted, {"async_scheduling": False})))
    assert host.equals(off)
    assert host.tpot_s.mean() > 1.03 * ahead.tpot_s.mean()
    with pytest.raises(InputError, match="vLLM refuses true with the draft method ngram"):
        simulate(before_0_33(scenario(drafted, async_scheduling=True)))
    with pytest.raises(InputError, match="vLLM refuses true with the draft method suffix"):
        simulate(scenario({**GIVEN, "method": "suffix"}, async_scheduling=True))
    later = simulate(scenario(drafted, seqs=16)).requests   # from 0.33 on the card looks up as well
    assert later.equals(ahead)
    with pytest.raises(InputError, match="give the time of one run; heads of medusa have no price here"):
        simulate(before_0_33(scenario({**drafted, "method": "medusa"})))
    with pytest.raises(InputError, match=r"speculative.method: vLLM has no medusa from 0.33 on; write `engine: vllm-0"):
        simulate(scenario({**drafted, "method": "medusa", "draft_time": "1 ms"}))
    timed = simulate(before_0_33(scenario({**drafted, "method": "medusa", "draft_time": "1 ms"}, seqs=16))).requests
    assert timed.tpot_s.mean() > host.tpot_s.mean()


class TestContract(SchedulerContract):
    branches = False
    drafts = True
    examples = 8

    def make(self, pool, every_step):
        return ChunkedConfig(max_num_seqs=8, max_num_batched_tokens=64, async_scheduling=False,
                             speculative=Speculation(**GIVEN)).build(pool, every_step=every_step)


class TestAsynchronous(TestContract):
    def make(self, pool, every_step):
        return ChunkedConfig(max_num_seqs=8, max_num_batched_tokens=64, async_scheduling=True,
                             speculative=Speculation(**GIVEN)).build(pool, every_step=every_step)
