"""What binds where replicas come and go, where clients wait no longer, and where requests are lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hermes
from hermes.core.record import DOWN, DRAINING, GONE, READY, STARTING
from hermes.results.brief import parts
from hermes.results.figures.binding_resource import _Group, _serving, _turned_away
from hermes.results.figures.early_binding import _without
from hermes.results.figures.lost import lost_at
from hermes.results.figures.membership import spans_in
from hermes.results.layout import to_text

Data = dict[str, Any]
SMALL = {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"}
KEEPS_UP = "the clients keep up"


def run(fleet: Data | None = None, *, count: int = 1, rate: float = 20.0, requests: int = 400, seqs: int = 8,
        work: Data | None = None, **keys: Any) -> tuple[Data, str]:
    """Return the summary, and the text of a run as one line. A replica with 8 places serves about 13 requests/s."""
    summary = hermes.simulate({
        "workload": {"requests": requests, "arrivals": {"kind": "poisson", "rate": rate},
                     "lengths": {"kind": "fixed", "prompt": 100, "output": 60}, **(work or {})},
        "clients": [{"name": "llm", "count": count, "hardware": SMALL, "memory": {"num_blocks": 40_000},
                     "scheduler": {"kind": "chunked", "max_num_seqs": seqs},
                     **({} if fleet is None else {"fleet": {"start_up": {"total": 20.0}, **fleet}})}],
        "router": {"kind": "least_loaded", "load": "requests"}, **keys}).summary
    return summary, " ".join(to_text(parts(summary, {})).split())


# -- replicas that exist -----------------------------------------------------------------------------------------------


def test_slots_that_are_never_filled_change_nothing() -> None:
    one, eight = (run({"start": 1}, count=count)[0]["binds"] for count in (1, 8))
    assert one == eight
    assert (one["what"], one["where"], one["groups"]["llm"]["clients"]) == ("slots", "llm", 1)
    assert one["share"] > 0.9


class _Members:
    """A record's table of membership: client, incarnation, time, state."""

    def __init__(self, *rows: tuple[int, int, int]) -> None:
        self.membership = np.array([(client, 0, time, state) for client, time, state in rows])


def test_the_mean_is_over_replicas_that_serve_while_any_does() -> None:
    """One serves from 0 to 40 and another from 10 to 30, of which it drains for 10: 60 over 40. A third is starting, a
    fourth down from 20 on. Nobody serves from 40 to 50."""
    record: Any = _Members((0, 0, READY), (1, 0, GONE), (2, 0, STARTING), (1, 5, STARTING), (1, 10, READY),
                           (1, 20, DRAINING), (1, 30, GONE), (0, 40, GONE))
    assert _serving(record, [0, 1, 2], 0, 50) == 1.5
    assert _serving(record, [1], 0, 50) == 1.0
    assert _serving(record, [5, 6], 0, 50) == 2.0   # not in the table: throughout
    begin, end = spans_in(_Members((0, 0, READY), (0, 20, DOWN), (0, 45, READY)), 0, (READY,), 10, 50)  # type: ignore[arg-type]
    assert (begin.tolist(), end.tolist()) == ([10, 45], [20, 50])


def test_a_replica_that_has_gone_does_not_halve_the_share() -> None:
    """Of two replicas one drains at 2 s; the other is full for the 48 s in which requests come still."""
    fleet = {"start": 2, "autoscaler": {"kind": "schedule", "changes": [{"at": 2.0, "replicas": 1}]}}
    binds = run(fleet, count=2, requests=1000)[0]["binds"]
    assert (binds["what"], binds["where"]) == ("slots", "llm")
    assert binds["share"] > 0.75   # over two slots less than a half


# -- early binding -----------------------------------------------------------------------------------------------------

LATE_ONES = {"start": 1, "start_up": {"total": 0}, "autoscaler": {
    "kind": "schedule", "changes": [{"at": 8.0, "replicas": 4}]}}


