"""A whole validation with an engine that is simulated itself: files, attempts, interruption, report."""

import json
import shutil
import sys

import numpy as np
import pandas as pd
import pytest

from hermes.calibration.engine_validation.attempts import read_attempts
from hermes.calibration.engine_validation.engines import engine_named
from hermes.calibration.engine_validation.prediction import predict
from hermes.calibration.engine_validation.report import markdown, to_dict, write_report
from hermes.calibration.engine_validation.session import Options, Session
from hermes.calibration.engine_validation.workload import EngineSettings, OnlineWorkload, draw_requests
from hermes.calibration.steps import MeasuredSteps, StepsHeader, save_steps
from hermes.cli import main
from hermes.config.validation import validate
from hermes.errors import InputError
from hermes.hardware.files import find

# Stands in for `PYTHON -m MODULE WORKLOAD RESULT`: the times that a simulation with the shipped profile found, times
# the speed of this attempt.
FAKE = """\
import hashlib, json, sys
from pathlib import Path
speeds = Path({speeds!r})
left = json.loads(speeds.read_text())
speed, reference = left.pop(0)
speeds.write_text(json.dumps(left))
if speed == 0:
    print("loading"); sys.exit("the engine broke")
path, result = Path(sys.argv[-2]), Path(sys.argv[-1])
workload = json.loads(path.read_text())
requests = []
for r, ttft, e2e in zip(workload["requests"], {ttft!r}, {e2e!r}):
    first, last = r["arrival_s"] + speed * ttft, r["arrival_s"] + speed * e2e
    requests.append(dict(added_s=r["arrival_s"], first_token_s=first, finish_s=last, token_s=[first, last]))
ref = dict(wall_s=reference, cpu_s=reference, steps=33)
result.write_text(json.dumps(dict(
    format="hermes-online-result/1", engine="vllm", engine_version="9", clock=workload["clock"],
    workload_sha256=hashlib.sha256(path.read_bytes()).hexdigest(), requests=requests,
    steps=dict(end_s=[1.0], wall_s=[0.1], cpu_s=[0.1]), adding=dict(wall_s=[1e-4], cpu_s=[1e-4]), load=[],
    reference=dict(before=ref, after=ref), environment=dict(device="fake"))))
"""
REQUESTS = draw_requests(1.5, 12, 1)
SETTINGS = EngineSettings(model={"vocab_size": 100})
PROFILE = find("vllm-cpu-small-llama", None, "", "a profile")


@pytest.fixture(scope="module")
def simulated():
    workload = OnlineWorkload(clock="cpu", engine=SETTINGS, requests=REQUESTS)
    return predict(workload, engine_named("vllm").scheduler(workload), PROFILE).times


@pytest.fixture
def fake(tmp_path, simulated):
    """(a python, a function that says how fast the coming attempts are)."""
    speeds, script, python = tmp_path / "speeds.json", tmp_path / "fake.py", tmp_path / "python"
    script.write_text(FAKE.format(speeds=str(speeds), ttft=simulated.ttft.tolist(), e2e=simulated.e2e.tolist()))
    python.write_text(f"#!/bin/sh\nexec {sys.executable} -S -E {script} \"$@\"\n")
    python.chmod(0o755)
    return str(python), lambda *attempts: speeds.write_text(json.dumps(attempts))


def options(tmp_path, **more):
    return validate(Options, {
        "engine": "vllm", "settings": SETTINGS.model_dump(), "clocks": ["cpu"], "steps": str(steps(tmp_path)),
        "requests": [r.model_dump() for r in REQUESTS], **more,
    })


def steps(tmp_path):
    """Some steps; they are never fitted here, the profile is put in place."""
    path = tmp_path / "steps.yaml"
    rows = pd.DataFrame({"decode_ctx": [10, 20], "decode_ctx_max": [10, 20], "decode_seqs": [1, 1],
                         "prefill_attn": 0, "prefill_past": 0, "prefill_seqs": 0, "prefill_tokens": 0,
                         "sampled": 1, "time_s": [0.1, 0.1], "cpu_time_s": [0.09, 0.08], "configuration": "a"})
    header = StepsHeader(name="some", hardware="x", engine="vllm", model="m", dtype="bf16", date="2026-11",
                         clock="wall clock", source="made up")
    save_steps(MeasuredSteps(header, rows), path)
    return path


def session(tmp_path, python, **more):
    made = Session(options(tmp_path, **more), tmp_path / "out", python)
    made.begin()
    made.calibrate(None, "test")
    for clock in made.workloads:
        shutil.copy(PROFILE, tmp_path / "out" / f"profile-{clock}.yaml")
    return made


