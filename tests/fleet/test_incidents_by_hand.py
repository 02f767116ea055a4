"""Incidents: when each was noticed, traffic left, capacity and SLO were back, and what was lost: by hand.

Steps as in `hand_parts`: a prompt of 10 tokens takes 2,000 ns, each further token 1,000 ns, so that an answer of 8
tokens takes 9,000 alone. Everything happens within one minute: the SLO misses it until the last late request has come.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hand_parts
import pytest
from hand_parts import MODES, Run, ask, client, fleet, s

from hermes.results.brief import brief
from hermes.results.figures.incidents import Incident
from hermes.results.figures.incidents import incidents as found_in
from hermes.results.files.export import write_results
from hermes.results.files.stored import open_run
from hermes.results.files.trace import trace_events
from hermes.results.results import Results
from hermes.results.slo import slo_groups

each_mode = pytest.mark.parametrize("mode", MODES)
SLO = {"e2e": s(9000)}
PROBE = (10_000, 1, 500, 3000)   # at 3,000, 13,000, ...; routers know 500 later


@pytest.fixture(scope="module", autouse=True)
def _hand_parts() -> Iterator[None]:
    with hand_parts.registered():
        yield


def results(run: Run) -> Results:
    return Results(run.record, slo=run.scenario.slo)


def incidents(run: Run) -> list[Incident]:
    found = results(run)
    return found_in(run.record, found.metrics, slo_groups(found.slo, run.record))


def ns(one: Incident) -> list[int | None]:
    """Return the times of an incident in ns after its strike: noticed, traffic left, capacity back, recovered."""
    return [None if value is None else round(value * 1e9)
            for value in (one.noticed_s, one.left_s, one.back_s, one.recovered_s)]


def failing(*failures: dict[str, Any], **more: Any) -> dict[str, Any]:
    own = {key: more.pop(key) for key in ("liveness", "drain") if key in more}
    return fleet(**more) | {"failures": list(failures)} | own


@pytest.mark.feature("Plug-ins of research", "Incidents: noticed, traffic left, capacity back, time to recover, what "
                                             "was lost by cause")
@each_mode
def test_a_crash_that_a_probe_notices(mode: str) -> None:
    """Request 1 runs on replica 1 from 1,500: tokens at 3,500, 4,500 and, as it crashes, 5,500. The retry is on replica
    0. Request 2 comes to replica 1 at 9,500 by turns and fails at once; the probe of 13,000 fails, and routers know it
    at 13,500. Ready at 25,500. The last request after the strike that is late came at 9,500."""
    own = fleet((5500, 1), up=20_000, probe=PROBE)
    asks = [ask(1000), ask(1500), ask(9500), ask(20_000)]
    run = Run([client(own)], asks, mode, slo=SLO)
    one, = incidents(run)
    assert (one.kind, one.clients, one.noticed_by) == ("crash", ["llm-1"], "probe")
    assert [row for row in run.attempts if row[-1] == "failed"] == [(1, 1, 1, 1500, 5500, "failed"),
                                                                  (2, 1, 1, 9500, 9500, "failed")]
    assert (one.attempts_failed, one.requests_failed, one.retried) == (2, 0, 2)
    assert (one.wasted_prompt_tokens, one.wasted_output_tokens, one.lost_tokens) == (10, 3, 0)
    late = [row for row in range(4) if run.record.finish_ns[row] - run.record.arrival_ns[row] > 9000]
    assert late == [0, 1, 2]   # request 0 shares its replica with the retry of request 1
    assert ns(one) == [7500, 8000, 20_000, 9500 + 1 - 5500]


@each_mode
def test_without_retries_requests_and_their_tokens_are_lost(mode: str) -> None:
    run = Run([client(fleet((5500, 1), up=20_000, probe=PROBE))], [ask(1000), ask(1500), ask(9000, 10, 5)], mode,
              gateway={"retries": 0}, slo=SLO)
    one, = incidents(run)
    failed = [row[0] for row in run.attempts if row[-1] == "failed"]
    assert failed == [1]
    assert (one.requests_failed, one.retried, one.lost_tokens) == (1, 0, 8)
    assert results(run).summary["incidents"]["wasted_tokens_of"] == {"crash": 13}


@each_mode
def test_a_replica_that_is_up_before_the_probe_is_not_noticed(mode: str) -> None:
    run = Run([client(fleet((5500, 1), up=2000, probe=PROBE))], [ask(1000), ask(40_000)], mode, slo=SLO)
    one, = incidents(run)
    assert one.noticed_by == ""
    assert ns(one) == [None, None, 2000, 0]


@each_mode
def test_liveness_notices_a_hang_before_readiness_does(mode: str) -> None:
    """Liveness probes at 1,000, 3,000, ...: those at 7,000 and 9,000 fail, the second at 9,300. Killed at 10,300, ready
    at 12,300."""
    own = failing({"kind": "hang", "at": s(5500)}, up=2000, probe=PROBE, liveness={
        "period": s(2000), "failures": 2, "timeout": s(300), "grace": s(1000), "offset": s(1000)})
    one, = incidents(Run([client(own)], [ask(1000)], mode))
    assert one.noticed_by == "liveness"
    assert ns(one) == [3800, None, 6800, None]


@each_mode
def test_a_breaker_takes_traffic_away_before_the_probe(mode: str) -> None:
    """By turns the requests of 7,000 and 9,000 come to replica 1: the second failure opens its circuit."""
    own = fleet((3500, 1), up=50_000, probe=PROBE)
    asks = [ask(at) for at in (1000, 7000, 8000, 9000, 10_000)]
    run = Run([client(own)], asks, mode, gateway={
        "retries": 0, "router_retry": {"kind": "sglang", "retries": 0, "breaker": {"failures": 2}}})
    one, = incidents(run)
    assert one.noticed_by == "breaker"
    assert ns(one)[:2] == [9000 - 3500] * 2
    assert one.attempts_failed == 2


@each_mode
def test_a_straggler_is_an_incident_until_its_steps_are_fast_again(mode: str) -> None:
    own = failing({"kind": "straggler", "at": s(5500), "factor": 2, "lasts": s(4000)})
    one, = incidents(Run([client(own)], [ask(1000), ask(20_000)], mode, slo=SLO))
    assert one.kind == "straggler"
    assert ns(one) == [None, None, 4000, 0]


@each_mode
def test_a_spot_node_is_announced(mode: str) -> None:
    """The notice of 5,500 takes traffic away at once. Request 1 would end at 10,500 on replica 1; the node is gone at
    8,500. Another replica starts in slot 2 and is ready at 7,500."""
    own = failing({"kind": "reclaim", "at": s(5500), "replica": 1, "notice": s(3000)}, up=2000)
    run = Run([client(own, count=3)], [ask(1000), ask(1500)], mode)
    one, = incidents(run)
    assert one.noticed_by == "notice"
    assert ns(one) == [0, 0, 2000, None]
    assert one.cut == 1


@each_mode
def test_an_incident_within_another_waits_for_both(mode: str) -> None:
    """Of three replicas slot 0 crashes at 2,000, slot 1 at 10,000, each for 20,000: three are ready again at 30,000."""
    run = Run([client(fleet((2000, 0), (10_000, 1), start=3, up=20_000), count=3)], [ask(1000), ask(40_000)], mode)
    assert [ns(one)[2] for one in incidents(run)] == [28_000, 20_000]


@each_mode
def test_a_node_is_one_incident_of_all_its_clients(mode: str) -> None:
    own = failing({"kind": "node", "at": s(5500), "repair": s(10_000), "notice": s(4000), "evict": None}, up=2000)
    run = Run([client(own, count=2, platform="n0")], [ask(1000), ask(30_000)], mode)
    one, = incidents(run)
    assert (one.kind, one.clients, one.noticed_by) == ("node", ["llm-0", "llm-1"], "heartbeat")
    assert ns(one) == [4000, 4000, 12_000, None]


def test_files_trace_and_lines_have_it(tmp_path: Path) -> None:
    run = Run([client(fleet((5500, 1), up=20_000, probe=PROBE))], [ask(1000), ask(1500), ask(40_000)], slo=SLO)
    found = results(run)
    stored = open_run(write_results(found, tmp_path / "run"))
    assert stored.summary["incidents"] == found.summary["incidents"]
    assert stored.incidents.to_dict() == found.incidents.to_dict()
    assert len(stored.incidents) == 1
    spans = [event for event in trace_events(run.record, found.metrics, slo=found.slo)
             if event.get("cat") == "incident"]
    assert [(event["ph"], event["name"], event["ts"]) for event in spans if event["ph"] != "e"] == [
        ("b", "crash of llm-1", 5.5), ("n", "noticed", 13.0), ("n", "traffic left", 13.5), ("n", "capacity back", 25.5),
        ("n", "recovered", 5.5)]
    assert spans[1]["ts"] == 25.5
    assert any("crash of llm-1 at" in text for _, text in brief(found.summary, {}))


def test_a_run_without_failures_has_none() -> None:
    run = Run([client(fleet())], [ask(1000)])
    assert incidents(run) == []
    assert "incidents" not in results(run).summary
    assert not run.record.incidents