def test_requests_bound_before_others_were_ready_wait_for_late_binding() -> None:
    """At 60/s one replica serves 13/s until 8 s, when nearly all are bound to it; three others come, and stay idle.
    Held at the gateway, all four serve them."""
    summary, text = run(LATE_ONES, count=4, rate=60.0, requests=500)
    binds = summary["binds"]
    assert (binds["what"], binds["where"]) == ("early binding", "llm")
    early = binds["groups"]["llm"]["early"]
    assert (early["replicas"], early["of"]) == (1, 4)
    assert binds["share"] == early["share"] > 0.9
    assert binds["groups"]["llm"]["resource"] == "slots"
    assert "early binding of llm: work waits 98% of the time at 1 of 4 replicas while others are free" in text
    assert "bind late: gateway.flow_control" in text
    late, _ = run(LATE_ONES, count=4, rate=60.0, requests=500, gateway={"flow_control": {"ttl": "20 min"}})
    assert late["binds"]["what"] != "early binding"
    assert late["makespan_s"] < summary["makespan_s"] / 1.5
    assert late["latency"]["ttft_s"]["p99"] < summary["latency"]["ttft_s"]["p99"] / 1.5


def test_replicas_that_are_all_full_bind_nothing_early() -> None:
    binds = run({"start": 4}, count=4, rate=80.0, requests=800)[0]["binds"]
    assert binds["what"] == "slots"
    assert "early" not in binds["groups"]["llm"]


def test_spans_without_others() -> None:
    low, high = _without((np.array([0, 20]), np.array([10, 30])), (np.array([2, 8, 25]), np.array([4, 22, 40])))
    assert list(zip(low.tolist(), high.tolist(), strict=True)) == [(0, 2), (4, 8), (22, 25)]


# -- time-outs ---------------------------------------------------------------------------------------------------------


def test_time_outs_are_named_with_what_the_engines_lacked_while_they_were() -> None:
    """A burst of 10 s at three times what two replicas serve; the steady state begins after it."""
    late = {"retry": {"kind": "openai", "per_try": 3.0, "retries": 0}, "requests": 1500,
            "arrivals": {"kind": "profile", "every": 10.0, "rates": [10, 80, *[10] * 8]}}
    summary, text = run(count=2, work=late)
    gone = summary["requests"]["rejected"] / summary["requests"]["total"]
    assert gone > 0.2
    binds = summary["binds"]
    assert (binds["what"], binds["where"]) == ("slots", "llm")
    assert binds["share"] > 0.5
    assert binds["bounded_by"] == {"what": "time-outs", "share": gone}
    assert f"time-outs bound the queue, {gone:.0%} of the requests have no answer in time" in text
    assert KEEPS_UP not in text


def test_patience_is_named_in_the_same_way() -> None:
    late = {"patience": {"total": 3.0}, "requests": 1500,
            "arrivals": {"kind": "profile", "every": 10.0, "rates": [10, 80, *[10] * 8]}}
    summary, text = run(count=2, work=late)
    assert (summary["binds"]["what"], summary["binds"]["bounded_by"]["what"]) == ("slots", "patience")
    assert KEEPS_UP not in text


def test_time_outs_that_no_queue_explains_bind_themselves() -> None:
    """60 tokens take about 0.6 s each time, and clients wait for 0.3 s."""
    summary, text = run(rate=2.0, requests=200, seqs=64,
                        work={"retry": {"kind": "openai", "per_try": 0.3, "retries": 0},
                              "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 50, "max": 100},
                                          "output": {"kind": "uniform", "min": 5, "max": 90}}})
    assert (summary["binds"]["what"], summary["binds"]["where"]) == ("time-outs", "llm")
    assert "time-outs of llm: " in text
    assert KEEPS_UP not in text


# -- dead replicas -----------------------------------------------------------------------------------------------------

PROBE = {"period": 2.0, "failures": 3, "delay": 0.0, "offset": 1.0}


