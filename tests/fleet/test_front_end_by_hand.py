"""What happens while a front end sends what the engine has computed, in scenarios that can be followed by hand.

A prompt of 10 tokens takes 2,000 ns, each further token 1,000 ns (`hand_parts`), and the front end 5,000 ns more.
"""

from __future__ import annotations

from collections.abc import Iterator

import hand_parts
import pytest
from hand_parts import MODES, Data, Run, ask, client, fleet, s

each_mode = pytest.mark.parametrize("mode", MODES)
NONE: Data = {"retries": 0}
AFTER: Data = {"frontend": {"after": s(5000)}}
RESTART: Data = {"kind": "openai", "retries": 1, "backoff": 0.0, "begun": "restart"}


@pytest.fixture(scope="module", autouse=True)
def _hand_parts() -> Iterator[None]:
    with hand_parts.registered():
        yield


def wasted(found: Run) -> dict[str, tuple[int, int, int]]:
    return {name: found.wasted(name) for name in found.results.summary["attempts"]["wasted"]}


@each_mode
def test_a_client_that_leaves_during_the_front_end_has_no_answer(mode: str) -> None:
    """Time-out 4,000. Computed at 3,000 and sent until 8,000: late at 5,000. Offered again then: late at 9,000. Both
    attempts are a waste of 10 and 1 tokens. With 7,500 the first is answered at 8,000."""
    late = Run([client(count=1, **AFTER)], [ask(1000, 10, 1, retry=RESTART | {"per_try": s(4000)})], mode, gateway=NONE)
    assert late.attempts == [(0, 1, 0, 1000, 5000, "cancelled"), (0, 1, 0, 5000, 9000, "cancelled")]
    assert late.record.status.tolist() == [2]
    assert wasted(late) == {"cancelled": (2, 20, 2)}
    assert late.results.summary["tokens"]["output"] == 0
    soon = Run([client(count=1, **AFTER)], [ask(1000, 10, 1, retry=RESTART | {"per_try": s(7500)})], mode, gateway=NONE)
    assert soon.attempts == [(0, 1, 0, 1000, 8000, "completed")]
    assert wasted(soon) == {}


@each_mode
@pytest.mark.parametrize("place", ["retry", "router_retry"])
def test_the_time_outs_of_a_gateway_see_it(mode: str, place: str) -> None:
    """As the first, of the gateway: 5,000 and 9,000. `timeout` of 6,000 ends the call at 7,000."""
    plain: Data = {"kind": "openai", "retries": 0}
    places = {"retry": plain, place: RESTART | {"per_try": s(4000)}}
    found = Run([client(count=1, **AFTER)], [ask(1000, 10, 1)], mode, gateway=places)
    assert [row[3:] for row in found.attempts] == [(1000, 5000, "timed out"), (5000, 9000, "timed out")]
    assert found.record.status.tolist() == [2]
    assert wasted(found) == {"timed_out": (2, 20, 2)}
    whole = Run([client(count=1, **AFTER)], [ask(1000, 10, 1)], mode, gateway={"retries": 1, "timeout": s(6000)})
    assert [row[3:] for row in whole.attempts] == [(1000, 7000, "timed out")]


@each_mode
def test_a_crash_takes_what_the_front_end_has(mode: str) -> None:
    """Replica 0 has computed at 3,000 and crashes at 5,000: again on replica 1, which computes until 7,000 and sends
    until 12,000. A crash at 8,000 comes first at its instant; one at 8,001 too late."""
    found = Run([client(fleet((5000, 0)), **AFTER)], [ask(1000, 10, 1)], mode)
    assert found.attempts == [(0, 1, 0, 1000, 5000, "failed"), (0, 2, 1, 5000, 12000, "completed")]
    assert found.finish == [12000]
    assert wasted(found) == {"failed": (1, 10, 1)}
    later = Run([client(fleet((8001, 0)), **AFTER)], [ask(1000, 10, 1)], mode)
    assert later.attempts == [(0, 1, 0, 1000, 8000, "completed")]


@each_mode
def test_a_token_that_the_front_end_still_has_is_not_read(mode: str) -> None:
    """Output 8. Tokens from 3,000 on, read from 8,000 on; the crash comes at 5,500. `begun: fail` allows
    the second attempt, whose first token is ready at 7,500 and read at 12,500. A crash at 8,500 ends the request."""
    early = Run([client(fleet((5500, 0)), **AFTER)], [ask(1000)], mode, gateway={"begun": "fail"})
    assert early.finish == [19500]
    assert early.results.requests["ttft_s"].iloc[0] == pytest.approx(s(11500), abs=1e-15)
    late = Run([client(fleet((8500, 0)), **AFTER)], [ask(1000)], mode, gateway={"begun": "fail"})
    assert late.reasons == {0: "failed: llm-0 went down after the first token"}


@each_mode
def test_patience_waits_for_the_token_that_the_user_reads(mode: str) -> None:
    """The first token is ready at 3,000 and read at 8,000: too late for a patience of 4,000, in time for 7,500."""
    for patience, ends, status in ((4000, 5000, 2), (7500, 15000, 1)):
        found = Run([client(count=1, **AFTER)], [ask(1000, patience={"first_token": s(patience)})], mode)
        assert (found.record.status.tolist(), found.ends) == ([status], [ends])


@each_mode
def test_patience_with_a_rewritten_query_waits_for_the_answer(mode: str) -> None:
    """The rewrite has tokens from 3,000 to 5,000, which no user reads; the answer has one at 7,000."""
    two = {"stages": {"rewrite": {"kind": "generate", "prompt": "prompt", "output": 3},
                      "answer": {"kind": "generate", "after": ["rewrite"], "prompt": "prompt", "output": "output"}}}
    for patience, ends, status in ((5500, 6500, 2), (6500, 7000, 1)):
        found = Run([client(count=1)], [ask(1000, 10, 1, pipeline="two", patience={"first_token": s(patience)})], mode,
                    pipelines={"two": two})
        assert (found.record.status.tolist(), found.ends) == ([status], [ends])


@each_mode
def test_the_first_token_of_any_offer_is_the_first(mode: str) -> None:
    """Tokens at 3,000, 4,000 and 5,000 until the crash at 5,500. The client offers the request again, from the start:
    7,500 to 14,500. TTFT 2,000, TPOT 11,500 / 7; a patience of 5,000 with the first token is met. With a front end
    nobody has read the first three: TTFT 11,500."""
    asked = ask(1000, retry=RESTART, patience={"first_token": s(5000)})
    found = Run([client(fleet((5500, 0)))], [asked], mode, gateway=NONE)
    assert found.attempts == [(0, 1, 0, 1000, 5500, "failed"), (0, 1, 1, 5500, 14500, "completed")]
    request = found.results.requests.iloc[0]
    assert request["ttft_s"] == pytest.approx(s(2000), abs=1e-15)
    assert request["tpot_s"] == pytest.approx(s(11500 / 7), abs=1e-15)
    parts = found.results.summary["breakdown"]["ttft"]
    assert parts["lost_s"]["mean"] == parts["queue_s"]["mean"] == parts["other_s"] == 0
    assert parts["compute_s"]["mean"] == pytest.approx(s(2000), abs=1e-15)
    unread = Run([client(fleet((5500, 0)), **AFTER)], [ask(1000, retry=RESTART)], mode, gateway=NONE)
    assert unread.results.requests["ttft_s"].iloc[0] == pytest.approx(s(11500), abs=1e-15)
