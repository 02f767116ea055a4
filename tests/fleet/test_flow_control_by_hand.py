"""Flow control and admission at the gateway, by hand, to the nanosecond.

A step takes 1,000 ns and 100 ns more per prompt token (`hand_parts`): a prompt of 10 tokens takes 2,000 ns, and with 8
tokens of output 9,000. All constants are a thousandth of llm-d's: a cycle each 1,000 ns, a scrape each 50,000 ns, stale
after 200,000 ns. Where nothing else is said, one request in flight saturates the pool.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import hand_parts
import pytest
from conservation import assert_held
from hand_parts import MODES, Data, Run, ask, client, fleet, s

from hermes.config.streams import stream
from hermes.config.validation import validate
from hermes.core.record import HELD_OUTCOMES
from hermes.errors import InputError
from hermes.gateway.fairness import Service
from hermes.gateway.flow_config import FlowControlConfig

each_mode = pytest.mark.parametrize("mode", MODES)
SCRAPED = {"kind": "utilization", "scrape": s(50_000), "stale": s(200_000)}
CLASSES = {"gold": {"priority": 2}, "basic": {"priority": 0}, "batch": {"priority": -1}}


@pytest.fixture(scope="module", autouse=True)
def _hand_parts() -> Iterator[None]:
    with hand_parts.registered():
        yield


def run(asks: list[Data], mode: str, *, clients: list[Data] | None = None, limit: int = 1, classes: Data | None = None,
        tenants: Data | None = None, keys: Data | None = None, **flow: object) -> Run:
    """Return a run with flow control; `keys` are of the gateway, `flow` of its flow control."""
    own = {"cycle": s(1000), "detector": {"kind": "concurrency", "limit": limit}} | flow
    gateway = {"flow_control": own, "classes": classes or {}, "tenants": tenants or {}} | (keys or {})
    found = Run(clients or [client(count=1)], asks, mode, gateway=gateway)
    assert_held(found.record, 1000)
    return found


def of(name: str, at: int, prompt: int = 10, output: int = 1, **more: object) -> Data:
    """Return a request of a class."""
    return ask(at, prompt, output, classes={"values": [name]}, **more)


def by(name: str, at: int, prompt: int = 10, output: int = 1) -> Data:
    """Return a request of a tenant."""
    return ask(at, prompt, output, tenants={"values": [name]})


def held(found: Run) -> list[tuple[int, int, int, str]]:
    """(request, queued, left, how) of each call that was held."""
    table = found.record.held
    rows = zip(*(table[name].tolist() for name in ("request", "asked_ns", "left_ns", "outcome")), strict=True)
    return [(request, asked, left, HELD_OUTCOMES[outcome]) for request, asked, left, outcome in rows]


def order(found: Run) -> list[int]:
    """Requests in the order in which they left."""
    return [row[0] for row in found.attempts]


# -- cycles and scrapes ------------------------------------------------------------------------------------------------


@each_mode
def test_with_room_requests_leave_as_they_come(mode: str) -> None:
    """A cycle runs when a request is queued, on a tick or not: two of an instant leave at it, one in each of two."""
    found = run([ask(at, 10, 1) for at in (1500, 3700, 3700, 5000)], mode, limit=100)
    assert [row[1:] for row in held(found)] == [(1500, 1500, "dispatched"), (3700, 3700, "dispatched"),
                                                (3700, 3700, "dispatched"), (5000, 5000, "dispatched")]


@each_mode
def test_the_next_leaves_at_the_tick_after_an_end(mode: str) -> None:
    """The first runs from 500 until 9,500. Its end opens the pool; the next tick is 10,000."""
    found = run([ask(500), ask(1000, 10, 1), ask(1001, 10, 1)], mode)
    assert held(found) == [(0, 500, 500, "dispatched"), (1, 1000, 10000, "dispatched"), (2, 1001, 12000, "dispatched")]
    assert found.finish == [9500, 12000, 14000]
    assert found.results.requests["gateway_s"].tolist() == pytest.approx([0, s(9000), s(10999)], abs=1e-15)
    assert found.results.requests["ttft_s"].tolist() == pytest.approx([s(2000), s(11000), s(12999)], abs=1e-15)


@each_mode
def test_fifty_leave_between_two_scrapes(mode: str) -> None:
    """The engine has one seat, and is scraped at 31,577, 81,577, 131,577, ... Until the first scrape it counts as
    empty: seven requests of time 0 leave at once. The first has 70 tokens, until 71,000; the others take 2,000 each,
    until 83,000. The scrape at 31,577 shows 6 that wait: 6/5 is saturated, and 60 requests of 60,000 wait.

    The scrape at 81,577 shows the step that ended at 81,000, with 1 that waits. One leaves at each tick from 82,000 on,
    the fiftieth at 131,000. Then a scrape shows the step of 131,000: 24 of them have been served, since 83,000 in 2,000
    each, and 25 of the 49 that had come wait: saturated. At 181,000 all but one have been served: that scrape lets the
    last ten leave, from 182,000 on.
    """
    assert int(stream(0, "views/router/llm").random() * 50_000) == 31_577
    asks = [ask(0, 10, 70), *(ask(0, 10, 1) for _ in range(6)), *(ask(60_000, 10, 1) for _ in range(60))]
    found = run(asks, mode, clients=[client(count=1, scheduler={"max_num_seqs": 1})], detector=SCRAPED)
    left = [row[2] for row in held(found)]
    assert left[:7] == [0] * 7
    assert left[7:57] == list(range(82_000, 132_000, 1000))
    assert left[57:] == list(range(182_000, 192_000, 1000))


@each_mode
def test_a_replica_that_is_not_scraped_counts_as_full(mode: str) -> None:
    """The only replica crashes at 50,000; nobody notices before it is ready again, at 550,000. Its last scrape, at
    31,577, showed it empty. At 231,577 that is 200,000 old, and not stale yet: requests of 100,000 and 231,577 leave,
    and fail. That of 231,578 waits. A replica that is ready again has no scrape before 581,577: it leaves at
    582,000."""
    found = run([ask(at, 10, 1) for at in (100_000, 231_577, 231_578)], mode, detector=SCRAPED,
                clients=[client(fleet((50_000, 0), start=1, up=500_000), count=1)], keys={"retries": 0})
    assert held(found) == [(0, 100_000, 100_000, "dispatched"), (1, 231_577, 231_577, "dispatched"),
                           (2, 231_578, 582_000, "dispatched")]
    assert found.fates == {0: "failed", 1: "failed"}
    assert found.finish == [-1, -1, 584_000]


@each_mode
def test_kv_use_saturates(mode: str) -> None:
    """20 blocks of a token; a sequence of 10 + 8 tokens holds 16 of them at the end of the step of 8,000, its sixth
    after the prompt: 16/20 / 0.8 is saturated. Scraped each 1,000 ns at an offset of 631 (0.63154 of the period): the
    scrape of 8,631 shows it, and that of 9,631 the empty memory. A request of 8,000 leaves at once, one of 8,700 at
    10,000."""
    assert int(stream(0, "views/router/llm").random() * 1000) == 631
    found = run([ask(0), ask(8000, 1, 1), ask(8700, 1, 1)], mode, clients=[client(count=1, blocks=20)],
                detector={"kind": "utilization", "scrape": s(1000), "stale": s(4000)})
    assert [row[1:3] for row in held(found)] == [(0, 0), (8000, 8000), (8700, 10000)]


@each_mode
def test_of_prefill_and_decode_replicas_the_fuller_counts(mode: str) -> None:
    """The first is at the prefill client until its 10,000 bytes have moved, at 2,200, and at the decode client until
    its end at 10,200: either saturates the pool. The second leaves at the tick after that."""
    roles = [client(name=role, count=1, role=role) for role in ("prefill", "decode")]
    found = run([ask(0), ask(500, 10, 1)], mode, clients=roles)
    assert found.moves[0][3:] == (10_000, 2000, 2200)
    assert found.finish[0] == 10_200
    assert held(found)[1] == (1, 500, 11_000, "dispatched")


# -- shed, expired, given up -------------------------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize("limits", [{"max": 2}, {"max_bytes": 80}])
def test_a_full_band_refuses(mode: str, limits: Data) -> None:
    """Two may wait; a prompt of 10 tokens counts 40 bytes. The third, at 3,000, is refused. Another band has a limit of
    its own: gold, at 3,500, waits, and is first."""
    asks = [of("basic", 0, 10, 8), of("basic", 1000), of("basic", 2000), of("basic", 3000), of("gold", 3500)]
    found = run(asks, mode, classes={name: CLASSES[name] for name in ("gold", "basic")}, **limits)
    assert held(found)[1:] == [(1, 1000, 11000, "dispatched"), (2, 2000, 13000, "dispatched"), (3, 3000, 3000, "shed"),
                               (4, 3500, 9000, "dispatched")]
    assert found.ends[3] == 3000
    assert found.fates == {3: "shed"}
    assert found.reasons[3].startswith("shed: band 0 holds ")
    summary = found.results.summary
    assert summary["gateway"]["held"] == {"waiting": 0, "dispatched": 4, "shed": 1, "expired": 0, "given_up": 0}
    assert summary["gateway"]["band"]["0"]["shed"] == 1
    assert summary["attempts"]["requests"]["shed"] == 1


@each_mode
@pytest.mark.parametrize("limits", [{"total": 2}, {"total_bytes": 80}])
def test_all_bands_together_have_a_limit(mode: str, limits: Data) -> None:
    """Two wait, of either band; gold of 3,500 is refused, though its band is empty. At 9,000 the first one leaves."""
    asks = [of("basic", 0, 10, 8), of("basic", 1000), of("basic", 2000), of("gold", 3500), of("gold", 9500)]
    found = run(asks, mode, classes={name: CLASSES[name] for name in ("gold", "basic")}, **limits)
    assert held(found)[1:] == [(1, 1000, 9000, "dispatched"), (2, 2000, 13000, "dispatched"), (3, 3500, 3500, "shed"),
                               (4, 9500, 11000, "dispatched")]
    assert found.reasons[3].startswith("shed: the queue holds ")


@each_mode
@pytest.mark.parametrize("limits", [{"max": 1}, {"max_bytes": 40}])
def test_a_band_has_limits_of_its_own(mode: str, limits: Data) -> None:
    """One of gold may wait, and two of basic."""
    asks = [of("basic", 0, 10, 8), *(of("basic", 1000) for _ in range(3)), *(of("gold", 2000) for _ in range(2))]
    found = run(asks, mode, classes={name: CLASSES[name] for name in ("gold", "basic")}, max=2,
                bands=[{"priority": 2, **limits}])
    assert found.fates == {3: "shed", 5: "shed"}
    assert order(found) == [0, 4, 1, 2]


@each_mode
def test_a_band_has_rules_of_its_own(mode: str) -> None:
    """Of gold the one with the shorter time to its deadline goes first, which came last; of batch the tenants take
    turns, by name. Of basic, which has no rules of its own, the first that came."""
    def asked(name: str, at: int, tenant: str) -> Data:
        return of(name, at, tenants={"values": [tenant]})

    classes = {"gold": {"priority": 2, "ttft": s(90_000)}, "soon": {"priority": 2, "ttft": s(20_000)}, "basic": {},
               "batch": {"priority": -1}}
    asks = [asked("basic", 0, "a"), *(asked("batch", at, "b") for at in (100, 200)), asked("batch", 300, "a"),
            asked("gold", 400, "a"), asked("soon", 500, "a"), *(asked("basic", at, "b") for at in (600, 700)),
            asked("basic", 800, "a")]
    found = run(asks, mode, classes=classes, bands=[{"priority": 2, "ordering": "slo_deadline"},
                                                     {"priority": -1, "fairness": {"kind": "round_robin"}}])
    assert order(found) == [0, 5, 4, 6, 7, 8, 3, 1, 2]


def test_bands_that_contradict_are_refused() -> None:
    with pytest.raises(InputError, match=r"bands\.1\.priority: a second band"):
        validate(FlowControlConfig, {"bands": [{"priority": 1}, {"priority": 1, "max": 2}]})
    other = {"kind": "least_attained_service", "half_life": 3}
    with pytest.raises(InputError, match="counts a tenant's service once for all bands"):
        validate(FlowControlConfig, {"fairness": {"kind": "least_attained_service"},
                                     "bands": [{"priority": 1, "fairness": other}]})


@each_mode
def test_a_full_band_without_a_replica_is_unavailable(mode: str) -> None:
    """The only replica is down from 2,000 until 12,000."""
    lone = client(fleet((2000, 0), start=1, up=10_000, probe=(1, 1, 0, 0)), count=1)
    found = run([ask(3000, 10, 1), ask(4000, 10, 1)], mode, clients=[lone], max=1, limit=100)
    assert found.fates == {1: "unavailable"}
    assert found.reasons == {1: "unavailable: band 0 holds 1 requests, and no replica is ready"}
    assert held(found)[0] == (0, 3000, 12000, "dispatched")


@each_mode
def test_requests_expire_at_a_scan(mode: str) -> None:
    """Time to live 5,000, a scan each 3,000. That of 1,000 is over at 6,000, at which a scan comes; that of 1,001 waits
    for the scan of 9,000, which comes before the tick that would let it leave."""
    found = run([ask(0), ask(1000, 10, 1), ask(1001, 10, 1)], mode, ttl=s(5000), scan=s(3000))
    assert held(found)[1:] == [(1, 1000, 6000, "expired"), (2, 1001, 9000, "expired")]
    assert found.fates == {1: "expired", 2: "expired"}
    assert set(found.reasons.values()) == {"expired: not dispatched within 5e-06 s"}
    assert [row[0] for row in found.attempts] == [0]


@each_mode
def test_times_to_live_begin_anew_when_the_pool_is_empty_and_when_it_is_not(mode: str) -> None:
    """Time to live 7,000, a scan each 1,000. The replica crashes at 2,000, at once noticed, and is ready at 8,000. The
    first request is made again, and waits behind those of 500 and 600. Their time begins at 500 and 600, anew at 2,000
    and at 8,000. That of 500 leaves at 8,000 and runs until 17,000; the other two expire at 15,000."""
    lone = client(fleet((2000, 0), start=1, up=6000, probe=(1, 1, 0, 0)), count=1)
    found = run([ask(0), ask(500), ask(600)], mode, clients=[lone], ttl=s(7000), scan=s(1000))
    assert held(found) == [(0, 0, 0, "dispatched"), (1, 500, 8000, "dispatched"), (2, 600, 15000, "expired"),
                           (0, 2000, 15000, "expired")]
    assert found.finish == [-1, 17000, -1]


@each_mode
def test_patience_and_time_outs_end_a_wait(mode: str) -> None:
    """4,000 for a call. The pool is full until 4,000. That of 500 leaves then, is late at 4,500, and leaves the engine
    with the step in flight, at 6,000. That of 1,000 is late at 5,000; a user of 1,000 has gone at 3,000. That of 5,500
    leaves at 6,000."""
    asks = [ask(0, 10, 3), ask(500), ask(1000), ask(1000, patience={"total": s(2000)}), ask(5500, 10, 1)]
    found = run(asks, mode, keys={"timeout": s(4000), "retries": 0})
    assert held(found)[1:] == [(1, 500, 4000, "dispatched"), (2, 1000, 5000, "given up"), (3, 1000, 3000, "given up"),
                               (4, 5500, 6000, "dispatched")]
    assert found.ends == [4000, 4500, 5000, 3000, 8000]
    assert found.fates == {1: "timed out", 2: "timed out"}


# -- bands -------------------------------------------------------------------------------------------------------------


@each_mode
def test_higher_bands_go_first(mode: str) -> None:
    """The pool is full until 9,000. Of those that wait, the higher priority is first, the lower number of a vLLM
    priority notwithstanding."""
    asks = [of("basic", 0, 10, 8), of("batch", 1000), of("basic", 2000), of("gold", 3000, priorities={"values": [9]})]
    assert order(run(asks, mode, classes=CLASSES)) == [0, 3, 2, 1]


@each_mode
@pytest.mark.parametrize(("ceiling", "left"), [(0.5, 9000), (0.6, 1000)])
def test_a_halted_band_halts_all_lower_ones(mode: str, ceiling: float, left: int) -> None:
    """Two in flight are a full pool, so the first is a half of it. With a ceiling of 0.5 the band of gold is halted,
    though nothing waits in it, and the one below it with it, whose own ceiling is 1."""
    classes = {"gold": {"priority": 2, "ceiling": ceiling}, "basic": {}}
    found = run([of("basic", 0, 10, 8), of("basic", 1000), of("gold", 50_000)], mode, classes=classes, limit=2)
    assert held(found)[1][2] == left


@each_mode
def test_running_requests_of_lower_bands_are_revoked(mode: str) -> None:
    """Two of batch fill the pool. Gold of 3,500 finds it full: one request brings the saturation below 1, the newest.
    It is in its first step, from 2,000, and leaves with its first token when that ends: gold leaves at 4,000. The
    second gold, of 4,500, finds the pool full again; the next decision is possible from 8,500 on, and so at the tick of
    9,000. There the other one leaves at once, with 6 tokens. The cycle of 9,000 is over: gold leaves at 10,000."""
    asks = [of("batch", 0, 10, 20), of("batch", 100, 10, 20), of("gold", 3500, 10, 8), of("gold", 4500)]
    found = run(asks, mode, classes={name: CLASSES[name] for name in ("gold", "batch")}, limit=2,
                revoke={"grace": s(5000)})
    assert found.attempts == [(0, 1, 0, 0, 9000, "revoked"), (1, 1, 0, 100, 3500, "revoked"),
                              (2, 1, 0, 4000, 14000, "completed"), (3, 1, 0, 10000, 12000, "completed")]
    assert found.fates == {0: "revoked", 1: "revoked"}
    assert found.reasons[0] == "revoked: band -1 gave way to band 2"
    assert found.wasted("revoked") == (2, 20, 7)
    assert found.results.summary["gateway"]["class"]["batch"]["revoked"] == 2


@each_mode
def test_no_request_of_the_same_band_is_revoked(mode: str) -> None:
    found = run([of("batch", 0, 10, 8), of("batch", 1000)], mode, classes={"batch": CLASSES["batch"]}, revoke={})
    assert [row[5] for row in found.attempts] == ["completed", "completed"]


# -- retries, pipelines ------------------------------------------------------------------------------------------------


@each_mode
def test_another_attempt_waits_anew(mode: str) -> None:
    """Two replicas with one request each; a third waits from 100 on. One crashes at 5,500, at once noticed: its request
    waits behind that one. The other replica is free at 9,000, and again at 11,000."""
    found = run([ask(0), ask(0), ask(100, 10, 1)], mode, clients=[client(fleet((5500, 0), probe=(1, 1, 0, 0)))])
    assert held(found) == [(0, 0, 0, "dispatched"), (1, 0, 0, "dispatched"), (2, 100, 9000, "dispatched"),
                           (0, 5500, 11000, "dispatched")]
    assert found.finish == [20000, 9000, 11000]


@each_mode
def test_each_call_of_a_pipeline_waits(mode: str) -> None:
    """The first call of the pipeline runs until 9,000. Its second is queued then, behind a request of 100, which leaves
    at once and runs until 11,000. A request of 9,500 waits for the second call."""
    keys = {"pipelines": {"twice": {"stages": {"one": {"kind": "generate"},
                                               "two": {"kind": "generate", "after": "one", "prompt": "20"}}}}}
    asks = [ask(0, pipeline="twice"), ask(100, 10, 1), ask(9500, 10, 1)]
    own = {"cycle": s(1000), "detector": {"kind": "concurrency", "limit": 1}}
    found = Run([client(count=1)], asks, mode, gateway={"flow_control": own}, **keys)
    assert held(found) == [(0, 0, 0, "dispatched"), (1, 100, 9000, "dispatched"), (0, 9000, 11_000, "dispatched"),
                           (2, 9500, 21_000, "dispatched")]
    assert found.finish == [21_000, 11_000, 23_000]


@each_mode
def test_requests_wait_for_the_first_replica(mode: str) -> None:
    """No replica serves before 50,000, when one that was asked for at 40,000 has started. One a cycle leaves; each time
    to live begins at 50,000."""
    none = client(fleet(start=0, up=10_000, scale=((40_000, 1),), probe=(1, 1, 0, 0)), count=1)
    found = run([ask(at, 10, 1) for at in (1000, 2000, 3000)], mode, clients=[none], limit=100, ttl=s(60_000))
    assert held(found) == [(0, 1000, 50_000, "dispatched"), (1, 2000, 51_000, "dispatched"),
                           (2, 3000, 52_000, "dispatched")]


@each_mode
def test_branches_count_as_one_request(mode: str) -> None:
    """Two answers to the first prompt are one in flight. Both outputs count when it is complete: 10 + 2 x 16 = 42, more
    than 12 of each of b, so that four of b go before one of a."""
    asks = [by("a", 0, 10, 8) | {"branches": 2}, by("a", 1000), *(by("b", 1000) for _ in range(5))]
    found = run(asks, mode, fairness={"kind": "least_attained_service"})
    assert order(found) == [0, 2, 3, 4, 5, 1, 6]


@each_mode
def test_each_of_two_gateways_counts_its_own(mode: str) -> None:
    """Two gateways in turn. Each has none in flight when the first two requests come, so that both leave; the third
    waits until the first gateway's own request has ended. Together the first two take a step of 3,000 for their prompts
    and 7 of 1,000."""
    asks = [ask(0), ask(0), ask(100, 10, 1)]
    own = {"cycle": s(1000), "detector": {"kind": "concurrency", "limit": 1}}
    found = Run([client(count=1)], asks, mode, gateway={"flow_control": own, "replicas": 2})
    assert found.finish[:2] == [10_000, 10_000]
    assert held(found) == [(0, 0, 0, "dispatched"), (1, 0, 0, "dispatched"), (2, 100, 10_000, "dispatched")]


@each_mode
def test_clients_offer_requests_again_that_were_shed(mode: str) -> None:
    """One may wait. The third request, of 200, is refused with 429. Its client offers it again after back-offs of 5,000
    at most, until that of 100 has left, at 9,000, and it finds a place."""
    again = {"kind": "openai", "retries": 5, "backoff": s(5000), "max_backoff": s(5000)}
    found = run([ask(0), ask(100, 10, 1), ask(200, 10, 1, retry=again)], mode, max=1)
    assert [row[0] for row in held(found)].count(2) >= 2
    assert held(found)[2] == (2, 200, 200, "shed")
    assert held(found)[-1][3] == "dispatched"
    assert found.finish[2] > 0
    assert found.fates == {}


# -- orders and fairness -----------------------------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize(("ordering", "expected"), [("fcfs", [0, 1, 2, 3]), ("edf", [0, 2, 3, 1]),
                                                    ("slo_deadline", [0, 3, 1, 2])])
def test_orders(mode: str, ordering: str, expected: list[int]) -> None:
    """Requests of 1,000, 2,000 and 3,000 wait until 9,000. Their times to live end at 61,000, 22,000 and 33,000, the
    deadlines of their first token are 41,000, none and 13,000."""
    classes = {"slow": {"ttl": s(60_000), "ttft": s(40_000)}, "none": {"ttl": s(20_000)},
               "soon": {"ttl": s(30_000), "ttft": s(10_000)}}
    asks = [of("slow", 0, 10, 8), of("slow", 1000), of("none", 2000), of("soon", 3000)]
    assert order(run(asks, mode, classes=classes, ordering=ordering)) == expected


@each_mode
@pytest.mark.parametrize(("at", "expected"), [(1100, "a b c a a"), (100, "b c a a a")])
def test_round_robin_takes_tenants_by_name(mode: str, at: int, expected: str) -> None:
    """The first request, of a, left at 0. The tick of 1,000 finds the band empty, and the turn begins anew."""
    asks = [by("a", 0, 10, 8), *(by(name, at) for name in ("a", "a", "a", "c", "b"))]
    found = run(asks, mode, fairness={"kind": "round_robin"})
    assert " ".join("aaaacb"[request] for request in order(found)[1:]) == expected


@each_mode
def test_least_attained_service(mode: str) -> None:
    """The first request, of a, is served at 9,000: 10 + 2 x 8 = 26. Each of b adds 12: three of b leave before one of
    a, since 24 is less than 26, and then the one of a, since 36 is more."""
    asks = [by("a", 0, 10, 8), by("a", 1000), *(by("b", 1000) for _ in range(4))]
    found = run(asks, mode, fairness={"kind": "least_attained_service"})
    assert order(found) == [0, 2, 3, 4, 1, 5]


def test_service_halves_whatever_a_tenant_asks_for() -> None:
    """60 + 2 x 20 = 100 at 1 s, 50 at 61 s, when 30 are added: 80, and 40 at 121 s."""
    service = Service(60 * 10**9, 2.0)
    service.served(0, 60, 20, 10**9)
    assert service.of(0, 61 * 10**9) == 50.0
    service.served(0, 30, 0, 61 * 10**9)
    assert service.of(0, 121 * 10**9) == 40.0
    assert service.of(1, 0) == 0.0


def test_a_long_tenant_is_ahead_of_a_new_one_only_by_what_is_left_by_hand() -> None:
    """`old` is served 10,000 tokens a second for 300 s, `new` nothing. Of old's service 10,000 x 60 / ln 2 = 866,000
    tokens are left, not 3 million: at 10,000 a second `new` has as much after a minute (866,000 x 0.5 = 433,000 of
    each) instead of after 300 s."""
    service = Service(60 * 10**9, 2.0)
    for second in range(300):
        service.served(0, 10_000, 0, second * 10**9)
    assert service.of(0, 300 * 10**9) == pytest.approx(10_000 * 60 / math.log(2), rel=0.04)
    for second in range(300, 360):
        service.served(1, 10_000, 0, second * 10**9)
    assert service.of(0, 360 * 10**9) == pytest.approx(service.of(1, 360 * 10**9), rel=0.04)


@each_mode
def test_weights_of_three_tenants(mode: str) -> None:
    """Prompts of 10 tokens, a quantum of 10, weights 1, 2 and 3: one, two and three leave in a turn."""
    asks = [by("a", 0, 10, 8), *(by(name, 1100) for _ in range(6) for name in "abc")]
    found = run(asks, mode, fairness={"kind": "deficit_round_robin", "quantum": 10, "output_weight": 0.0},
                tenants={"b": {"weight": 2}, "c": {"weight": 3}})
    names = [("abc" * 6)[request - 1] for request in order(found)[1:]]
    assert " ".join(names) == "a b b c c c a b b c c c a b b a a a"
    summary = found.results.summary["gateway"]
    assert [one["weight"] for one in summary["tenant"].values()] == [1.0, 2.0, 3.0]
    assert sum(one["requests"] for one in summary["tenant"].values()) == 19


@each_mode
def test_a_prompt_longer_than_a_quantum_saves_up(mode: str) -> None:
    """Quantum 10. The prompt of a has 40 tokens, those of b 10: three of b leave while a saves, in the rounds of 10, 20
    and 30, and a in the fourth."""
    asks = [by("x", 0, 10, 8), by("a", 1100, 40), *(by("b", 1100) for _ in range(5))]
    found = run(asks, mode, fairness={"kind": "deficit_round_robin", "quantum": 10, "output_weight": 0.0})
    assert order(found) == [0, 2, 3, 4, 1, 5, 6]


@each_mode
def test_outputs_are_paid_when_they_are_complete(mode: str) -> None:
    """Quantum 10, output x1. The first of a has 10 + 20 tokens: when it is complete, a owes 20, two turns, and its
    third turn pays the prompt. b has no debt before its own output tokens: 1 each."""
    asks = [by("a", 0, 10, 20), by("a", 1100), *(by("b", 1100, 9) for _ in range(4))]
    found = run(asks, mode, fairness={"kind": "deficit_round_robin", "quantum": 10, "output_weight": 1.0})
    assert order(found) == [0, 2, 3, 1, 4, 5]


@each_mode
def test_a_tenant_that_has_used_its_budget_is_refused(mode: str) -> None:
    """18 tokens in each window of 20,000. The first request of a is complete at 9,000 and has 18: that of 8,999 passes,
    with 11 tokens, that of 9,000 is refused, one of b is not. A window begins at 20,000."""
    asks = [by("a", 0, 10, 8), by("a", 8999), by("a", 9000), by("b", 9000), by("a", 20_000)]
    found = run(asks, mode, limit=100, tenants={"a": {"budget": {"tokens": 18, "per": s(20_000)}}})
    assert found.fates == {2: "shed"}
    assert found.reasons == {2: "shed: the tenant's 18 tokens of 2e-05 s are used up"}
    assert order(found) == [0, 1, 3, 4]


# -- admission ---------------------------------------------------------------------------------------------------------


@each_mode
def test_admission_refuses_negative_priorities_while_the_pool_is_full(mode: str) -> None:
    """The first runs until 9,000: batch of 1,000 is refused, basic of 1,500 passes; both run until 12,000 or so. Batch
    of 20,000 passes."""
    asks = [of("basic", 0, 10, 8), of("batch", 1000), of("basic", 1500), of("batch", 20_000)]
    own = {"detector": {"kind": "concurrency", "limit": 1}}
    found = Run([client(count=1)], asks, mode, gateway={"admission": own, "classes": {
        name: CLASSES[name] for name in ("basic", "batch")}})
    assert found.fates == {1: "shed"}
    assert found.reasons == {1: "shed: the pool is full (saturation 1)"}
    assert found.ends[1] == 1000
    assert [row[3] for row in found.attempts] == [0, 1500, 20_000]
    assert not found.record.held