def test_every_attempt_is_kept_and_judged(tmp_path, fake):
    python, coming = fake
    coming([1.0, 0.02], [1.3, 0.03], [0, 0], [1.02, 0.0201], [0.98, 0.0199])
    made = session(tmp_path, python, repetitions=3, max_attempts=6)
    assert list(made.attempts()) == [("cpu", n) for n in (1, 2, 3, 4, 5)]
    outcome = made.outcome()
    clock = outcome.clocks[0]
    assert [a.accepted for a in clock.attempts] == [True, False, False, True, True]
    assert clock.attempts[2].result is None
    assert not clock.notes
    errors = {(row.metric, row.stat): row.error for row in clock.rows}
    assert errors["e2e", "mean"] == pytest.approx(0.0, abs=1e-6)   # the mean of 1, 1.02 and 0.98
    text = markdown(outcome)
    for words in ("rejected: reference before +4", "no result: failed or interrupted", "TTFT p99", "accepted"):
        assert words in text
    write_report(outcome, tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "report.json").read_text())
    assert stored == json.loads(json.dumps(to_dict(outcome)))
    assert [a["accepted"] for a in stored["clocks"][0]["attempts"]] == [True, False, False, True, True]


def test_it_gives_up_and_says_so(tmp_path, fake):
    python, coming = fake
    coming([1.0, 0.02], [1.0, 0.02], [1.0, 0.03], [1.0, 0.03])
    made = session(tmp_path, python, repetitions=3, max_attempts=4)
    assert len(list(made.attempts())) == 4
    clock = made.outcome().clocks[0]
    assert len(clock.accepted) == 0   # the median of all attempts is between the two speeds
    assert any("0 of 3 repetitions" in note for note in clock.notes)
    assert any("no attempt was accepted" in note for note in clock.notes)
    assert clock.rows[0].noise.samples == 4


def test_an_interrupted_validation_continues(tmp_path, fake):
    python, coming = fake
    coming([1.0, 0.02], [1.0, 0.02], [1.0, 0.02])
    first = session(tmp_path, python, repetitions=3)
    assert next(first.attempts()) == ("cpu", 1)
    again = session(tmp_path, python, repetitions=3)
    assert list(again.attempts()) == [("cpu", 2), ("cpu", 3)]
    assert list(session(tmp_path, python, repetitions=3).attempts()) == []
    coming([1.0, 0.02])
    assert list(session(tmp_path, python, repetitions=4).attempts()) == [("cpu", 4)]
    with pytest.raises(InputError, match="another clocks, warmup_s"):
        session(tmp_path, python, clocks=["wall"], warmup_s=1.0)


def test_clocks_take_turns(tmp_path, fake):
    python, coming = fake
    coming(*[[1.0, 0.02]] * 4)
    made = session(tmp_path, python, repetitions=2, clocks=["cpu", "wall"])
    assert list(made.attempts()) == [("cpu", 1), ("wall", 1), ("cpu", 2), ("wall", 2)]
    assert len(made.outcome().clocks) == 2


def test_an_engine_that_fails_at_once_is_one_line(tmp_path, fake):
    python, coming = fake
    coming([0, 0])
    with pytest.raises(InputError, match="the engine broke"):
        list(session(tmp_path, python).attempts())
    with pytest.raises(InputError, match="--python"):
        list(session(tmp_path, str(tmp_path / "none")).attempts())


def test_results_of_another_workload_are_refused(tmp_path, fake):
    python, coming = fake
    coming([1.0, 0.02])
    made = session(tmp_path, python)
    next(made.attempts())
    other = made.workloads["cpu"].model_copy(update={"warmup_s": 1.0})
    with pytest.raises(InputError, match="workload_sha256"):
        read_attempts(tmp_path / "out", "cpu", other, None)


def test_steps_are_timed_by_the_clock_they_predict(tmp_path):
    from hermes.calibration.engine_validation.profiles import given_steps
    from hermes.calibration.steps import load_steps

    source = steps(tmp_path)
    for clock, times in (("wall", [0.1, 0.1]), ("cpu", [0.09, 0.08])):
        assert given_steps(source, clock, tmp_path / f"{clock}.yaml") == ""
        assert np.array_equal(load_steps(tmp_path / f"{clock}.yaml").rows["time_s"], times)


@pytest.mark.parametrize(("settings", "words"), [
    (["engine=vlm"], "did you mean 'vllm'"),
    (["clock=wal"], "clock: expected 'wall', 'cpu' or 'both'"),
    (["device=cuda", "clock=cpu"], "clock: expected wall, found 'cpu'"),
    (["dtype=int3"], "dtype"),
    (["max_model_len=100"], "max_model_len"),
    (["workload=none.csv"], "none.csv"),
    (["model=none.json"], "none.json"),
    (["rates=3"], "did you mean 'rate'"),
])
def test_mistakes_are_one_line(settings, words, tmp_path, capsys):
    sets = [word for setting in ("steps=none.yaml", *settings) for word in ("--set", setting)]
    code = main(["validate-engine", "--python", "x", "-o", str(tmp_path / "o"), *sets])
    error = capsys.readouterr().err
    assert code == 2
    assert error.count("\n") == 1
    assert words in error
