"""A simulation that is ended as it certainly misses its SLO has the verdict of the whole run."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import hermes
from hermes.api import run_built
from hermes.explore.certain_miss import BY_FAR, CERTAIN, CertainMiss, certain_miss
from hermes.explore.objective import is_ended, missed
from hermes.explore.size import size
from hermes.explore.size.layouts import Splits
from hermes.explore.size.text import lines, plain
from hermes.explore.sweep.executor import InProcess
from hermes.explore.trials import Trials
from hermes.results import Results
from hermes.scenario import load_scenario
from hermes.scenario.build import build

ANY = -1.0   # ends a run at once when its verdict is certain, whatever its second half says
OVERLOAD: dict[str, Any] = {   # one engine of six slots serves two requests/s, and gets six
    "workload": {"requests": 3000, "arrivals": {"kind": "poisson", "rate": 6.0},
                 "lengths": {"kind": "fixed", "prompt": 300, "output": 100}},
    "clients": [{"hardware": {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"},
                 "memory": {"num_blocks": 50_000}, "scheduler": {"kind": "chunked", "max_num_seqs": 6}}],
    "slo": {"ttft": 1.0},
}


def ended(scenario: dict[str, Any], times: float) -> tuple[Results, CertainMiss | None]:
    checked = load_scenario(scenario)
    part = certain_miss(checked, times)
    simulation = build(checked, listeners=[] if part is None else [part])
    return run_built(checked, simulation, time.perf_counter()), part


def test_an_overloaded_engine_by_hand() -> None:
    """TTFT p99 of 3,000 requests lies at rank 2,969.01 of 0 to 2,999, so that 31 late ones make it late; one more is
    asked for. Six slots hold six requests; the seventh waits, and all after it longer and longer."""
    results, part = ended(OVERLOAD, ANY)
    assert part is not None
    assert part.need == 32
    whole = hermes.simulate(OVERLOAD)
    assert whole.summary["slo"]["pass"] is False
    waited = np.where(whole.metrics.ttft_ns / 1e9 > 1.0, whole.record.arrival_ns + 1e9, np.inf)
    first = np.sort(waited)[31]   # when the 32nd has waited for a second
    between = np.diff(whole.record.arrival_ns).max() * 3000 / 100   # at most so long between two looks
    assert first <= part.at_ns <= first + between
    assert results.record.end_ns == part.at_ns
    assert results.meta["interrupted"]
    assert part.at_ns < whole.record.end_ns / 20


@pytest.mark.parametrize("change", [
    {"horizon": 60.0}, {"gateway": {}}, {"slo": {"ttft": 1.0, "workloads": {"requests": {"ttft": 2.0}}}}, {"slo": {}},
    {"measure": {"start": 1.0}}])
def test_without_a_verdict_before_the_end_there_is_no_part(change: dict[str, Any]) -> None:
    base = {**OVERLOAD, "workload": {**OVERLOAD["workload"], "name": "requests"}}
    assert certain_miss(load_scenario(base), CERTAIN) is not None
    assert certain_miss(load_scenario({**base, **change}), CERTAIN) is None
    assert certain_miss(load_scenario(base), 0.0) is None


def trial(rng: np.random.Generator) -> dict[str, Any]:
    """A scenario near the limit of its clients, or far beyond."""
    kind = rng.choice(["poisson", "gamma", "closed_loop"])
    arrivals: dict[str, Any] = {"kind": str(kind), "rate": float(rng.uniform(1.0, 8.0))}
    if kind == "gamma":
        arrivals["cv"] = 2.0
    if kind == "closed_loop":
        arrivals = {"kind": "closed_loop", "users": int(rng.integers(2, 30))}
    lengths = {"kind": "independent", "prompt": {"kind": "lognormal", "median": 300, "sigma": 0.6, "max": 4000},
               "output": {"kind": "lognormal", "median": int(rng.choice([20, 60, 200])), "sigma": 0.7, "max": 1500}}
    roles = [{"role": "prefill", "count": 1}, {"role": "decode", "count": 2}] if rng.random() < 0.3 else [
        {"count": int(rng.integers(1, 4))}]
    client = {**OVERLOAD["clients"][0], "scheduler": {"kind": "chunked", "max_num_seqs": int(rng.choice([6, 16]))}}
    return {"seed": int(rng.integers(1000)),
            "workload": {"requests": int(rng.choice([200, 500, 1200])), "arrivals": arrivals, "lengths": lengths},
            "clients": [{"name": f"c{i}", **client, **role} for i, role in enumerate(roles)],
            "slo": {"ttft": float(rng.choice([0.5, 1.0, 3.0])), "tpot": float(rng.choice([0.03, 0.05, 0.1])),
                    "percentile": float(rng.choice([90.0, 99.0]))}}


@pytest.mark.drawn(one_of=3)
@pytest.mark.parametrize("seed", range(6))
def test_a_search_comes_to_the_same_verdict(seed: int, tmp_path: Any) -> None:
    """With the arrivals that a search makes longer until a simulation has settled."""
    rng = np.random.default_rng(seed)
    early = 0
    for number in range(6):
        checked = load_scenario(trial(rng))
        rows = {}
        for times in (0.0, CERTAIN, BY_FAR):
            trials = Trials("trial", checked, tmp_path / f"{number}-{times}", InProcess())
            rows[times] = trials.run({"one": ({}, checked.seed)}, until_missed=times)["one"]
        verdicts = {times: missed(row) is None for times, row in rows.items()}
        assert len(set(verdicts.values())) == 1, (number, rows)
        early += is_ended(rows[CERTAIN])
        assert not is_ended(rows[BY_FAR]) or is_ended(rows[CERTAIN])
    assert early


def test_an_answer_says_a_bound_for_what_was_ended(tmp_path: Any) -> None:
    """No figure of a part is printed as one of the scenario; where its figures are asked for, the whole run is made."""
    one = {**OVERLOAD, "workload": {**OVERLOAD["workload"], "requests": 600},
           "clients": [{"model": "llama-3.1-8b", "device": "l40s"}], "slo": {"ttft": 1.0, "tpot": 0.04}}
    one["workload"] = {**one["workload"], "arrivals": {"kind": "poisson", "rate": 30.0}}
    found = size(one, devices=["l40s"], tps=[1], splits=Splits([1]), layouts=["mixed"], max_devices=1, workers=0)
    assert not found.meets
    told = dict(lines(found))["misses"]
    assert " late after " in told
    assert "p99 beyond" in told
    assert all(each["tokens_per_s_per_user"] is None for each in plain(found)["front"])
    trials = Trials("trial", load_scenario(OVERLOAD), tmp_path, InProcess())
    assert is_ended(trials.run({"one": ({}, 0)}, until_missed=BY_FAR)["one"])
    assert "latency.ttft_s.p99" in trials.run({"one": ({}, 0)})["one"]
    assert not is_ended(trials.rows["one"])
    assert is_ended(trials.run({"two": ({}, 1)}, until_missed=BY_FAR)["two"])
    trials.finish()
