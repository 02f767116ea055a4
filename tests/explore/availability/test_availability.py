"""`hermes availability`: against the closed form of k of n, hand arithmetic, and runs with requests throughout."""

import json
import math

import numpy as np
import pytest

from hermes import simulate
from hermes.cli import main
from hermes.errors import InputError
from hermes.explore.availability import availability
from hermes.explore.availability.closed_form import Rate, k_of_n, sound_share, states_share
from hermes.explore.availability.text import lines, plain, states_table, windows_table

SMALL = {
    "name": "small",
    "workload": {"requests": 900, "arrivals": {"kind": "poisson", "rate": 15},
                 "lengths": {"kind": "independent", "prompt": 1000, "output": 60}},
    "clients": [{"model": "llama-3.1-8b", "device": "l40s", "count": 5, "fleet": {
        "start": 5, "start_up": {"total": "1 h"}, "restarts": {"backoff": 0},
        "failures": [{"kind": "crash", "every": {"mean": "20 h"}}]}}],
    "router": {"kind": "round_robin"}, "gateway": {"retries": 2, "begun": "restart"},
    "slo": {"ttft": "1 s", "tpot": "60 ms"},
}


def with_fleet(**keys):
    client = SMALL["clients"][0]
    return {**SMALL, "clients": [{**client, "fleet": {**client["fleet"], **keys}}]}


def test_the_closed_form_by_hand():
    """One fails each 10 h for 1 h: 10/11. Two of three: 3 (10/11)^2 (1/11) + (10/11)^3 = 1300/1331."""
    rates = [Rate("llm", "crash", 1 / 36_000, 3600)]
    assert sound_share(rates) == pytest.approx(10 / 11)
    assert states_share((3,), [10 / 11], (2,)) == pytest.approx(300 / 1331)
    met = {(3,): True, (2,): True, (1,): False}
    assert k_of_n(["llm"], (3,), rates, met, {}) == (pytest.approx(1300 / 1331), "")
    share, _ = k_of_n(["llm"], (3,), rates, met, {("crash", "llm", (3,)): 36.0})   # three fail at 3/36,000 a second
    assert share == pytest.approx(1300 / 1331 - 1000 / 1331 * 3 * 36 / 36_000)
    nodes = [rates[0]._replace(several=True)]
    assert k_of_n(["llm"], (3,), nodes, met, {}) == (None, "a failure takes several replicas")


@pytest.fixture(scope="module")
def found():
    return availability(SMALL, days=30, months=12, workers=0)


@pytest.mark.feature("Results, sweeps, studies", "`hermes availability`: a month of failures against the closed form")
def test_it_is_that_of_k_of_n(found):
    """Independent crashes: a replica is sound for exp(-1/20) of the time (a crash begins the start anew). The fewest
    that keep the SLO are found by plain runs."""
    fewest = next(n for n in range(1, 6) if simulate({
        **SMALL, "clients": [{**SMALL["clients"][0], "count": n, "fleet": None}]}).summary["slo"]["pass"])
    p = math.exp(-1 / 20)
    assert {state.sound[0]: state.misses is None for state in found.states} == {
        state.sound[0]: state.sound[0] >= fewest for state in found.states}
    binomial = {n: math.comb(5, n) * p**n * (1 - p) ** (5 - n) for n in range(6)}
    for state in found.states[:3]:   # 4,320 h of each replica are 216 failures
        spread = math.sqrt(binomial[state.sound[0]] / (12 * 30 * 24 / 2))
        assert state.share == pytest.approx(binomial[state.sound[0]], abs=4 * spread)
    assert found.incidents == pytest.approx(12 * 30 * 24 * 5 / 20, abs=4 * math.sqrt(2160))
    assert found.closed is not None
    assert found.half is not None
    assert found.share == pytest.approx(found.closed, abs=1.5 * found.half)   # t of 12 months: 3.3 standard errors
    assert found.closed < sum(binomial[n] for n in range(fewest, 6))   # less the times to recover
    assert 0 < found.half < 0.02


