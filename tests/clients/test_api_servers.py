"""API servers: against a literal loop over what they do, their limit by hand, and what four published runs need."""

import numpy as np
import pytest
from scripts_loaded import load

from hermes import simulate
from hermes.api import load_scenario
from hermes.clients.frontend import ApiServers
from hermes.deploy import vllm
from hermes.errors import InputError
from hermes.hardware.descriptions.engines import load_engine, vllm_engines

SERVERS = {"per_request": "4 ms", "per_token": "100 us", "per_chunk": "300 us"}


def scenario(servers, *, rate=60.0, requests=120, output=20, count=2, stepping="runs", **client):
    return {
        "seed": 2, "stepping": stepping,
        "workload": {"requests": requests, "arrivals": {"kind": "poisson", "rate": rate},
                     "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 20, "max": 200},
                                 "output": {"kind": "uniform", "min": 1, "max": 2 * output - 1}}},
        "clients": [{"name": "llm", "count": count, "model": "qwen2.5-1.5b", "device": "a100-80gb",
                     "frontend": {"before": "1 ms", "after": "2 ms"}, "api_servers": servers, **client}]}


def columns(results):
    return results.requests.sort_values("request")[["ttft_s", "e2e_s", "tpot_s"]].fillna(0.0).to_numpy()


def by_hand(record, request_ns, token_ns):
    """Serve what came in and went out in the order of time; return (stage, step) -> how late its tokens are."""
    events = [(int(at) + 1_000_000, 1, row, 0) for row, at in enumerate(record.stages["assigned_ns"])]
    runs = record.runs
    for client, first, steps, tokens in zip(runs["client"], runs["first_step"], runs["num_steps"], runs["sampled"],
                                            strict=True):
        events += [(int(record.step_ends[client][step]), 0, int(client), step, int(tokens))
                   for step in range(first, first + steps)]
    free, late, entered = 0, {}, {}
    for at, kind, *what in sorted(events, key=lambda event: event[:4]):
        begins = max(free, at)
        if kind:
            entered[what[0]] = begins
            free = begins + request_ns
        else:
            client, step, tokens = what
            free = begins + round(tokens * token_ns)
            late[client, step] = begins - at + round((tokens - 1) * token_ns / 2) if tokens else 0
    return late, entered


@pytest.mark.parametrize("servers", [{}, {"count": 2}, {"stream_interval": 5}])
def test_requests_and_tokens_wait_in_the_order_in_which_they_come(servers):
    given = SERVERS | servers | {"engines": 2}
    results = simulate(scenario(given))
    record, stages = results.record, results.record.stages
    count, interval = servers.get("count", 1), servers.get("stream_interval", 1)
    late, entered = by_hand(record, round(4e6 / count), (100e3 + 300e3 / interval) / count)
    assert max(late.values()) > 1e6
    for row in range(len(stages["client"])):
        request, client = stages["request"][row], stages["client"][row]
        first, last = (late[client, stages[step][row]] for step in ("first_step", "last_step"))
        assert stages["start_ns"][row] >= entered[row]
        assert results.metrics.first_token_ns[request] == stages["first_token_ns"][row] + 2_000_000 + first
        assert record.finish_ns[request] == stages["end_ns"][row] + 2_000_000 + last
    literal = simulate(scenario(given, stepping="every_step"))
    assert columns(results).tolist() == columns(literal).tolist()


def test_one_server_before_two_engines_has_a_ceiling():
    """120 requests/s of 200 tokens come: one event loop serves 1 s / (1.4 ms + 200 x 59 us) = 75.8/s."""
    def served(**servers):
        given = scenario(servers, rate=120, requests=400, output=200)
        given["workload"]["lengths"] = {"kind": "fixed", "prompt": 220, "output": 200}
        results = simulate(given)
        return results, 400 / results.summary["makespan_s"]

    results, one = served(engines=2)
    assert one == pytest.approx(75.8, rel=0.06)   # it has little to do in the first 0.3 s
    assert "front end" in str(results.summary["binds"])
    _, two = served(engines=2, count=2)
    _, chunks = served(engines=2, stream_interval=10)
    _, own = served()
    assert min(two, chunks, own) > 80   # arrivals take 3.3 s, an answer 1.4 s


def test_a_server_that_keeps_up_costs_next_to_nothing():
    """A token alone is in `frontend.after`, a request alone in `frontend.before`."""
    given = {"requests": 20, "rate": 0.5}
    with_one, without = simulate(scenario({"engines": 2}, **given)), simulate(scenario(None, **given))
    assert columns(with_one).tolist() == columns(without).tolist()


