"""Retries of clients, gateways and routers, by hand, to the nanosecond.

A step takes 1,000 ns and 100 ns more per prompt token (`hand_parts`): a prompt of 10 tokens takes 2,000 ns, and each
further token 1,000. Requests are retried at once where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Iterator

import hand_parts
import pytest
from each import each
from hand_parts import MODES, Data, Run, ask, client, fleet, s

from hermes.config.retries import CooldownConfig, EnvoyRetry, LitellmRetry, OpenaiRetry, SglangRetry
from hermes.core.clock import Clock
from hermes.core.statuses import status_of
from hermes.errors import InputError
from hermes.gateway.breakers import Breakers
from hermes.gateway.retries import BreakerPolicy, RetryBudget, RetryPolicy, breaker_of, policy_of
from hermes.scenario import load_scenario

each_mode = pytest.mark.parametrize("mode", MODES)
NONE: Data = {"retries": 0}
ONCE: Data = {"kind": "envoy", "backoff": 0.0}
FULL: Data = {"scheduler": {"max_num_queued_reqs": 1}}   # of an engine: one request at a time


@pytest.fixture(scope="module", autouse=True)
def _hand_parts() -> Iterator[None]:
    with hand_parts.registered():
        yield


# -- the waits of the named systems ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "least_ms", "most_ms"), [
    (EnvoyRetry(), [0, 0, 0, 0, 0], [25, 75, 175, 250, 250]),
    (LitellmRetry(), [500, 1000, 2000, 4000, 8000, 8000], [1250, 1750, 2750, 4750, 8750, 8750]),
    (SglangRetry(), [40, 60, 90, 135, 202.5], [60, 90, 135, 202.5, 303.75]),
    (OpenaiRetry(), [375, 750, 1500, 3000, 6000, 6000], [500, 1000, 2000, 4000, 8000, 8000]),
])
def test_waits_of_named_systems(config: EnvoyRetry, least_ms: list[float], most_ms: list[float]) -> None:
    policy = policy_of(config)
    for number, (least, most) in enumerate(zip(least_ms, most_ms, strict=True), start=1):
        ends = sorted(policy.wait_ns(number, lambda u=u: u) for u in (0.0, 1.0))
        assert ends == pytest.approx([least * 1e6, most * 1e6], abs=1)


def test_waits_of_sglangs_own_test() -> None:
    """test_backoff_no_jitter_progression_and_cap of its retry.rs."""
    policy = policy_of(SglangRetry(retries=10, backoff=0.1, max_backoff=0.25, factor=2.0, jitter=0.0))
    waits = [policy.wait_ns(number + 1, lambda: 0.5) for number in (0, 1, 2, 10)]
    assert waits == [100_000_000, 200_000_000, 250_000_000, 250_000_000]


def test_the_longest_wait_of_sglang_is_before_its_jitter() -> None:
    """50 ms x 1.5^16 is more than 30 s; with the jitter the wait is up to 36 s."""
    assert policy_of(SglangRetry()).wait_ns(17, lambda: 1.0) == 36_000_000_000


def test_a_wait_that_is_scaled_has_its_jitter_too() -> None:
    policy = RetryPolicy(backoff_ns=1000, most_ns=10_000, factor=2.0, low=0.5, high=1.5, jitter_ns=100)
    assert [policy.wait_ns(2, lambda u=u: u) for u in (0.0, 0.5, 1.0)] == [1000, 2050, 3100]


def test_defaults_of_named_systems() -> None:
    found = {kind.__name__: policy_of(kind()) for kind in (EnvoyRetry, LitellmRetry, SglangRetry, OpenaiRetry)}
    assert {name: policy.retries for name, policy in found.items()} == {
        "EnvoyRetry": 1, "LitellmRetry": 2, "SglangRetry": 4, "OpenaiRetry": 2}
    assert found["OpenaiRetry"].per_try_ns == 600 * 10**9
    assert breaker_of(SglangRetry()) == BreakerPolicy(10, 60 * 10**9, 3)
    assert breaker_of(LitellmRetry()) == BreakerPolicy(5, 5 * 10**9, memory_ns=60 * 10**9, share=0.5,
                                                       at_once=frozenset((429,)), lone=False)
    three = LitellmRetry(cooldown=CooldownConfig(allowed_fails=3))
    assert breaker_of(three) == BreakerPolicy(4, 5 * 10**9, memory_ns=5 * 10**9, lone=False)
    assert breaker_of(EnvoyRetry()) is None


# -- statuses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reason", "status"), [
    ("failed: llm-0 went down", 502), ("timed out: no answer within 1 s", 504), ("expired: no replica was ready", 503),
    ("unavailable: the gateway's queue is full (5 requests)", 503), ("limited: 3 requests wait", 429),
    ("overloaded: llm-0: max_num_queued_reqs: no more", 529), ("llm-0: max_num_queued_tokens: prompts of 4", 529),
    ("its client gave up: no first token within 1 s", 499), ("llm-0: 90 prompt and 4 output tokens are more", 400),
])
def test_statuses_of_reasons(reason: str, status: int) -> None:
    assert status_of(reason) == status


@each_mode
def test_results_count_statuses(mode: str) -> None:
    """The second finds the engine full."""
    found = Run([client(count=1, **FULL)], [ask(1000), ask(1100)], mode, gateway=NONE)
    assert found.results.summary["attempts"]["statuses"] == {"529": 1}
    assert len(found.attempts) == 1, "an engine's refusal that nothing retries is no attempt"


# -- the gateway and the router ----------------------------------------------------------------------------------------


@each_mode
def test_a_full_engine_is_tried_again_if_the_rules_say_so(mode: str) -> None:
    """One request at a time. The first is served until 1,000 + 2,000 + 2 x 1,000 = 5,000. The second, at 1,500, is
    refused; waits of exactly 1,000 x 2^(n - 1): again at 2,500 (refused), 4,500 (refused) and 8,500, until 10,500."""
    retry = {"kind": "openai", "retries": 3, "backoff": s(1000), "jitter": 0.0}
    asks = [ask(1000, 10, 3), ask(1500, 10, 1)]
    found = Run([client(count=1, **FULL)], asks, mode, gateway={"retry": retry})
    assert found.attempts == [
        (0, 1, 0, 1000, 5000, "completed"), (1, 1, 0, 1500, 1500, "failed"), (1, 2, 0, 2500, 2500, "failed"),
        (1, 3, 0, 4500, 4500, "failed"), (1, 4, 0, 8500, 10500, "completed")]
    short = Run([client(count=1, **FULL)], asks, mode, gateway={"retry": retry | {"retries": 2}})
    assert short.fates == {1: "overloaded"}
    assert short.reasons[1].startswith("overloaded: llm: max_num_queued_reqs: ")
    assert short.results.summary["attempts"]["statuses"] == {"529": 1}


@each_mode
def test_retries_only_after_their_statuses(mode: str) -> None:
    found = Run([client(count=1, **FULL)], [ask(1000, 10, 3), ask(1500, 10, 1)], mode,
                gateway={"retry": ONCE | {"retry_on": [502, 503]}})
    assert found.record.status.tolist() == [1, 2]
    assert len(found.attempts) == 1


@each_mode
def test_each_try_of_the_gateway_has_all_of_the_routers(mode: str) -> None:
    """The only replica is down from 2,000 on, unnoticed. The request of 3,000: router 1 + 1, gateway 1 + 2: 6 attempts.
    The gateway's waits are 500 and 1,000 (without jitter), the router's 0."""
    found = Run([client(fleet((2000, 0), start=1), count=1)], [ask(3000)], mode, gateway={
        "retry": {"kind": "openai", "backoff": s(500), "jitter": 0.0}, "router_retry": ONCE})
    assert [row[1:5] for row in found.attempts] == [
        (1, 0, 3000, 3000), (2, 0, 3000, 3000), (3, 0, 3500, 3500), (4, 0, 3500, 3500), (5, 0, 4500, 4500),
        (6, 0, 4500, 4500)]
    assert found.reasons == {0: "failed: llm cannot be reached, attempt 6"}


@each_mode
def test_time_outs_of_both_places(mode: str) -> None:
    """Output 8 takes 9,000. The router's attempts are late after 2,500, the gateway's tries after 4,000. Attempts:
    1,000 to 3,500 (the router's), 3,500 to 5,000 (the gateway's), 5,000 to 7,500, 7,500 to 9,000: the end."""
    found = Run([client()], [ask(1000)], mode, gateway={
        "retry": ONCE | {"per_try": s(4000), "begun": "restart"},
        "router_retry": ONCE | {"retries": 3, "per_try": s(2500), "begun": "restart"}})
    assert [row[2:5] for row in found.attempts] == [(0, 1000, 3500), (1, 3500, 5000), (0, 5000, 7500), (1, 7500, 9000)]
    assert found.fates == {0: "timed out"}


@each_mode
def test_a_budget_limits_the_retries_at_a_time(mode: str) -> None:
    """Three requests meet the dead replica at 3,000, 3,100 and 3,200. One retry at a time: the first waits for its
    retry until 3,000 + 150, so that the second ends at once, and the third is retried at 3,350."""
    retry = {"kind": "openai", "retries": 1, "backoff": s(150), "jitter": 0.0, "budget": {"share": 0.0, "min": 1}}
    found = Run([client(fleet((2000, 0), start=1), count=1)], [ask(at) for at in (3000, 3100, 3200)], mode,
                gateway={"retry": retry})
    assert [row[:2] + row[3:4] for row in found.attempts] == [(0, 1, 3000), (1, 1, 3100), (0, 2, 3150), (2, 1, 3200),
                                                              (2, 2, 3350)]
    assert found.reasons[1] == "failed: llm cannot be reached; no more retries at a time"


def test_a_budget_is_a_share_of_the_active_requests() -> None:
    """Envoy: 20%, at least 3. Of 15 active ones 3, of 16 more than 3.2 are needed: a fourth is allowed."""
    budget = RetryBudget((0.2, 3))
    budget.active, budget.retrying = 15, 3
    assert not budget.allows()
    budget.active = 16
    assert budget.allows()


@each_mode
def test_a_full_decode_client_gives_way_to_a_dead_one(mode: str) -> None:
    """Decode clients take one request at a time, in turn: the first goes to 0, which crashes later, unnoticed; the
    second to 1, for long. The third goes to 0, which cannot be reached; the fourth to 1, which is full, and therefore
    to 0, in vain as well."""
    clients = [client(name="prefill", count=1, role="prefill"),
               client(fleet((20000, 0)), name="decode", role="decode", **FULL)]
    found = Run(clients, [ask(1000, 10, 2), ask(8000, 10, 60), ask(25000), ask(30000)], mode, gateway=NONE,
                network={"kind": "link", "bandwidth": "50 GB/s"})
    assert found.reasons == dict.fromkeys((2, 3), "failed: decode-0 cannot be reached")
    assert found.record.status.tolist() == [1, 1, 2, 2]


@each_mode
def test_a_breaker_counts_decode_clients(mode: str) -> None:
    """As above without limits: one failure keeps decode client 0 out, so that the fourth is answered by 1."""
    clients = [client(name="prefill", count=1, role="prefill"),
               client(fleet((20000, 0)), name="decode", role="decode")]
    retry = {"kind": "sglang", "retries": 0, "breaker": {"failures": 1, "time": 1.0}}
    found = Run(clients, [ask(1000, 10, 2), ask(8000, 10, 2), ask(25000), ask(30000), ask(40000)], mode,
                gateway={"retry": retry}, network={"kind": "link", "bandwidth": "50 GB/s"})
    assert found.record.status.tolist() == [1, 1, 2, 1, 1]


# -- replicas that are kept out ----------------------------------------------------------------------------------------


def test_a_breaker_opens_tests_and_closes() -> None:
    """Two failures in a row open for 100; one failure of a client on test opens again; after two successes failures
    count from 0."""
    env = Clock()
    breakers = Breakers(env, BreakerPolicy(2, 100, 2))

    def until(time_ns: int) -> None:
        env.tick_at(time_ns, 10**7, lambda tick: None)
        env.drain(None, None)

    breakers.failed(0, 7, 502, alone=False)
    breakers.succeeded(0, 7)
    breakers.failed(0, 7, 502, alone=False)
    assert not breakers.is_open(0, 7), "a success between them"
    breakers.failed(0, 7, 502, alone=False)
    assert breakers.is_open(0, 7)
    assert not breakers.is_open(1, 7), "another gateway has not seen it"
    until(100)
    assert not breakers.is_open(0, 7)
    breakers.failed(0, 7, 502, alone=False)
    assert breakers.is_open(0, 7), "on test"
    until(200)
    breakers.succeeded(0, 7)
    breakers.succeeded(0, 7)
    breakers.failed(0, 7, 502, alone=False)
    assert not breakers.is_open(0, 7)
    assert breakers.opened == 2


@each("answers, opens", [
    ("xxxx", None),            # four failures: too few answers
    ("xxxxx", 4),
    ("xoxox", 4),              # 3 of 5, as seen: [500, 200, 500, 200, 500]
    ("xxoxx", 4),              # 4 of 5, as seen
    ("ooxxx", 4),              # 3 of 5
    ("oooxxxx", 6),            # 3 of 6 is not more than half, 4 of 7 is
    ("ooooooooo", None),
    ("4", 0), ("oooo4", 4),    # one 429
])
def test_litellm_cools_a_replica_as_seen(answers: str, opens: int | None) -> None:
    """LiteLLM 1.110.2, run against a server that answers 200, 429 and 500: it cools one of two deployments for 5 s."""
    env = Clock()
    policy = breaker_of(LitellmRetry())
    assert policy is not None
    breakers, found = Breakers(env, policy), None
    for n, answer in enumerate(answers):
        if answer == "o":
            breakers.succeeded(0, 7)
        else:
            breakers.failed(0, 7, 429 if answer == "4" else 502, alone=False)
        if found is None and breakers.is_open(0, 7):
            found = n
    assert found == opens
    lone = Breakers(env, policy)
    for _ in range(12):
        lone.failed(0, 7, 429, alone=True)
    assert not lone.is_open(0, 7), "as seen: the only deployment is never cooled"


def test_litellm_counts_anew_a_minute_after_the_first() -> None:
    """Four failures at 0 s, and one at 60 s: 5 of 5. At 61 s they are forgotten: one more is the first of a new minute.
    """
    policy = breaker_of(LitellmRetry())
    assert policy is not None
    opened = []
    for last_s in (60, 61):
        env = Clock()
        breakers = Breakers(env, policy)
        for _ in range(4):
            breakers.failed(0, 0, 502, alone=False)
        env.tick_at(last_s * 10**9, 0, lambda tick, it=breakers: it.failed(0, 0, 502, alone=False))
        env.drain(None, None)
        opened.append(breakers.opened)
    assert opened == [1, 0]


@each_mode
def test_litellm_waits_before_it_asks_the_only_replica_again(mode: str) -> None:
    """The only replica is down for ever: attempts at 3,000, after 500 ms and after 1 s more. Of two, one dead, the
    retry comes at once, wherever it goes."""
    retry = {"kind": "litellm", "jitter": 0.0, "backoff": s(500)}
    alone = Run([client(fleet((2000, 0), start=1), count=1)], [ask(3000)], mode, gateway={"retry": retry})
    assert [row[3] for row in alone.attempts] == [3000, 3500, 4500]
    two = Run([client(fleet((2000, 0)))], [ask(3000, 10, 1)], mode, gateway={"retry": retry})
    assert [(row[2], row[3], row[5]) for row in two.attempts] == [(0, 3000, "failed"), (1, 3000, "completed")]


def test_failures_of_litellm_are_forgotten_after_a_while() -> None:
    env = Clock()
    breakers = Breakers(env, BreakerPolicy(2, 100, memory_ns=100))
    breakers.failed(0, 0, 502, alone=False)
    env.tick_at(100, 0, lambda tick: breakers.failed(0, 0, 502, alone=False))
    env.tick_at(199, 0, lambda tick: breakers.failed(0, 0, 502, alone=False))
    env.tick_at(250, 0, lambda tick: open_at.append(breakers.is_open(0, 0)))
    open_at: list[bool] = []
    env.drain(None, None)
    assert open_at == [True]
    assert breakers.opened == 1
    assert not breakers.is_open(0, 0)


@each_mode
def test_a_replica_that_fails_is_kept_out_for_a_while(mode: str) -> None:
    """Replica 0 is down from 2,000 on. In turn, the request of 3,000 goes to it and is retried at 1. The circuit is
    open until 3,000 + 5,000: those of 4,000 and 5,000 go to 1. In turn again, that of 9,000 goes to 1, and that of
    10,000 meets replica 0, which opens its circuit."""
    retry = {"kind": "sglang", "retries": 1, "backoff": 0.0, "breaker": {"failures": 1, "time": s(5000)}}
    found = Run([client(fleet((2000, 0)))], [ask(at, 10, 1) for at in (3000, 4000, 5000, 9000, 10000)], mode,
                gateway={"retry": retry})
    assert [(row[0], row[2], row[5]) for row in found.attempts] == [
        (0, 0, "failed"), (0, 1, "completed"), (1, 1, "completed"), (2, 1, "completed"), (3, 1, "completed"),
        (4, 0, "failed"), (4, 1, "completed")]


@each_mode
def test_without_a_closed_circuit_a_request_gets_503(mode: str) -> None:
    retry = {"kind": "sglang", "retries": 0, "breaker": {"failures": 1, "time": s(5000)}}
    found = Run([client(fleet((2000, 0), start=1), count=1)], [ask(3000), ask(4000)], mode, gateway={"retry": retry})
    assert found.attempts == [(0, 1, 0, 3000, 3000, "failed"), (1, 1, -1, 4000, 4000, "failed")]
    assert found.fates == {0: "failed", 1: "unavailable"}
    assert found.results.summary["attempts"]["statuses"] == {"502": 1, "503": 1}


# -- clients -----------------------------------------------------------------------------------------------------------


@each_mode
def test_a_client_offers_its_request_again(mode: str) -> None:
    """One request at a time, the first until 5,000. The client of the second offers it at 1,500, 1,500 + 2,000 and
    3,500 + 4,000, when it is served until 9,500. TTFT counts from 1,500."""
    retry = {"kind": "openai", "backoff": s(2000), "jitter": 0.0}
    found = Run([client(count=1, **FULL)], [ask(1000, 10, 3), ask(1500, 10, 1, retry=retry)], mode, gateway=NONE)
    assert found.attempts == [(0, 1, 0, 1000, 5000, "completed"), (1, 1, 0, 7500, 9500, "completed")]
    assert found.record.notes["client_tries"].tolist()[1] == 3
    assert found.results.requests["ttft_s"].iloc[1] == pytest.approx(s(8000), abs=1e-15)
    assert found.results.summary["attempts"]["client_retries"] == {"requests": 1, "offers": 2}
    given_up = Run([client(count=1, **FULL)], [ask(1000, 10, 9), ask(1500, 10, 1, retry=retry)], mode, gateway=NONE)
    assert given_up.ends == [11000, 7500]
    assert given_up.results.summary["attempts"]["statuses"] == {"529": 1}


@pytest.mark.feature("Plug-ins of research", (
    "Retries of clients, gateways and routers by named rules; budgets, circuit breakers, statuses"))
@each_mode
def test_client_gateway_and_router_multiply(mode: str) -> None:
    """2 offers x 2 tries of the gateway x 2 of the router, all at the dead replica: 8 attempts, in two calls."""
    found = Run([client(fleet((2000, 0), start=1), count=1)], [ask(3000, retry=ONCE)], mode,
                gateway={"retry": ONCE, "router_retry": ONCE})
    assert len(found.attempts) == 8
    assert found.record.attempts["call"].tolist() == [0] * 4 + [1] * 4
    assert found.record.attempts["request"].tolist() == [0] * 8


@each_mode
def test_the_time_out_of_a_client(mode: str) -> None:
    """Time-out 4,000, output 8 (9,000), blocks of 4 with caching. Offered at 1,000 and, from the start, at 5,000; late
    at 9,000: the end. The first had tokens at 3,000, 4,000 and 5,000, when it leaves; the second finds the prompt."""
    retry = {"kind": "openai", "retries": 1, "backoff": 0.0, "per_try": s(4000), "begun": "restart"}
    found = Run([client(count=1, size=4, caching=True)], [ask(1000, retry=retry)], mode, gateway=NONE)
    assert [row[:1] + row[3:] for row in found.attempts] == [(0, 1000, 5000, "cancelled"), (0, 5000, 9000, "cancelled")]
    assert found.record.stages["cached_tokens"].tolist() == [0, 8]
    assert found.fates == {0: "timed out"}
    assert found.reasons == {0: "timed out: its client had no answer within 4e-06 s"}
    strict = Run([client(count=1)], [ask(1000, retry=retry | {"begun": "fail"})], mode, gateway=NONE)
    assert strict.ends == [5000], "its user had a token"


@each_mode
def test_patience_ends_all_offers(mode: str) -> None:
    """As the first, but the client gives up at 1,500 + 5,000, between two offers."""
    retry = {"kind": "openai", "backoff": s(2000), "jitter": 0.0}
    impatient = ask(1500, 10, 1, retry=retry, patience={"total": s(5000)})
    found = Run([client(count=1, **FULL)], [ask(1000, 10, 3), impatient], mode, gateway=NONE)
    assert found.ends == [5000, 6500]
    assert found.reasons[1].startswith("its client gave up")


@each_mode
def test_a_conversation_goes_on_after_a_retry(mode: str) -> None:
    """The first turn is refused and offered again; the second turn comes after its answer, and finds its KV: blocks of
    4, 41 + 8 + 41 tokens, of which 48 are in full blocks."""
    turns = ask(1500) | {"requests": 2, "retry": {"kind": "openai", "backoff": s(8000), "jitter": 0.0}, "lengths": {
        "kind": "conversations", "turns": 2, "message": 41, "output": 8, "think_time": s(1000)}}
    found = Run([client(count=1, size=4, caching=True, **FULL)], [ask(1000, 10, 3), turns], mode, gateway=NONE)
    assert [row[0] for row in found.attempts] == [0, 1, 2]
    assert found.attempts[1][3] == 9500
    assert found.record.stages["cached_tokens"].tolist() == [0, 0, 48]


def test_results_of_a_run_without_attempts() -> None:
    """A gateway that only client retries asked for, and no stage that goes through it: the engine serves no request."""
    found = Run([client(count=1, **FULL)], [ask(1000, 10, 3, branches=2, retry=ONCE)], gateway=NONE)
    assert found.attempts == []
    assert found.record.status.tolist() == [2]
    assert found.results.summary["attempts"]["statuses"] == {"529": 1}


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("keys", "message"), [
    ({"gateway": {"retries": 2, "retry": {"kind": "envoy"}}}, "stands in `retry`"),
    ({"gateway": {"retry": {"kind": "sglang"}, "router_retry": {"kind": "litellm"}}}, "both keep replicas out"),
    ({"gateway": {"retry": {"kind": "envoy", "retry_on": [503, 503]}}}, "listed twice"),
])
def test_rules_that_exclude_each_other(keys: Data, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_scenario({"workload": [ask(1)], "clients": [client()]} | keys)


def test_breakers_need_a_router_that_follows() -> None:
    with pytest.raises(InputError, match="places both phases"):
        Run([client()], [ask(1)], gateway={"retry": {"kind": "sglang"}}, router={"kind": "mixed_pool"})
