"""The hop through gateways, by hand, to the nanosecond.

A step takes 1,000 ns and 100 ns more per prompt token (`hand_parts`): a prompt of 10 tokens and one output token take
2,000 ns.
"""

from __future__ import annotations

from collections.abc import Iterator

import hand_parts
import pytest
from hand_parts import MODES, Data, Run, ask, client, s

from hermes.errors import InputError
from hermes.scenario import load_scenario

each_mode = pytest.mark.parametrize("mode", MODES)


@pytest.fixture(scope="module", autouse=True)
def _hand_parts() -> Iterator[None]:
    with hand_parts.registered():
        yield


def waits_ns(found: Run) -> list[int]:
    return [round(wait * 1e9) for wait in found.record.notes["gateway_wait_s"].tolist()]


@each_mode
def test_the_delay_is_part_of_ttft(mode: str) -> None:
    """Arrival at 1,000, 300 through the gateway, a prompt of 2,000: the first token is at 3,300, TTFT 2,300."""
    found = Run([client(count=1)], [ask(1000, 10, 3)], mode, gateway={"delay": s(300)})
    assert found.stages == [(0, "generate", 0, 1300, 1300, 3300, 5300, 3)]
    assert found.attempts == [(0, 1, 0, 1300, 5300, "completed")]
    assert found.results.requests["ttft_s"].iloc[0] == pytest.approx(s(2300), abs=1e-15)
    assert "gateway_wait_s" not in found.record.notes


@pytest.mark.feature("Plug-ins of research", "A gateway's delay, capacity and replicas, each with its own routers")
@each_mode
def test_capacity_passes_one_after_the_other(mode: str) -> None:
    """500 ns a request (2 million a second), 300 through the gateway. Arrivals at 1,000, 1,200, 1,200 and 5,000.
    Service begins at 1,000, 1,500, 2,000 and 5,000, so that they wait 0, 300, 800 and 0, and pass at 1,800, 2,300,
    2,800 and 5,800."""
    asks = [ask(at, 10, 1) for at in (1000, 1200, 1200, 5000)]
    found = Run([client(count=4)], asks, mode, gateway={"delay": s(300), "capacity": 2e6})
    assert [row[3] for row in found.attempts] == [1800, 2300, 2800, 5800]
    assert waits_ns(found) == [0, 300, 800, 0]
    assert found.finish == [3800, 4300, 4800, 7800]
    assert found.results.summary["attempts"]["wait_s"]["max"] == pytest.approx(s(800), abs=1e-15)


@each_mode
def test_a_full_backlog_is_refused_with_429(mode: str) -> None:
    """500 ns a request. At 1,000 the first begins, the second waits, the third finds it waiting and is refused. At
    1,500 the second's service begins: one that comes then waits, until 2,000."""
    asks = [ask(at, 10, 1) for at in (1000, 1000, 1000, 1500)]
    found = Run([client(count=4)], asks, mode, gateway={"capacity": 2e6, "backlog": 1})
    assert found.fates == {2: "limited"}
    assert found.reasons == {2: "limited: 1 requests wait for the gateway"}
    assert [row[:1] + row[3:4] for row in found.attempts] == [(0, 1500), (1, 2000), (3, 2500)]
    assert found.results.summary["attempts"]["requests"]["limited"] == 1


@each_mode
def test_gateways_take_turns_and_wait_each_for_itself(mode: str) -> None:
    """Two gateways of 500 ns a request: four requests at 1,000 pass at 1,500, 1,500, 2,000 and 2,000."""
    found = Run([client(count=4)], [ask(1000, 10, 1)] * 4, mode, gateway={"capacity": 2e6, "replicas": 2})
    assert [row[3] for row in found.attempts] == [1500, 1500, 2000, 2000]
    assert found.record.notes["gateway"].tolist() == [0, 1, 0, 1]


