"""`hermes capacity`: the search, its verdicts, and the command."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outside import outside

from hermes.cli import main
from hermes.errors import InputError
from hermes.explore.bracket import Bracket
from hermes.explore.capacity import RATIO, Answer, Capacity, Trial, capacity
from hermes.explore.capacity.text import lines
from hermes.explore.objective import missed, slo_overrides
from hermes.scenario import load_scenario
from hermes.workload.arrivals import ARRIVALS

SMALL = {
    "workload": {"requests": 200, "arrivals": {"kind": "poisson", "rate": 4},
                 "lengths": {"kind": "independent", "prompt": 500, "output": 50}},
    "clients": [{"count": 2, "model": "llama-3.1-8b", "device": "l40s"}],
    "slo": {"ttft": "500 ms", "tpot": "60 ms"},
}


def searched(bracket, met):
    """Run a search to its end; the levels it tried, in order."""
    tried = []
    while (level := bracket.choose()) is not None:
        assert level not in bracket.known
        tried.append(level)
        bracket.known[level] = met(level)
    return tried


@given(start=st.integers(-300, 300), limit=st.integers(-300, 300), stride=st.integers(1, 80),
       confirm=st.integers(0, 4), hints=st.lists(st.integers(-400, 400), max_size=3))
def test_it_finds_the_hardest_level_that_is_met(start, limit, stride, confirm, hints):
    bracket = Bracket(start, stride, confirm=confirm)
    while (level := bracket.choose()) is not None:
        bracket.known[level] = level <= limit
        bracket.hint = hints.pop() if hints else None   # a wrong one costs a trial at most
    assert (bracket.meets_up_to, bracket.misses_from) == (limit, limit + 1)
    assert bracket.closed
    assert not bracket.contradictions


@given(start=st.integers(1, 60), limit=st.integers(1, 80), most=st.integers(1, 80))
def test_it_stays_within_its_bounds(start, limit, most):
    bracket = Bracket(-min(start, most), 1, lowest=-most, highest=-1)
    tried = searched(bracket, lambda level: level <= -limit)
    assert all(-most <= level <= -1 for level in tried)
    assert bracket.closed
    assert bracket.meets_up_to == (-limit if limit <= most else None)


def test_a_doubled_load_takes_eleven_trials_at_most():
    for limit in range(-70, 141):
        assert len(searched(Bracket(0, 70), lambda level, limit=limit: level <= limit)) <= 11


def test_a_search_may_end_before_its_levels_are_neighbours():
    bracket = Bracket(0, 70, near=8)
    assert searched(bracket, lambda level: level <= 42) == [0, 70, 35, 52, 43]
    assert (bracket.meets_up_to, bracket.misses_from, bracket.closed) == (35, 43, True)


def test_a_miss_below_the_answer_moves_it_down():
    bracket = Bracket(0, 8, confirm=3)
    searched(bracket, lambda level: level <= 5 and level != 3)
    assert (bracket.meets_up_to, bracket.misses_from, bracket.contradictions) == (2, 3, 2)


@pytest.mark.parametrize(("kind", "more", "scaled"), [
    ("poisson", {"rate": 4}, {"rate": 6.0}), ("gamma", {"rate": 4, "cv": 2}, {"rate": 6.0}),
    ("mmpp", {"rates": [1, 3], "dwells": [1, 2]}, {"rates": [1.5, 4.5]}),
    ("profile", {"rates": [1, 0, 3], "every": "1 min"}, {"rates": [1.5, 0.0, 4.5]}),
    ("trace", {"path": "a.csv"}, {"scale": 1.5}), ("trace", {"path": "a.csv", "scale": 2}, {"scale": 3.0}),
    ("trace", {"path": "a.csv", "rate": 2}, {"rate": 3.0}), ("closed_loop", {"users": 5}, {"users": 8}),
])
def test_half_as_much_again(kind, more, scaled):
    assert ARRIVALS.get(kind)(kind=kind, **more).scaled(1.5) == scaled


def test_limits_as_text():
    assert slo_overrides("ttft_p90=1s, tpot_p90=50ms") == ["slo.ttft=1s", "slo.tpot=50ms", "slo.percentile=90"]
    assert slo_overrides("e2e=30s") == ["slo.e2e=30s", "slo.percentile=99"]
    for wrong, said in (("ttft", "limits such as"), ("itl=1s", "limits such as"), ("ttft=1s,ttft_p50=2s", "two limits"),
                        ("ttft_p50=1s,tpot=1s", "differ in their percentile"), ("", "limits such as")):
        with pytest.raises(InputError, match=said):
            slo_overrides(wrong)


def test_what_is_missed_is_said():
    slo = {"slo.pass": False, "slo.ttft.pass": False, "slo.ttft.percentile": 90.0, "slo.ttft.value_s": 1.25,
           "slo.tpot_p50.pass": False, "slo.tpot_p50.value_s": 0.05, "slo.e2e.pass": True}
    assert missed(slo) == "TTFT p90 1.25 s, TPOT p50 50 ms"
    assert missed(slo | {"headline.stable": False}) == "the queue grows"
    assert missed(slo | {"requests.unfinished": 1200}) == "1,200 requests unfinished at the horizon"
    assert missed({"slo.pass": True, "headline.stable": None}) is None
    assert missed({"slo.pass": None}) == "no request was completed"


@pytest.mark.feature("Results, sweeps, studies", (
    "`hermes capacity`: the highest load or the fewest clients within an SLO, over seeds"))
@pytest.mark.long
def test_neighbouring_loads_and_every_seed(tmp_path):
    found = capacity(SMALL, workers=0, seeds=2, within=0.1, out=tmp_path / "kept")
    (answer,) = found.answers   # of the first seed alone
    assert answer.complete
    assert answer.next_load / answer.load == pytest.approx(RATIO, rel=1e-3)
    assert answer.at(answer.load).misses is None
    assert answer.at(answer.next_load).misses is not None
    assert len(answer.trials) <= 12
    assert found.unit == "requests/s"
    assert found.value == 4 * found.load
    assert found.beyond / found.load == pytest.approx(RATIO, rel=1e-3)
    assert found.low <= found.load < found.high
    assert found.narrow
    for seed in (0, 1):
        mine = [trial for trial in found.trials if trial.seed == seed]
        assert {trial.load for trial in mine} >= {found.low, found.load, found.beyond, found.high}
        assert min(trial.row["requests.total"] for trial in mine) > 2 * 200 * found.load   # three times as long
    said = dict(lines(found, "limits"))
    assert said["capacity"].startswith(
        f"{found.value:.4g} requests/s (95% interval {4 * found.low:.4g} to {4 * found.high:.4g}, 2 seeds of ")
    assert "warning" not in said
    again = capacity(SMALL, workers=0, seeds=2, within=0.1, out=tmp_path / "kept")
    assert (again.value, again.low, again.high) == (found.value, found.low, found.high)


@pytest.mark.long
def test_the_time_of_arrivals_stays():
    found = capacity(SMALL, workers=0, seeds=1, quick=True)
    assert (found.half_width, found.trials) == (None, ())
    rows = [trial.row for trial in found.answers[0].trials]
    for row, trial in zip(rows, found.answers[0].trials, strict=True):
        assert row["requests.total"] == max(round(200 * trial.load), 100)


def of_all_seeds(misses, **more):
    """An answer of two seeds together, at 4 requests/s a load of 1; misses: load -> what the seeds miss."""
    def trial(load, seed, missed):
        return Trial(round(100 * load), load, seed, missed, {"requests.total": round(1000 * load) + seed})

    first = Answer(0, 1.0, 1.01, True, [trial(1.0, 0, None), trial(1.01, 0, "TTFT p99 2 s")])
    trials = [trial(load, seed, missed) for load, missed in misses.items() for seed in (0, 1)]
    return dict(lines(Capacity("s", "rate", "requests/s", 4.0, [first], 0.02, seeds=(0, 1), trials=trials, **more), ""))


def test_a_search_of_all_seeds_that_meets_no_load_says_so():
    said = of_all_seeds({0.25: None, 1.0: "TTFT p99 2 s", 0.5: "TTFT p99 1 s"}, beyond=0.5, complete=False)
    assert said["capacity"] == "none: already 2 requests/s miss the SLO (8 runs)"
    assert said["warning"] == "the search ended after 6 runs; more narrow it down: --runs"


def test_a_search_of_all_seeds_that_misses_no_load_is_a_lower_bound():
    said = of_all_seeds({1.0: None, 1.5: None}, load=1.5, complete=False)
    assert said["capacity"] == "at least 6 requests/s: no load that was tried misses the SLO (6 runs)"


def test_the_requests_are_those_of_the_answer():
    said = of_all_seeds({1.0: None, 1.01: "TTFT p99 2 s", 1.2: "TTFT p99 9 s"}, load=1.0, beyond=1.01, high=1.2)
    assert "2 seeds of 1,000 requests), 8 runs" in said["capacity"]


def test_fewest_clients():
    many = SMALL | {"workload": SMALL["workload"] | {"requests": 1500, "arrivals": {"kind": "poisson", "rate": 40}}}
    found = capacity(many, over="clients", workers=0, seeds=1)
    count = int(found.value)
    for clients, meets in ((count, True), (count - 1, False)):
        spec = many | {"clients": [many["clients"][0] | {"count": clients}]}
        from hermes import simulate
        from hermes.explore.sweep.figures import figures
        assert (missed(figures(simulate(spec))) is None) == meets


@pytest.mark.long
def test_no_number_of_clients_is_enough():
    small = SMALL["workload"] | {"requests": 5}
    found = capacity(SMALL | {"workload": small, "slo": {"tpot": "1 ms"}}, over="clients", workers=0, seeds=3)
    assert found.value is None
    assert max(trial.load for trial in found.answers[0].trials) == 128
    assert found.answers[0].complete
    assert lines(found, "")[0][1].startswith("none: even 128 clients of llm miss the SLO")


@pytest.mark.parametrize(("change", "over", "said"), [
    ({"slo": {}}, "rate", "slo: missing: what the clients must keep"),
    ({}, "users", "expected rate, clients, or clients:NAME"),
    ({}, "clients:gpu", "a group of clients"),
    ({"workload": SMALL["workload"] | {"arrivals": {"kind": "at_once"}}}, "rate", "workload.arrivals.kind: expected "
     "arrivals with a rate"),
])
def test_a_mistake_is_said_before_any_run(change, over, said):
    with pytest.raises(InputError, match=said):
        capacity(SMALL | change, over=over, workers=0)


@pytest.mark.long
def test_the_command(tmp_path, capsys):
    import yaml

    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(SMALL))
    assert main(["capacity", str(file), "--seeds", "1", "--workers", "0", "--within", "0.1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("capacity  ")
    assert "keeps     TTFT p99 <= 500 ms, TPOT p99 <= 60 ms" in said
    assert all(len(line) <= 80 for line in said.splitlines())
    assert main(["capacity", str(file), "--seeds", "1", "--workers", "0", "--within", "0.1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seeds"][0]["complete"]
    assert main(["capacity", str(file), "--seeds", "1", "--workers", "0", "--slo", "tpot=1ms"]) == 1
    assert "none: already" in capsys.readouterr().out
    assert load_scenario(SMALL).workload[0].requests == 200


@pytest.mark.thorough
def test_a_short_workload_is_not_sized_by_its_unluckiest_load():
    """3,000 requests: 8/s meets the SLO over 20,000 requests with three seeds, 8.32/s misses it with each."""
    found = capacity(outside("cases/answers/l40s3.yaml"), seeds=2, within=0.1, workers=0)
    assert 7.9 <= found.value <= 8.4
    assert 8 * found.low < 8.16 < 8 * found.high
    assert found.half_width < 0.06 * found.value   # not 38%
