"""Data-parallel ranks: against a literal loop over ranks, and what must hold of every run."""

import tempfile
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.api import load_scenario, simulate
from hermes.errors import InputError
from hermes.hardware.base import StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.fitted.adjusted import StepAdjustment

MODEL = {"model": "qwen3-30b-a3b", "device": "h100-sxm", "parallel": {"dp": 2, "ep": 2}}


def scenario(requests, *, stepping="runs", ranks=2, **client):
    """Requests: (arrival_s, prompt, output)."""
    path = Path(tempfile.mkdtemp()) / "trace.csv"
    lines = ["arrival_s,prompt_tokens,output_tokens", *(",".join(map(str, row)) for row in requests)]
    path.write_text("\n".join(lines) + "\n")
    trace = {"kind": "trace", "path": str(path)}
    return {
        "name": "ranks", "workload": {"arrivals": trace, "lengths": trace}, "stepping": stepping,
        "clients": [{**MODEL, "parallel": {"dp": ranks, "ep": ranks}, "frontend": {},
                     "scheduler": {"kind": "chunked", "max_num_batched_tokens": 512, "async_scheduling": False},
                     "memory": {"num_blocks": 500, "block_size": 16, "prefix_caching": False}, **client}],
    }


def columns(results):
    return results.requests.sort_values("request")[["ttft_s", "e2e_s"]].to_numpy()


requests_of_a_trace = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 900), st.integers(1, 40)), min_size=1, max_size=25,
).map(lambda rows: sorted((ms / 1000, prompt, output) for ms, prompt, output in rows))


@quick_and_full(8, 25)
@given(requests_of_a_trace, st.sampled_from([2, 4]))
def test_runs_of_steps_are_single_steps(requests, ranks):
    runs = simulate(scenario(requests, ranks=ranks))
    steps = simulate(scenario(requests, ranks=ranks, stepping="every_step"))
    assert columns(runs).tolist() == columns(steps).tolist()


@pytest.mark.long
@quick_and_full(8, 25)
@given(requests_of_a_trace)
def test_nothing_is_lost_and_ranks_step_together(requests):
    results = simulate(scenario(requests))
    assert results.summary["requests"]["completed"] == len(requests)
    ends = {}
    for client, start, end in results.runs[["client", "start_s", "end_s"]].itertuples(index=False):
        ends.setdefault((start, end), set()).add(client)
    for (_, end), (start, _) in pairwise(sorted(ends)):
        assert start >= end - 1e-12, "runs of the ranks begin and end together"


def _by_hand(requests, hardware, overhead_ns=0, load_ns=0):
    """Serve requests by two ranks in turn, one step after the other; return (first token, last token) of each, in ns.

    Every request fits: a rank's step computes one token of each sequence whose prompt is done, then prompts in order.
    A request holds up its rank in its first step, and a rank loads its one adapter in its first step; the step of both
    waits for the rank that is held up longer.
    """
    budget, loaded = 512, set()
    state = [SimpleNamespace(arrival=round(at * 1e9), prompt=prompt, output=output, done=0, given=0, rank=i % 2,
                             first=None, last=None) for i, (at, prompt, output) in enumerate(requests)]
    now = 0
    while any(one.last is None for one in state):
        live = [one for one in state if one.last is None and one.arrival <= now]
        if not live:
            now = min(one.arrival for one in state if one.last is None)
            continue
        batches, takes, late = [], [], 0
        for rank in (0, 1):
            left, stats, mine = budget, StepStats(), []
            for one in [one for one in live if one.rank == rank]:
                if one.done >= one.prompt:
                    stats.decode_seqs += 1
                    context = one.prompt + one.given - 1
                    stats.decode_ctx += context
                    stats.decode_ctx_max = max(stats.decode_ctx_max, context)
                    stats.sampled += 1
                    left -= 1
                    mine.append((one, 1))
            for one in [one for one in live if one.rank == rank and one.done < one.prompt]:
                take = min(left, one.prompt - one.done)
                if not take:
                    break
                stats.prefill_seqs += 1
                stats.prefill_tokens += take
                stats.prefill_past += one.done
                stats.prefill_attn += take * one.done + take * (take + 1) // 2
                stats.prefill_max = max(stats.prefill_max, take)
                stats.sampled += one.done + take == one.prompt
                left -= take
                mine.append((one, take))
            batches.append(stats if mine else None)
            takes += mine
            new = sum(one.done == 0 for one, _ in mine)
            late = max(late, overhead_ns * new + load_ns * (bool(mine) and rank not in loaded))
            loaded |= {rank} if mine else set()
        now += late + int(hardware.lockstep_ns(batches, 1)[0])
        for one, take in takes:
            if one.done < one.prompt:
                one.done += take
                if one.done < one.prompt:
                    continue
            one.given += 1
            one.first = now if one.first is None else one.first
            if one.given == one.output:
                one.last = now
    return [(one.first - one.arrival, one.last - one.arrival) for one in state]


