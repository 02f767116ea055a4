"""Searches lengthen the arrivals of simulations that have not settled, and never count one as met."""

from __future__ import annotations

from typing import Any

import pytest

from hermes.api import simulate
from hermes.cli import main
from hermes.explore.capacity import capacity
from hermes.explore.lengthening import arrivals_of
from hermes.explore.objective import missed
from hermes.explore.size import size
from hermes.explore.size.text import lines
from hermes.explore.sweep.executor import of_workers
from hermes.explore.trials import Trials
from hermes.scenario import load_scenario

LONG = {   # answers stay for 10 s; the scenario's requests arrive in 10 s
    "workload": {"requests": 60, "arrivals": {"kind": "poisson", "rate": 6},
                 "lengths": {"kind": "fixed", "prompt": 50, "output": 400}},
    "clients": [{"count": 1, "model": "llama-3.1-8b", "device": "l40s"}],
    "slo": {"ttft": "500 ms", "tpot": "32 ms"},
}


def test_an_unsettled_simulation_is_not_met() -> None:
    row = {"slo.pass": True, "settling.settled": False, "settling.why": "too short to settle"}
    assert missed(row) == "did not settle: too short to settle"
    assert missed(row | {"settling.settled": True}) is None
    assert missed(row | {"settling.settled": True, "settling.late_misses": True}) is not None


def test_arrivals_become_long_enough() -> None:
    found = capacity(LONG, workers=0, seeds=1, max_runs=2, quick=True)
    for trial in found.answers[0].trials:
        if trial.misses is None:
            assert trial.row["settling.settled"]
            assert trial.row["settling.arrivals_s"] >= 5 * trial.row["latency.e2e_s.p99"]
    assert max(trial.row["requests.total"] for trial in found.answers[0].trials) > 300


def test_progress_weighs_simulations_by_their_length(tmp_path: Any) -> None:
    """One as long as the scenario, and then one three times as long, of the four that are ahead."""
    said: list[tuple[int, int, float | None]] = []
    trials = Trials("t", load_scenario(LONG | {"workload": LONG["workload"] | {"requests": 400}}), tmp_path,
                    of_workers(0), lambda what, done, of, share: said.append((done, of, share)))
    trials.left, trials.ahead = 2, 4.0
    trials.run({"one": ({}, 0)})
    trials.run({"three": ({}, 1)}, 3.0)
    assert list(dict.fromkeys(said)) == [(0, 2, None), (1, 2, 0.25), (2, 2, 1.0)]


@pytest.mark.long
def test_size_with_long_answers_is_what_longer_runs_say(tmp_path: Any) -> None:
    """The answer meets the SLO with ten times as many requests as the scenario has, and keeps so many in best.yaml."""
    found = size(LONG, devices=["l40s"], tps=[1], layouts=["mixed"], max_devices=4, workers=0)
    best = found.ranked[0]
    assert best.row["settling.settled"]
    settings = found.settings(best)
    assert settings["workload"]["requests"] > 300
    assert found.check is not None
    assert found.check.answer.met == 3
    assert dict(lines(found))["checked"].startswith("3 of 3 other seeds meet the SLO")


@pytest.mark.long
def test_the_answer_meets_the_slo_with_ten_times_the_requests() -> None:
    """The scenario's 60 requests find one engine half empty."""
    found = size(LONG, devices=["l40s"], tps=[1], layouts=["mixed"], max_devices=4, workers=0)
    settings = found.settings(found.ranked[0])
    settings["workload"]["requests"] = 600
    assert simulate(settings).summary["slo"]["pass"]
    assert any(label == "checked" and "other seeds meet the SLO" in text for label, text in lines(found))


def test_nothing_settles(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace of four seconds cannot be longer: no answer, exit code 1."""
    import yaml

    rows = "".join(f"{i / 6},50,400\n" for i in range(60))
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    trace = {"kind": "trace", "path": "t.csv"}
    spec = LONG | {"workload": {"arrivals": trace, "lengths": trace}, "clients": [LONG["clients"][0] | {"count": 2}]}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(spec))
    arguments = [str(tmp_path / "s.yaml"), "--workers", "0"]
    assert main(["capacity", *arguments, "--seeds", "1", "--runs", "2", "--over", "clients"]) == 1
    assert "did not settle" in capsys.readouterr().out
    assert main(["size", *arguments, "--device", "l40s", "--tp", "1", "--max-devices", "2", "--layout", "mixed"]
                ) == 1
    assert "no simulation settled" in capsys.readouterr().out


def test_a_trace_that_is_long_enough_is_judged_as_it_is() -> None:
    scenario = load_scenario(LONG | {"workload": {"requests": 5, "arrivals": {"kind": "poisson", "rate": 1.0},
                                                  "lengths": {"kind": "fixed", "prompt": 5, "output": 5}}})
    arrivals = arrivals_of(scenario)
    assert not arrivals.fixed
    assert arrivals.settings({"workload.requests": 10}, 3.0) == {"workload.requests": 30}
    row = {"settling.settled": False, "settling.arrivals_s": 100.0, "latency.e2e_s.p99": 10.0,
           "headline.stable": None, "settling.needed_s": 300.0, "requests.total": 5}
    assert arrivals.longer(row, 2.0) == pytest.approx(6.0)
    fixed = type(arrivals)({}, {}, fixed=True)
    assert fixed.longer(row, 1.0) is None
    assert fixed.judged(row)["settling.settled"] is True
    assert fixed.judged(row | {"latency.e2e_s.p99": 30.0})["settling.settled"] is False
    assert fixed.judged(row | {"headline.stable": False})["settling.settled"] is False