def test_a_run_above_5000_tokens_per_second_says_what_one_server_takes():
    busy, calm = (simulate(scenario(None, rate=rate, requests=300, output=60)) for rate in (400.0, 10.0))
    lines = [one for one in busy.summary["assumes"] if one["name"] == "API servers"]
    assert "one process sends up to 17,000 tokens/s (11,000 to 24,000)" in lines[0]["default"]
    assert lines[0]["alternative"] == "one for all 2 engines"
    assert not any(one["name"] == "API servers" for one in calm.summary["assumes"])


def test_the_tokens_that_count_are_those_of_the_groups_own_clients():
    """Beside a busy group, whose servers the scenario gives, that of 10 requests/s has no entry."""
    both = scenario(dict.fromkeys(SERVERS, "1 us"), rate=400.0, requests=300, output=60)
    (busy,), load_ = both["clients"], both["workload"]
    both["clients"] = [busy, busy | {"name": "calm", "count": 1, "model": "qwen2.5-0.5b", "api_servers": None}]
    both["workload"] = [load_ | {"name": "busy", "model": busy["model"]}, load_ | {
        "name": "calm", "model": "qwen2.5-0.5b", "arrivals": {"kind": "poisson", "rate": 10.0}}]
    assert not any(one["name"] == "API servers" for one in simulate(both).summary["assumes"])


def test_where_servers_are_busy_the_range_has_theirs():
    alone, busy = (simulate(scenario(servers, rate=400.0, requests=300, output=100)).summary["sources"][0]["results"]
                   for servers in (None, {"engines": 2}))
    low, high = load_engine("vllm-0.33").frontend.spread
    assert busy["times"]["low"] == pytest.approx(alone["times"]["low"] * low, rel=0.1)
    assert busy["times"]["high"] == pytest.approx(alone["times"]["high"] * high, rel=0.1)


def test_flags_of_vllm_read_and_written():
    read = vllm.client_of("vllm serve Qwen/Qwen2.5-1.5B-Instruct --api-server-count 4 --stream-interval 10")
    assert read.client["api_servers"] == {"count": 4, "stream_interval": 10}
    given = scenario({"count": 4, "stream_interval": 10})
    (_, command), = vllm.commands_of(load_scenario(given))
    assert "--api-server-count 4" in command
    assert "--stream-interval 10" in command


@pytest.mark.parametrize(("client", "message"), [
    ({"count": "1P1D"}, "api_servers: not modelled with a role"),
    ({"scheduler": {"kind": "sglang"}, "api_servers": {}}, "per_token: missing: what a server of sglang-0.5 takes was"),
    ({"scheduler": {"kind": "sglang"}, "api_servers": {"per_token": 1e-4}}, "per_request: missing: .* give"),
    ({"engine": "sglang-0.5", "api_servers": {"per_token": 1e-4, "per_request": 1e-3}}, "per_chunk: missing: "),
    ({"fleet": {"start": 1, "start_up": {"total": 1}}, "api_servers": {"engines": 2}}, "engines: not modelled with"),
])
def test_what_has_no_servers_of_this_kind(client, message):
    with pytest.raises(InputError, match=message):
        simulate(scenario({}, **client) if "api_servers" not in client else {
            **scenario({}), "clients": [scenario({})["clients"][0] | client]})


def test_what_is_left_out_is_the_engines():
    assert ApiServers(per_token="1 ms").figures("vllm-0.33") == pytest.approx((1.4e-3, 1e-3 + 37e-6))
    whole = ApiServers(per_request="2 ms", per_token="1 ms", per_chunk="0 s", stream_interval=2)
    assert whole.figures("sglang-0.5") == pytest.approx((2e-3, 1e-3))


def test_every_version_of_vllm_has_the_figures():
    times = [load_engine(name).frontend for name in vllm_engines()]
    assert all(np.isclose(one.per_token + one.per_chunk, 59e-6) for one in times)
    assert load_engine("sglang-0.5").frontend.per_token == 0.0


@pytest.mark.long
def test_published_runs_are_within_their_printed_range():
    """1,000 prompts at once, whose last answer the engine decides, and 76.5/s of 120 before two engines."""
    found = load("scripts/api_servers.py")
    for one in found.BURSTS:
        low, high = found.burst(one, {})["total"][1:]
        assert low <= one.total_s <= high, one.thread
    assert 70.0 <= found.pair(1) <= 85.0
    assert found.pair(2) > 100.0