@pytest.mark.feature("Hardware", "Data-parallel ranks in lockstep: `parallel: {dp, ep}`")
@quick_and_full(8, 25)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 700), st.integers(1, 20)), min_size=1, max_size=10)
       .map(lambda rows: sorted((ms / 1000, prompt, output) for ms, prompt, output in rows)))
def test_two_ranks_against_a_literal_loop(requests):
    """Requests go to the ranks in turn; clocks and idleness are left out, which depend on the steps before."""
    hardware = Composed(model="qwen3-30b-a3b", device="rtx-pro-6000", dp=2, ep=2, asynchronous=False,
                        engine="vllm-0.19", step={"exposed": 0.0008, "largest_graph": 512}).build()
    found = simulate(scenario(requests, device="rtx-pro-6000", engine="vllm-0.19", hardware={
        "kind": "composed", "dp": 2, "ep": 2, "step": {"exposed": 0.0008, "largest_graph": 512}}))
    expected = np.array(_by_hand(requests, hardware)) / 1e9
    assert columns(found) == pytest.approx(expected, abs=2e-9)


@pytest.mark.feature("Hardware", "Serial request overhead, loads of adapters and `adjust` with ranks and stages")
@quick_and_full(5, 15)
@given(requests_of_a_trace, st.sampled_from([(0, 7), (3, 0), (3, 7), (9, 5)]))
def test_what_holds_up_a_rank_holds_up_both(requests, milliseconds):
    """Serial request overhead and loads of adapters, against the literal loop and in both stepping modes."""
    requests = requests[:12]
    overhead, load = milliseconds
    hardware = Composed(model="qwen3-30b-a3b", device="rtx-pro-6000", dp=2, ep=2, asynchronous=False,
                        engine="vllm-0.32", step={"exposed": 0.0008, "largest_graph": 512}).build()
    client = {"device": "rtx-pro-6000", "engine": "vllm-0.32", "hardware": {
        "kind": "composed", "dp": 2, "ep": 2, "step": {"exposed": 0.0008, "largest_graph": 512}}}
    if overhead:
        client["request_overhead"] = {"generate": overhead / 1e3}
    given = scenario(requests, **client)
    if load:
        given["workload"]["adapters"] = {"count": 1}
        given["clients"][0]["adapter_bytes"] = round(load / 1e3 * load_device("rtx-pro-6000", None).host_bandwidth)
        given["clients"][0]["scheduler"]["max_loras"] = 1
        given["clients"][0]["hardware"]["terms"] = {"lora": {"scale": 0.0}}
    runs, steps = simulate(given), simulate({**given, "stepping": "every_step"})
    expected = np.array(_by_hand(requests, hardware, round(overhead * 1e6), round(load * 1e6))) / 1e9
    assert columns(runs) == pytest.approx(expected, abs=2e-9)
    assert columns(runs).tolist() == columns(steps).tolist()


@pytest.mark.parametrize("change", [
    {"decodes": 1.5}, {"prompts": 2.0, "decodes": 0.5},
    {"prompts": 0.5, "decodes": 2.0, "fixed": 1e-3, "per_seq": 1e-4}])
def test_an_adjusted_step_of_ranks(change):
    """Ranks with like batches take what one takes; by hand for a prompt beside decodes of the other rank."""
    base = Composed(model="qwen3-30b-a3b", device="h100-sxm", dp=2, ep=2).build()
    model = StepAdjustment(**change).apply(base)
    decodes = StepStats(decode_seqs=16, decode_ctx=16_000, decode_ctx_max=1000, sampled=16)
    prompt = StepStats(prefill_seqs=1, prefill_tokens=900, prefill_attn=405_450, prefill_max=900, sampled=1)
    mixed = StepStats(1, 900, 0, 405_450, 16, 16_000, 1000, 17, prefill_max=900)
    for stats in (decodes, prompt, mixed):
        assert model.lockstep_ns([stats, stats], 1)[0] == model.step_ns(stats)
    assert model.lockstep_ns([decodes, None], 3) == pytest.approx(
        change["decodes"] * base.lockstep_ns([decodes, None], 3) + 1e9 * (
            change.get("fixed", 0) + 16 * change.get("per_seq", 0)), abs=1)
    p, d = change.get("prompts", 1.0), change["decodes"]
    whole, one, other = (base.lockstep_ns(batches, 1)[0] for batches in (
        [prompt, decodes], [prompt, None], [None, decodes]))
    by_hand = min(p, d) * whole + max(p - d, 0) * one + max(d - p, 0) * other
    added = 1e9 * (change.get("fixed", 0) + 16 * change.get("per_seq", 0))
    assert model.lockstep_ns([prompt, decodes], 1)[0] == pytest.approx(by_hand + added, abs=1)