def test_windows_are_what_runs_with_requests_have(found):
    """The commonest window as a run of its own: the same time to recover and the same requests."""
    window = max(found.windows, key=lambda one: one.count)
    assert (window.kind, window.hits) == ("crash", (1,))
    assert window.back_s == pytest.approx(3600, rel=0.2)   # overlaps wait for both
    run = simulate({**with_fleet(failures=[{"kind": "crash", "at": 60, "replica": 0}], start=window.before[0]),
                    "workload": {**SMALL["workload"], "requests": None, "duration": 420}})
    assert run.summary["incidents"]["recovered_s"] == pytest.approx(window.recovered_s, abs=30)
    assert abs(run.summary["incidents"]["retried"] - window.retried) < 0.5 * window.retried


def test_what_it_says(found):
    told = dict(lines(found))
    assert "12 months of 30 days" in told["available"]
    assert "k of n" in told["closed"]
    assert [row[0] for row in states_table(found).rows] == [str(state.sound[0]) for state in found.states]
    assert sum(state.share for state in found.states) == pytest.approx(1)
    assert windows_table(found).rows
    data = json.loads(json.dumps(plain(found)))
    assert np.mean(data["by_month"]) == pytest.approx(data["share"])
    again = availability(SMALL, days=30, months=12, workers=0)
    assert json.dumps(plain(again)) == json.dumps(plain(found))   # same seed, same bytes


def test_a_node_of_two_has_no_closed_form():
    data = with_fleet(failures=[{"kind": "node", "every": {"mean": "40 h"}, "repair": "2 min", "evict": None}],
                      start_up={"total": "1 min"})
    data["clients"][0] |= {"platform": "n{i//2}"}
    node = availability(data, days=4, months=2, workers=0)
    assert (node.closed, node.why) == (None, "a failure takes several replicas")
    assert any(window.hits == (2,) for window in node.windows)


def test_ranks_of_an_engine_are_one_replica():
    """Two replicas of two ranks: each fails twice as often as one device, and takes the requests of both ranks."""
    client = SMALL["clients"][0] | {"model": "qwen3-30b-a3b", "device": "h100-sxm", "parallel": {"dp": 2, "ep": 2},
                                    "count": 2, "fleet": SMALL["clients"][0]["fleet"] | {
                                        "start": 2, "start_up": {"total": "1 min"}}}
    data = SMALL | {"clients": [client], "gateway": {"retries": 0}}
    ranks = availability(data, days=4, months=2, workers=0)
    assert ranks.full == (2,)
    assert ranks.rates[0].per_s == pytest.approx(2 / 72_000)
    assert ranks.why == ""
    window = next(one for one in ranks.windows if one.before == (2,))
    crashed = client | {"fleet": client["fleet"] | {"failures": [], "crashes": [{"at": 90, "replica": 0}]}}
    run = simulate(data | {"workload": SMALL["workload"] | {"requests": None, "duration": 300}, "clients": [crashed]})
    assert run.summary["incidents"]["requests_failed"] == run.summary["attempts"]["failed"]
    assert window.lost > 0


@pytest.mark.parametrize(("data", "said"), [
    (with_fleet(failures=[{"kind": "zone", "every": {"mean": "9 h"}, "repair": "1 h"}], nodes={"zone": "z{i%2}"}),
     "write an entry for each zone"),
    (with_fleet(failures=[]), "failures: missing: failures at random times"),
    ({**SMALL, "slo": {}}, "slo: missing"),
    (with_fleet(failures=[{"kind": "straggler", "factor": 2, "every": {"mean": "9 h"}}]), "a slow replica is not lost"),
    (with_fleet(autoscaler={"kind": "schedule", "changes": [{"at": 5, "replicas": 2}]}), "follows the load"),
    ({**SMALL, "slo": {"ttft": "1 ms"}}, "the SLO is missed with all replicas up: TTFT p99"),
])
def test_what_is_refused(data, said):
    with pytest.raises(InputError, match=said):
        availability(data, days=10, months=1, workers=0)


def test_the_command(tmp_path, capsys):
    from hermes.config.yaml_writer import to_yaml

    (tmp_path / "small.yaml").write_text(to_yaml(SMALL))
    assert main(["availability", str(tmp_path / "small.yaml"), "--days", "2", "--months", "2", "--workers", "0", "-q",
                 "--slo", "ttft=1s,tpot=60ms"]) == 0
    assert "available" in capsys.readouterr().out
    assert main(["availability", "quickstart", "-q"]) == 2
    assert "failures at random times" in capsys.readouterr().err