@each_mode
def test_each_gateway_has_its_own_books(mode: str) -> None:
    """Four requests on two replicas, by each router's own count of requests; ties go to the first. One gateway: 0, 1,
    0, 1. Two gateways: each sends its first request to 0 and its second to 1, so that it is 0, 0, 1, 1."""
    router = {"kind": "least_loaded", "load": "requests", "view": "own"}
    asks = [ask(at, 10, 8) for at in (1000, 1100, 1200, 1300)]
    one = Run([client()], asks, mode, router=router)
    assert [row[2] for row in one.attempts] == [0, 1, 0, 1]
    two = Run([client()], asks, mode, router=router, gateway={"replicas": 2})
    assert [row[2] for row in two.attempts] == [0, 0, 1, 1]


@each_mode
def test_each_gateway_believes_what_it_sent(mode: str) -> None:
    """Three prompts of one prefix; the third goes through the first gateway, which has sent the first one alone."""
    router = {"kind": "dynamo_kv", "caches": {"kind": "approximate"}}
    prefix = {"prefixes": {"groups": 1, "tokens": 8}}
    clients = [client(count=1, size=4, caching=True)]
    asks = [{**ask(1000, 12, 1), "requests": 3, **prefix,
             "arrivals": {"kind": "hand_times", "at": [1000, 20000, 40000]}}]
    one = Run(clients, asks, mode, router=router)
    assert one.record.notes["believed_cached_tokens"].tolist() == [0, 8, 8]
    two = Run(clients, asks, mode, router=router, gateway={"replicas": 2})
    assert two.record.notes["believed_cached_tokens"].tolist() == [0, 0, 8]


@each_mode
def test_each_gateway_scrapes_for_itself(mode: str) -> None:
    """The offset of each (gateway, client) is a number of its own stream."""
    found = Run([client()], [ask(1000)], mode, gateway={"replicas": 2},
                router={"kind": "least_loaded", "load": "waiting", "view": {"kind": "scraped"}})
    offsets = [scraper.offset_ns for one in found.simulation.clients for scraper in one.scrapes.scrapers]
    assert len(set(offsets)) == 4


@each_mode
def test_a_request_given_up_in_the_hop_still_takes_its_turn(mode: str) -> None:
    """1,000 ns a request. The first at 1,000; the second at 1,100 waits until 2,000 and its client gives up at 1,600;
    the third, of 1,200, begins at 3,000 nevertheless and passes at 4,000."""
    asks = [ask(1000, 10, 1), ask(1100, 10, 1, patience={"total": s(500)}), ask(1200, 10, 1)]
    found = Run([client()], asks, mode, gateway={"capacity": 1e6})
    assert [row[:1] + row[3:4] for row in found.attempts] == [(0, 2000), (2, 4000)]
    assert found.reasons[1].startswith("its client gave up")


@each_mode
def test_the_time_out_of_a_call_counts_the_hop(mode: str) -> None:
    """Time-out 2,500: through the gateway until 2,000, the answer would come at 4,000; ended at 3,500."""
    found = Run([client()], [ask(1000, 10, 1)], mode, gateway={"delay": s(1000), "timeout": s(2500)})
    assert found.attempts == [(0, 1, 0, 2000, 3500, "timed out")]


@each_mode
def test_a_retry_does_not_take_the_hop_again(mode: str) -> None:
    """Through the gateway until 1,300; an attempt is late after 1,500, at 2,800, and the next one begins then."""
    found = Run([client()], [ask(1000, 10, 1)], mode, gateway={"delay": s(300), "per_try": s(1500)})
    assert [row[2:5] for row in found.attempts] == [(0, 1300, 2800), (1, 2800, 4300)]


def test_random_spread_is_a_stream_of_its_own() -> None:
    spread: list[Data] = [{"replicas": 3, "spread": "random"}] * 2
    asks = [ask(1000 + 10 * n, 10, 1) for n in range(12)]
    first, second = (Run([client()], asks, gateway=each).record.notes["gateway"] for each in spread)
    assert first.tolist() == second.tolist()
    assert len(set(first.tolist())) == 3


@pytest.mark.parametrize(("gateway", "message"), [
    ({"backlog": 3}, "needs capacity: without it none waits"), ({"spread": "random"}, "there is one gateway"),
])
def test_keys_that_need_another_are_refused(gateway: Data, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_scenario({"workload": [ask(1)], "clients": [client()], "gateway": gateway})