def test_a_step_is_the_slowest_ranks():
    hardware = Composed(model="qwen3-30b-a3b", device="h100-sxm", dp=2, ep=2).build()
    small = StepStats(decode_seqs=8, decode_ctx=8000, decode_ctx_max=1000, sampled=8)
    large = StepStats(decode_seqs=8, decode_ctx=80_000, decode_ctx_max=10_000, sampled=8)
    both = hardware.lockstep_ns([small, large], 3)
    assert both.tolist() == hardware.lockstep_ns([large, small], 3).tolist()
    assert both.tolist() == hardware.lockstep_ns([large, large], 3).tolist()
    assert (both > hardware.lockstep_ns([small, small], 3)).all()


def test_an_idle_rank_computes_padding():
    """Its experts serve the other's tokens, and in a CUDA graph it has as many rows."""
    hardware = Composed(model="qwen3-30b-a3b", device="h100-sxm", dp=2, ep=2).build()
    one = StepStats(decode_seqs=8, decode_ctx=8000, decode_ctx_max=1000, sampled=8)
    assert hardware.lockstep_ns([one, None], 1) == hardware.lockstep_ns([one, one], 1)
    prompt = StepStats(prefill_seqs=1, prefill_tokens=4000, prefill_attn=8_002_000, prefill_max=4000)   # no graph
    assert hardware.lockstep_ns([prompt, None], 1) < hardware.lockstep_ns([prompt, prompt], 1)


def test_a_lone_rank_is_priced_with_others_like_it():
    hardware = Composed(model="qwen3-30b-a3b", device="h100-sxm", dp=4, ep=4).build()
    stats = StepStats(decode_seqs=16, decode_ctx=16_000, decode_ctx_max=1000, sampled=16)
    assert hardware.step_ns(stats) == hardware.lockstep_ns([stats] * 4, 1)[0]


@pytest.mark.parametrize(("changes", "message"), [
    ({"model": "llama-3.1-8b", "parallel": {"dp": 2}}, "the ranks of a dense model share nothing"),
    ({"parallel": {"dp": 2, "ep": 4}}, "ep: expected tp * dp (2)"),
    ({"parallel": {"dp": 3, "ep": 3}}, "whose number ep divides"),
    ({"parallel": {}, "hardware": {"kind": "composed", "dp": 2}}, "hardware.dp: belongs to the client"),
    ({"hardware": {"kind": "roofline", "model": "qwen3-30b-a3b", "device": "h100-sxm"}}, "ranks need hardware of"),
])
def test_what_ranks_cannot_have_is_refused(changes, message):
    base = scenario([(0.0, 10, 10)])
    base["clients"][0] |= changes
    with pytest.raises(InputError) as caught:
        simulate(base)
    assert message in str(caught.value)


@pytest.mark.drawn
@pytest.mark.parametrize("transfer", ["full", "layerwise"])
@pytest.mark.parametrize("roles", ["1P1D", "2P1D"])
def test_ranks_that_prefill_or_decode(roles, transfer):
    """KV moves from a rank of one engine to a rank of another, all of a prompt's tokens; steps stay common."""
    rows = [(0.05 * i, 40 + 37 * i % 700, 2 + 11 * i % 60) for i in range(40)]
    given = scenario(rows, count=roles) | {"kv_transfer": transfer}
    runs, steps = simulate(given), simulate({**given, "stepping": "every_step"})
    assert runs.summary["requests"]["completed"] == 40
    assert columns(runs).tolist() == columns(steps).tolist()
    moved, clients = runs.record.transfers, [client.name for client in runs.record.clients]
    each = load_model("qwen3-30b-a3b").kv_bytes_per_token(2, 1)
    assert moved["bytes"].sum() == pytest.approx(sum(prompt for _, prompt, _ in rows) * each)
    ends = {(clients[a].rpartition(".")[0], clients[b].rpartition(".")[0])
            for a, b in zip(moved["src"], moved["dst"], strict=True)}
    assert all("prefill" in a and "decode" in b for a, b in ends)
    assert len({clients[b] for b in moved["dst"]}) == 2   # both ranks decode


def test_ranks_share_the_serving_stacks_thread():
    rows = [(0.0, 40, 30)] * 4
    overhead = {"mode": "overlapped", "generate": 0.5}
    plain, held = (simulate(scenario(rows, request_overhead=each)) for each in (None, overhead))
    first = held.requests.sort_values("request").ttft_s.to_numpy()
    assert first == pytest.approx(plain.requests.ttft_s.min() + np.arange(1, 5) * 0.5, abs=0.05)
    steps = simulate(scenario(rows, request_overhead=overhead, stepping="every_step"))
    assert columns(held).tolist() == columns(steps).tolist()


def test_ranks_are_clients_of_their_own():
    base = scenario([(0.0, 10, 10), (0.0, 10, 10)], count=2)
    base["clients"][0]["name"] = "moe"
    checked = load_scenario(base)
    assert checked.clients[0].names == ["moe-0.dp0", "moe-0.dp1", "moe-1.dp0", "moe-1.dp1"]
    results = simulate(base)
    assert results.clients["name"].tolist() == checked.clients[0].names
    assert set(results.runs["client"]) == {"moe-0.dp0", "moe-0.dp1"}   # in turn: the first two requests
