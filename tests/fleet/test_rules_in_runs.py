"""Rules of named systems in whole runs, each with the figure that the system's rule gives."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from each import each

from hermes import simulate
from hermes.core.record import DRAINING, STARTING
from hermes.results.results import Results

S = 1_000_000_000


def run(text: str, **keys: Any) -> Results:
    return simulate(yaml.safe_load(text) | keys)


def started(results: Results) -> list[tuple[int, float]]:
    return [(client, time / S) for client, _, time, state in results.record.membership.tolist() if state == STARTING]


def test_an_hpa_without_behavior_has_four_replicas_at_15_s_and_eight_at_30_s() -> None:
    """40 users on one replica with a target of 5 ask for 8: max(2 x 1, 4) = 4, then max(2 x 4, 4) = 8. With `behavior`
    1 + 4 = 5 at 15 s, and 8 at 30 s."""
    text = """
workload: {requests: 300, arrivals: {kind: closed_loop, users: 40}, lengths: {kind: fixed, prompt: 512, output: 500}}
clients:
  - name: vllm
    count: 8
    model: llama-3.1-8b
    device: h100-sxm
    fleet: {start: 1, start_up: {total: 50 s}, autoscaler: {kind: hpa, metrics: [{metric: running, target: 5}]}}
router: {kind: least_loaded, load: requests}
"""
    assert started(run(text)) == [(client, 15.0 if client < 4 else 30.0) for client in range(1, 8)]
    ruled = yaml.safe_load(text)
    ruled["clients"][0]["fleet"]["autoscaler"]["scale_up"] = {}
    assert [at for _, at in started(simulate(ruled))] == [15.0] * 4 + [30.0] * 3


def test_a_variant_that_does_not_report_freezes_nothing() -> None:
    """b's only replica is down from 19.95 s on, for 20 minutes. 60 users saturate the batch of 16 of a: 2 are published
    at 60 s, and the HPA takes the lowest of 240 s: 240 s; the next 3 are published once the second reports, 585 s.
    Frozen as before, a stays at 1: TTFT p50 23.8 s, 1,385 s."""
    results = run("""
workload: {requests: 3000, arrivals: {kind: closed_loop, users: 60}, lengths: {kind: fixed, prompt: 512, output: 1000}}
clients:
  - name: a
    count: 4
    model: llama-3.1-8b
    device: h100-sxm
    scheduler: {kind: chunked, max_num_seqs: 16}
    fleet: {start: 1, start_up: {total: 60 s}}
  - name: b
    count: 4
    model: llama-3.1-8b
    device: a100-80gb
    scheduler: {kind: chunked, max_num_seqs: 16}
    fleet: {start: 1, start_up: {total: 20 min}, crashes: [{at: 19.95 s, replica: 0}],
            probe: {period: 1 s, failures: 1, delay: 0 s, offset: 0 s}}
autoscalers: [{groups: [a, b], autoscaler: {kind: wva, costs: {a: 5, b: 20}}}]
gateway: {retries: 10, begun: restart, queue: {ttl: 1 h}}
router: {kind: least_loaded, load: requests}
""")
    assert started(results) == [(4, 19.95), (1, 240.0), (2, 585.0)]
    assert results.summary["latency"]["ttft_s"]["p50"] == pytest.approx(8.05, abs=0.01)
    assert results.summary["makespan_s"] == pytest.approx(811, abs=1)


@pytest.mark.long
def test_a_new_tenant_waits_for_what_is_left_of_an_older_ones_service() -> None:
    """`old` is served alone for 300 s. Its service decays all the time, half in 60 s; without the decay `new` is ahead
    until it has as much (p50 7.0 s). A place is free once the engine is done: a front end that sends for 1.5 ms holds
    it as long, prompts meet in other steps, and the engine serves 0.6% more (p50 81.8 s)."""
    results = run("""
workload:
  - name: old
    requests: 8000
    arrivals: {kind: poisson, rate: 16 /s}
    lengths: {kind: fixed, prompt: 512, output: 128}
    tenants: {values: [old]}
  - name: new
    requests: 4000
    start: 300 s
    arrivals: {kind: poisson, rate: 16 /s}
    lengths: {kind: fixed, prompt: 512, output: 128}
    tenants: {values: [new]}
clients: [{name: llm, model: llama-3.1-8b, device: h100-sxm, frontend: {before: 4.5 ms, after: 0}}]
gateway:
  flow_control: {detector: {kind: concurrency, limit: 16}, fairness: {kind: least_attained_service}, ttl: 1 h}
router: {kind: llm_d}
""")
    assert results.summary["gateway"]["tenant"]["new"]["waited_s"]["p50"] == pytest.approx(83.4, rel=0.01)


@pytest.mark.long
@each("count", [4, 5])
def test_an_empty_slot_is_no_worker_of_sglangs_gateway(count: int) -> None:
    """Four replicas serve. A fifth slot of load 0 would make the loads unequal at 65 in flight (hits 39.8%)."""
    results = run(f"""
workload:
  requests: 6000
  arrivals: {{kind: closed_loop, users: 400}}
  prefixes: {{groups: 200, tokens: 4096}}
  lengths: {{kind: fixed, prompt: 4352, output: 200}}
clients:
  - name: llm
    count: {count}
    model: llama-3.1-8b
    device: h100-sxm
    memory: {{num_blocks: 24000}}
    fleet: {{start: 4, start_up: {{total: 60 s}}}}
router: {{kind: sglang_cache_aware}}
""")
    assert results.summary["cache"]["hit_rate"] == pytest.approx(0.647, abs=0.0005)


def test_llm_ds_session_scorer_abstains_without_sessions() -> None:
    """2,000 requests without a session on four clients: about 500 each (1,410 at the first one before)."""
    results = run("""
workload: {requests: 2000, arrivals: {kind: poisson, rate: 20 /s}, lengths: {kind: fixed, prompt: 512, output: 128}}
clients: [{name: llm, count: 4, model: llama-3.1-8b, device: h100-sxm}]
router: {kind: llm_d, scorers: {queue: 2, kv: 2, prefix: 0, session: 1}}
""")
    counts = [client["stages"] for client in results.summary["clients"].values()]
    assert sum(counts) == 2000
    assert all(abs(count - 500) < 50 for count in counts)


@pytest.mark.long
@each("rules, drained", [("1.6.1", []), ("0c6da1ec", [85, 95, 170, 190])])
def test_dynamo_holds_two_workers_that_one_could_not_replace(rules: str, drained: list[int]) -> None:
    """220 users with 1,412 tokens at the end and 962 on average: 220 x 962 / 2 = 106,000 tokens for each of two
    workers of 200,000, 53%. All are below 60%, so that the older rules let one go, and ask for it again beyond 100%. By
    those of 1.6.1 2 x 53% forbids it. (At 5 s all prompts are new, 27%, and one goes by both; from 195 s on the users
    leave.)"""
    results = run("""
workload:
  requests: 3000
  arrivals: {kind: closed_loop, users: 220}
  lengths: {kind: independent, prompt: 512, output: {kind: uniform, min: 100, max: 1700}}
clients:
  - name: llm
    count: 4
    model: llama-3.1-8b
    device: h100-sxm
    memory: {num_blocks: 12500, block_size: 16}
    fleet: {start: 2, start_up: {total: 30 s}, autoscaler: {kind: dynamo_planner, target: throughput}}
router: {kind: least_loaded, load: requests}
""".replace("target:", f"rules: {rules}, target:"))
    at = {time // S for _, _, time, state in results.record.membership.tolist() if state == DRAINING}
    assert sorted(time for time in at if 30 <= time < 195) == drained
