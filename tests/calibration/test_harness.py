"""The calibration harness with a collector that has no engine: budgets, kills, noise, packing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from long_runs import count

from hermes.calibration.collect.session import BUDGET_EXIT, DRIVER_PID, CollectorError, _lock, noise_of
from hermes.calibration.journal import read_journal
from hermes.calibration.pack import pack
from hermes.calibration.plan import Plan, save_plan
from hermes.calibration.session import collect, progress_of
from hermes.calibration.steps import load_steps, save_steps
from hermes.cli import main
from hermes.config import validate
from hermes.config.files import read_json
from hermes.errors import InputError
from hermes.hardware.descriptions.models import load_model

ROOT = Path(__file__).resolve().parents[2]
COLLECTOR = "tests.calibration.fake_collector"
PYTHON = ""


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> str:
    """An interpreter that has the fake collector: the session gives collectors this package and nothing else."""
    path = tmp_path_factory.mktemp("interpreter") / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{ROOT}" exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def _with_the_collector(python, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PYTHON", python)


def plan_of(points: list[dict[str, Any]], **more: Any) -> Plan:
    return Plan(
        engine="vllm", collector=COLLECTOR, model=load_model("llama-3.1-8b"), config_json={}, device="cpu",
        dtype="fp32", clock=more.pop("clock", "wall"), repetitions=3, warmup_s=more.pop("warmup_s", 0.0),
        points=points, **more,
    )


def points(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"name": f"point {i}", "level": i * 3 // count, "estimate_s": 0.01, **more} for i in range(count)]


def run(plan: Plan, folder: Path, **options: Any):
    save_plan(plan, folder / "plan.json")
    return collect(plan, folder / "plan.json", folder / "journal.jsonl", **{"python": PYTHON} | options)


def measured(journal: Path) -> list[str]:
    return [record["point"] for record in read_journal(journal)[1] if record["kind"] == "point"]


def test_every_point_is_measured_once_level_by_level(tmp_path):
    plan = plan_of(list(reversed(points(12))))
    progress, complete = run(plan, tmp_path)
    assert complete
    assert progress.done == 12
    assert progress.rows == 36
    levels = {point["name"]: point["level"] for point in plan.points}
    order = [levels[name] for name in measured(tmp_path / "journal.jsonl")]
    assert order == sorted(order)


@pytest.mark.feature("Measuring and fitting", (
    "`hermes calibrate plan`, `hermes calibrate run`, `hermes calibrate pack`, `hermes calibrate check` with "
    "the engine `vllm`"))
@pytest.mark.long
def test_kill_9_loses_and_doubles_nothing(tmp_path):
    plan = plan_of(points(40, sleep_s=0.03))
    save_plan(plan, tmp_path / "plan.json")
    journal = tmp_path / "journal.jsonl"
    command = [sys.executable, "-m", COLLECTOR, str(tmp_path / "plan.json"), str(journal)]
    kills = 0
    for _ in range(3):
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT), DRIVER_PID: "0"})
        before = progress_of(plan, journal).done
        until = time.monotonic() + 20
        while progress_of(plan, journal).done < before + 5 and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills == 3
    with journal.open("ab") as file:
        file.write(b'{"kind":"point","point":"point 39","ro')   # what a kill in the middle of a write leaves
    assert len(measured(journal)) < 40
    _, complete = run(plan, tmp_path)
    assert complete
    assert Counter(measured(journal)) == Counter(point["name"] for point in plan.points)
    assert run(plan, tmp_path)[0].rows == 120   # nothing left to do: nothing is added
    assert len(pack(journal).rows) == 120


DRIVER = """
import sys
from pathlib import Path
from hermes.calibration.plan import Plan
from hermes.config import validate
from hermes.config.files import read_json
from hermes.calibration.session import collect
plan, journal = map(Path, sys.argv[1:3])
collect(validate(Plan, read_json(plan)), plan, journal, python=sys.argv[3])
"""


@pytest.mark.drawn
@pytest.mark.long(quick=2)
@pytest.mark.parametrize("seed", range(4))
def test_a_driver_killed_at_any_time_loses_and_doubles_nothing(seed, tmp_path):
    """The driver alone or its whole group is killed, at a random instant, and the last line torn at a random byte."""
    draw = random.Random(seed)
    plan = plan_of(points(30, sleep_s=0.02))
    save_plan(plan, tmp_path / "plan.json")
    journal, kept = tmp_path / "journal.jsonl", b""
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "plan.json"), str(journal), PYTHON]
    for _ in range(count(2, 4)):
        driver = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL)
        time.sleep(draw.uniform(0.2, 1.5))
        if draw.random() < 0.5:
            os.killpg(driver.pid, signal.SIGKILL)
        else:
            driver.kill()   # the collector is an orphan: it ends after its point
        driver.wait()
        with _lock(journal):
            content = journal.read_bytes() if journal.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]
            assert whole.startswith(kept), "what was in the journal stays"
            kept = whole
            if whole:
                line = b'{"kind":"point","point":"point 7","rows":[]}'
                journal.write_bytes(whole + line[: draw.randrange(len(line))])
    _, complete = run(plan, tmp_path)
    assert complete
    assert journal.read_bytes().startswith(kept)
    assert Counter(measured(journal)) == Counter(point["name"] for point in plan.points)


def test_a_cut_journal_is_packed(tmp_path):
    """Every place of the cut: what was complete before it counts."""
    run(plan_of(points(6)), tmp_path)
    journal = tmp_path / "steps.journal.jsonl"
    *before, last = (tmp_path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    for place in (0, 1, len(last) // 2, len(last) - 1):
        journal.write_bytes(b"".join(before) + last[:place])
        assert main(["calibrate", "pack", str(journal), "-o", str(tmp_path / "s.yaml")]) == 0
        assert len(load_steps(tmp_path / "s.yaml").rows) == 3 * 5


@pytest.mark.parametrize("script", ["exit 0", "exit 3", "exit 1", "echo; exit 0", "kill -9 $$"])
def test_an_interpreter_that_measures_nothing_is_one_line(tmp_path, capsys, script):
    python, plan = tmp_path / "python", tmp_path / "plan.yaml"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    plan.write_text("{measure: llm, model: llama-3.1-8b, points: 3, parts: [grid]}\n")
    assert main(["calibrate", "run", str(plan), "--python", str(python), "-q"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("hermes: ")


@pytest.mark.long
def test_a_budget_is_kept_and_can_be_continued(tmp_path):
    plan = plan_of(points(60, sleep_s=0.05))
    began = time.monotonic()
    progress, complete = run(plan, tmp_path, budget_s=1.5)
    assert not complete
    assert time.monotonic() - began < 3.0
    assert 0 < progress.done < 60
    assert any("not measured (time budget)" in note for note in pack(tmp_path / "journal.jsonl").header.notes)
    _, complete = run(plan, tmp_path)
    assert complete
    assert sorted(measured(tmp_path / "journal.jsonl")) == sorted(point["name"] for point in plan.points)


def test_another_plan_does_not_continue_a_journal(tmp_path):
    run(plan_of(points(3)), tmp_path)
    with pytest.raises(InputError, match="begun with another plan"):
        run(plan_of(points(4)), tmp_path)


def test_a_collector_that_fails_is_one_line(tmp_path):
    with pytest.raises(InputError, match="the engine does not start") as caught:
        run(plan_of(points(3), options={"broken": True}), tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="--python"):
        run(plan_of(points(3)), tmp_path, python="/nowhere/python")


def test_noisy_points_are_measured_again_once_and_rejected_ones_excluded(tmp_path):
    some = points(3)
    some[0] |= {"times": [0.01, 0.02, 0.016], "times_again": [0.01, 0.0101, 0.0099]}
    some[1] |= {"times": [0.01, 0.05, 0.01], "times_again": [0.01, 0.06, 0.01]}
    some[2] |= {"fail": True}
    progress, complete = run(plan_of(some), tmp_path)
    assert complete
    assert progress.classes == {"excellent": 1, "rejected": 1, "failed": 1}
    steps = pack(tmp_path / "journal.jsonl")
    reasons = steps.rows.groupby(["configuration", "excluded"]).size().to_dict()
    assert reasons == {
        ("point 0", "flaky (CV 33%), measured again"): 3, ("point 0", ""): 3,
        ("point 1", "rejected (CV 99%), measured again"): 3, ("point 1", "rejected: 3 repetitions, CV 108%"): 3,
    }
    assert steps.header.excluded == ["point 2: out of memory"]
    assert steps.header.options["noise"]["excellent"] == 1


def test_warm_up_and_drift(tmp_path):
    plan = plan_of(points(6, sleep_s=0.02), warmup_s=0.3, reference={"name": "reference", "sleep_s": 0.01},
                   reference_every_s=0.05)
    run(plan, tmp_path)
    records = read_journal(tmp_path / "journal.jsonl")[1]
    warm = next(record for record in records if record.get("text") == "warmed up")
    assert warm["seconds"] >= 0.3
    assert warm["rounds"] > 5
    drift = pack(tmp_path / "journal.jsonl").header.options["drift"]
    assert drift["reference_visits"] >= 3
    assert drift["last_over_first"] == 1.0


def test_packing_takes_the_clock_asked_for(tmp_path):
    run(plan_of(points(3)), tmp_path)
    wall, cpu = pack(tmp_path / "journal.jsonl"), pack(tmp_path / "journal.jsonl", clock="cpu")
    assert (cpu.rows["time_s"] * 2 == wall.rows["time_s"]).all()
    assert "CPU" in cpu.header.clock
    header = save_steps(cpu, tmp_path / "steps.yaml")
    assert load_steps(tmp_path / "steps.yaml").header == header
    with pytest.raises(InputError, match="wall or cpu"):
        pack(tmp_path / "journal.jsonl", clock="sun")


@pytest.mark.parametrize("content", ["", "{}\n", '{"kind":"header","format":"hermes-journal/1"}\n', "no json\n", None])
def test_packing_what_is_no_journal(tmp_path, content):
    path = tmp_path / "journal.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError) as caught:
        pack(path)
    assert str(path) in str(caught.value)


STEP = {"prefill_seqs": 0, "prefill_tokens": 0, "prefill_past": 0, "prefill_attn": 0, "decode_seqs": 1,
        "decode_ctx": 10, "decode_ctx_max": 10, "sampled": 1, "time_s": 0.01, "cpu_time_s": 0.01, "repetition": 0}


def journal_with(folder: Path, row: str, **record: Any) -> Path:
    """A journal with one row, written as it stands."""
    header = {"kind": "header", "format": "hermes-journal/1", "plan": plan_of(points(1)).model_dump(mode="json"),
              "environment": {}}
    point = {"kind": "point", "point": "point 0", "rows": ["ROW"], **record}
    path = folder / "journal.jsonl"
    path.write_text(json.dumps(header) + "\n" + json.dumps(point).replace('"ROW"', row) + "\n")
    return path


@pytest.mark.parametrize(("column", "value", "message"), [
    ("decode_seqs", "1.7", "rows.0.decode_seqs: expected an integer"), ("time_s", "true", "expected a finite number"),
    ("decode_seqs", "true", "expected an integer"), ("time_s", "NaN", "finite numbers, found NaN"),
    ("time_s", "1e999", "finite numbers"), ("time_s", "-1", "a time above 0"), ("time_s", '"1"', "a finite number"),
    ("decode_seqs", "-1", "an integer from 0"), ("decode_seqs", "99999999999999999999", "an integer from 0"),
    ("decode_seqs", "null", "an integer"), ("configuration", "3", "expected text"), ("sped", "3", "columns among"),
    ("repetition", "0.5", "an integer"), ("excluded", "false", "expected text"),
])
def test_packing_trusts_no_value_of_a_journal(tmp_path, capsys, column, value, message):
    row = json.dumps(STEP | {column: "VALUE"}).replace('"VALUE"', value)
    assert main(["calibrate", "pack", str(journal_with(tmp_path, row)), "-o", str(tmp_path / "s.yaml")]) == 2
    error = capsys.readouterr().err
    assert "journal.jsonl:2: " in error
    assert message in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.jsonl"]


@pytest.mark.parametrize(("record", "message"), [
    ({"attempt": 1.5}, "attempt: expected an integer"), ({"rows": 3}, "rows: expected a list of rows"),
    ({"rows": [3]}, "rows: expected a list of rows"), ({"failed": 3}, "failed: expected text"),
    ({"point": "point 7"}, "a point of the plan"), ({"kind": 3}, "with its kind"), ({"class": None}, "class: expected"),
])
def test_packing_trusts_no_record_of_a_journal(tmp_path, record, message):
    with pytest.raises(InputError, match=message) as caught:
        pack(journal_with(tmp_path, json.dumps(STEP), **record))
    assert "journal.jsonl:2: " in str(caught.value)


def test_a_journal_that_cannot_be_read_is_one_line(tmp_path, capsys):
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", ".", "none"):
        assert main(["calibrate", "pack", str(tmp_path / name), "-o", str(tmp_path / "s.yaml")]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_module_in_the_current_folder_is_not_the_collectors(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit('the wrong numpy')")
    monkeypatch.chdir(tmp_path)
    assert run(plan_of(points(2)), tmp_path)[1]


def test_an_orphaned_collector_stops(tmp_path):
    save_plan(plan_of(points(20, sleep_s=0.02)), tmp_path / "plan.json")
    command = [sys.executable, "-m", COLLECTOR, str(tmp_path / "plan.json"), str(tmp_path / "journal.jsonl")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), DRIVER_PID: "1999999999"}
    assert subprocess.run(command, cwd=ROOT, env=environment).returncode == BUDGET_EXIT


def test_two_collectors_do_not_share_a_journal(tmp_path):
    journal = tmp_path / "journal.jsonl"
    with _lock(journal), pytest.raises(CollectorError, match="another collector is writing it"):
        _lock(journal, wait_s=0.3)
    _lock(journal, wait_s=0.3).close()


def test_plans_survive_the_file(tmp_path):
    plan = plan_of(points(3))
    save_plan(plan, tmp_path / "plan.json")
    assert validate(Plan, read_json(tmp_path / "plan.json"), str(tmp_path / "plan.json")) == plan
    content = json.loads((tmp_path / "plan.json").read_text())
    content["points"][1]["name"] = "point 0"
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="different names"):
        validate(Plan, read_json(tmp_path / "plan.json"), str(tmp_path / "plan.json"))


def test_noise_is_the_median_over_repeated_steps():
    row = {"decode_seqs": 1}
    rows = [row | {"time_s": t} for t in (1.0, 1.0)] + [row | {"decode_ctx": 5, "time_s": t} for t in (1.0, 1.4)]
    cv, verdict = noise_of(rows, "wall")
    assert cv == pytest.approx(0.5 * (0.2828427 / 1.2))
    assert verdict == "good"
    assert noise_of(rows[:1], "wall") == (0.0, "single")


def test_check_prices_what_was_measured(tmp_path, capsys):
    """Steps made of a profile's own prices: off by what was put in."""
    from hermes.calibration.comparison import check_steps
    from hermes.calibration.steps import STATS, MeasuredSteps, StepsHeader
    from hermes.hardware.base import StepStats
    from hermes.hardware.fitted.polynomial import Polynomial

    model = Polynomial(profile="splitwise-2023-llama-2-70b-h100-tp8").build(Path())
    batches = [StepStats(decode_seqs=b, decode_ctx=b * 500, decode_ctx_max=500, sampled=b) for b in (1, 8, 32)]
    batches += [StepStats(1, n, 0, n * (n + 1) // 2, sampled=1) for n in (64, 999)]
    rows = pd.DataFrame([
        {name: getattr(batch, name) for name in STATS} | {
            "time_s": model.step_ns(batch) * 1e-9 * factor, "configuration": str(i), "repetition": r}
        for i, batch in enumerate(batches) for r, factor in enumerate((0.8, 2.0, 0.7))   # median: 0.8
    ])
    header = StepsHeader(name="made", hardware="h", engine="e", model="m", dtype="bf16", date="today", clock="c",
                         source="s")
    save_steps(MeasuredSteps(header, rows), tmp_path / "steps.yaml")
    lines, table = check_steps(load_steps(tmp_path / "steps.yaml"), model)
    assert [(line.phase, line.errors.points) for line in lines] == [("prefill", 2), ("decode", 3), ("all", 5)]
    assert all(line.errors.mape == pytest.approx(0.25, rel=1e-6) == line.errors.median for line in lines)
    assert len(table) == 5
    assert main(["calibrate", "check", str(tmp_path / "steps.yaml"), "splitwise-2023-llama-2-70b-h100-tp8"]) == 0
    assert "25.0%" in capsys.readouterr().out
