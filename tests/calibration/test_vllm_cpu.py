"""The online runs of a real vLLM on a CPU, predicted from its measured steps: scripts/validate_vllm_cpu.py."""

from pathlib import Path

import pandas as pd
import pytest
from scripts_loaded import load

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script():
    return load("scripts/validate_vllm_cpu.py")


def means(outcome):
    return {row.metric: row.error for row in outcome.rows if row.stat == "mean"}


@pytest.mark.parametrize("run", ["online-cpuclock", "online-wallclock"])
def test_means_are_near_the_engine_s(script, run):
    outcome = script.run(script.DATA, run)
    assert outcome.ok, means(outcome)
    assert outcome.out_of_range_steps < 0.02 * outcome.steps


@pytest.mark.long
def test_a_fresh_fit_does_as_well(script, tmp_path):
    profile = script.refit(script.DATA, tmp_path)
    for run in script.RUNS:
        assert script.run(script.DATA, run, profile).ok


def test_a_slower_engine_would_be_noticed(script, tmp_path):
    """The tolerance means something: 8% more time per step fails."""
    from hermes.hardware.fitted.profile import dump_yaml, load_profile

    profile = load_profile("vllm-cpu-small-llama")
    phases = {}
    for name in ("prefill", "decode", "mixed"):
        phase = getattr(profile.phases, name)
        terms = [term.model_copy(update={"seconds": term.seconds * 1.08}) for term in phase.terms]
        phases[name] = phase.model_copy(update={"terms": terms})
    slower = profile.model_copy(update={"phases": profile.phases.model_copy(update=phases)})
    dump_yaml(slower, tmp_path / "slower.yaml", "8% slower")
    assert not script.run(script.DATA, "online-cpuclock", tmp_path / "slower.yaml").ok


def test_the_scenario_replays_the_very_requests(script):
    ours = pd.read_csv(ROOT / "scenarios" / "validation" / "vllm-cpu-requests.csv")
    for run in script.RUNS:
        theirs = pd.read_csv(script.DATA / f"{run}.csv")
        assert ours.to_numpy().tolist() == theirs[["arrival_s", "prompt_len", "output_len"]].to_numpy().tolist()


def test_a_run_of_other_requests_is_refused(script, tmp_path, capsys):
    for run in script.RUNS:
        frame = pd.read_csv(script.DATA / f"{run}.csv")
        for column in ("arrival_s", "first_token_s", "finish_s"):   # half the rate, the same latencies
            frame[column] += frame["arrival_s"].to_numpy(copy=True) if column != "arrival_s" else 0
        frame["arrival_s"] *= 2
        frame.to_csv(tmp_path / f"{run}.csv", index=False)
    assert script.main([str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "not the same requests: request 1 arrives" in said
    assert said.count("\n") == 1


def test_a_folder_without_runs_is_one_line(script, tmp_path, capsys):
    assert script.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