@pytest.mark.parametrize(("crash", "detected"), [(5.5, 5.5), (4.0, 5.0)])
def test_a_dead_replica_is_named_with_the_time_until_it_was_noticed(crash: float, detected: float) -> None:
    """Probes at 1, 3, 5, ... s: after a crash at 5.5 s those at 7, 9 and 11 s fail, after one at 4 s those at 5, 7, 9.
    An idle dead replica has the least load, so it gets every attempt meanwhile."""
    fleet = {"start": 3, "start_up": {"total": 100.0}, "crashes": [{"at": crash, "replica": 1}], "probe": PROBE}
    summary, text = run(fleet, count=3, rate=12.0, requests=300, gateway={"retries": 1})
    binds, lost = summary["binds"], summary["requests"]["rejected"] / 300
    assert lost > 0.1
    assert (binds["what"], binds["where"], binds["share"]) == ("dead replica", "llm", lost)
    assert (binds["dead"]["replica"], binds["dead"]["share"]) == ("llm-1", lost)
    assert detected - 0.7 < binds["dead"]["detection_s"] <= detected   # 12 attempts/s: the last one is near the end
    assert (f"binds dead replica llm-1: {lost:.0%} of the requests are lost at it; routers chose it for "
            f"{binds['dead']['detection_s']:.3g} s after (fleet.probe)") in text
    assert KEEPS_UP not in text


def test_few_lost_requests_are_named_too() -> None:
    """Noticed at once; what the replica had is lost, which is less than 5% of the requests."""
    fleet = {"start": 3, "start_up": {"total": 100.0}, "crashes": [{"at": 5.0, "replica": 1}],
             "probe": {"period": 0.001, "failures": 1, "delay": 0.0}}
    summary, text = run(fleet, count=3, rate=20.0, requests=400, gateway={"retries": 0})
    assert 0 < summary["requests"]["rejected"] < 20
    assert summary["binds"]["what"] == "dead replica"
    assert "dead replica llm-1: " in text
    assert KEEPS_UP not in text


def test_a_dead_replica_stands_beside_a_latency_that_misses_its_limit() -> None:
    fleet = {"start": 3, "start_up": {"total": 100.0}, "crashes": [{"at": 5.0, "replica": 1}],
             "probe": {"period": 0.001, "failures": 1, "delay": 0.0}}
    summary, text = run(fleet, count=3, rate=20.0, requests=400, gateway={"retries": 0}, slo={"tpot": 0.001})
    assert (summary["binds"]["what"], summary["binds"]["of"]) == ("compute", "TPOT p99")
    assert "of TPOT p99; dead replica llm-1: " in text


def test_reasons_of_lost_requests() -> None:
    assert lost_at("timed out: its client had no answer within 15 s") == ("time-outs", "")
    assert lost_at("timed out: no answer within 0.5 s, attempt 3") == ("time-outs", "")
    assert lost_at("its client gave up: no first token within 2 s") == ("patience", "")
    assert lost_at("failed: llm-3 cannot be reached, attempt 3") == ("dead replica", "llm-3")
    assert lost_at("failed: llm-3 went down after the first token") == ("dead replica", "llm-3")
    assert lost_at("llm-0: needs 812 KV blocks of 16 tokens") == ("", "")


def test_what_turned_most_requests_away_is_named_however_many_others_did() -> None:
    """Of 100 requests a queue's limit turns 6 away, 20 time out and 10 are at a dead replica."""
    class _Record:
        clients = [type("", (), {"name": "llm-0"})]

    texts = (["llm-0: max_num_queued_reqs"] * 6 + ["timed out: no answer within 0.5 s"] * 20
             + ["failed: llm-0 cannot be reached"] * 10 + ["limited: the gateway is full"] * 8)
    record: Any = _Record()
    groups = {"llm": _Group([0])}
    assert _turned_away(record, groups, 100, texts) == ("time-outs", "llm", 0.2)
    assert _turned_away(record, groups, 100, [*texts, *["limited: "] * 30]) == ("capacity", "gateway", 0.38)
    assert _turned_away(record, groups, 100, ["llm-0: needs 812 KV blocks"]) is None
