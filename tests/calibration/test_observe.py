"""`hermes observe` against a small server on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from completions_server import FIRST_S, NEXT_S, serving
from typer.testing import CliRunner

from hermes.api import simulate
from hermes.calibration.journal import Journal
from hermes.calibration.observe import session as repetitions
from hermes.calibration.observe.driver import Vocabulary
from hermes.calibration.observe.session import Outcome, Target, observe, observe_repeatedly
from hermes.cli import app
from hermes.errors import InputError
from hermes.results.compare import compare
from hermes.results.compare.observed import observed_report
from hermes.scenario import load_scenario
from hermes.scenario.build import build


def scenario(**workload: Any) -> dict[str, Any]:
    return {
        "name": "observed", "seed": 5,
        "workload": {
            "requests": 12, "arrivals": {"kind": "poisson", "rate": 60},
            "lengths": {"kind": "fixed", "prompt": 40, "output": 6}, **workload,
        },
        "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm"}],
    }


def table(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "observed.parquet")


@pytest.mark.feature("Measuring and fitting", "`hermes observe`: a scenario's requests, sent to a live server")
def test_every_request_is_sent_at_its_time_and_timed(tmp_path: Path) -> None:
    with serving() as server:
        found = observe(load_scenario(scenario()), Target(server.url), tmp_path)
    rows, simulated = table(tmp_path), simulate(scenario()).requests
    assert (found.requests, found.failed, found.parts, found.miscounted) == (12, 0, 1, 0)
    assert rows["request"].tolist() == list(range(12))
    assert abs(rows["scheduled_s"] - simulated["arrival_s"]).max() < 1e-6
    assert (rows["arrival_s"] >= rows["scheduled_s"]).all()
    assert (rows["ttft_s"] >= FIRST_S).all()
    assert (rows["tpot_s"] >= NEXT_S).all()
    assert ((rows["e2e_s"] - rows["ttft_s"] - 5 * rows["tpot_s"]).abs() < 1e-5).all()
    assert (rows["chunks"] == 6).all()
    assert (rows["cached_tokens"] == 16).all()
    bodies = server.asked[2:]   # after the warm-up
    assert all(len(body["prompt"]) == 40 and body["ignore_eos"] and body["model"] == "small" for body in bodies)
    assert len({tuple(body["prompt"]) for body in bodies}) == 12


def test_the_run_is_compared_with_what_was_observed(tmp_path: Path) -> None:
    with serving() as server:
        observe(load_scenario(scenario()), Target(server.url), tmp_path)
    found = compare(simulate(scenario()), tmp_path / "observed.parquet")
    assert found.error("ttft", "p50") < 0   # an H100 is faster than FIRST_S
    with pytest.raises(InputError, match="request 12 of the run"):
        compare(simulate({**scenario(requests=13)}), tmp_path / "observed.parquet")


def test_texts_shared_in_the_scenario_are_shared_tokens(tmp_path: Path) -> None:
    shared = scenario(prefixes={"groups": 2, "tokens": 25})
    with serving() as server:
        observe(load_scenario(shared), Target(server.url, warmup=0), tmp_path)
    groups = [r.content.group for s in build(load_scenario(shared)).streams for r in s.requests()]
    prompts = [tuple(body["prompt"]) for body in server.asked]
    assert len(set(groups)) == 2
    for i, a in enumerate(prompts):
        for j, b in enumerate(prompts[:i]):
            assert (a[:25] == b[:25]) == (groups[i] == groups[j])
            assert a[25:] != b[25:]


def test_ids_are_of_the_vocabulary_and_of_the_seed() -> None:
    request = next(iter(build(load_scenario(scenario())).streams[0].requests()))
    ids = Vocabulary(32000, 5).prompt(request)
    assert len(ids) == 40
    assert min(ids) >= 1000
    assert max(ids) < 31000
    assert ids == Vocabulary(32000, 5).prompt(request) != Vocabulary(32000, 6).prompt(request)
    assert set(Vocabulary(10, 0).prompt(request)) <= set(range(2, 8))


def test_users_wait_for_their_answers(tmp_path: Path) -> None:
    closed = scenario(arrivals={"kind": "closed_loop", "users": 3})
    with serving() as server:
        observe(load_scenario(closed), Target(server.url), tmp_path)
    assert server.most_open == 3
    assert len(table(tmp_path)) == 12


def test_requests_in_flight_are_bounded(tmp_path: Path) -> None:
    with serving() as server:
        found = observe(load_scenario(scenario()), Target(server.url, max_in_flight=1), tmp_path)
    assert server.most_open == 1
    assert found.late_s > FIRST_S


def test_failures_are_kept_with_their_reason(tmp_path: Path) -> None:
    with serving(fails=frozenset((4, 7)), counts=1) as server:
        found = observe(load_scenario(scenario()), Target(server.url), tmp_path)
    rows = table(tmp_path)
    assert found.failed == 2
    assert "503" in found.first_error
    assert found.miscounted == 10
    failed = rows[rows["error"] != ""]
    assert len(failed) == 2
    assert failed["ttft_s"].isna().all()
    assert (failed["output_tokens"] == 0).all()


def test_several_tokens_in_a_chunk(tmp_path: Path) -> None:
    with serving(together=4) as server:
        observe(load_scenario(scenario()), Target(server.url), tmp_path)
    rows = table(tmp_path)
    assert (rows["chunks"] == 2).all()
    assert (rows["output_tokens"] == 6).all()


@pytest.mark.long
def test_an_interrupted_session_goes_on(tmp_path: Path) -> None:
    slow = scenario(requests=40, arrivals={"kind": "uniform", "rate": 20})
    path = tmp_path / "slow.yaml"
    path.write_text(yaml.safe_dump(slow))
    with serving() as server:
        driver = subprocess.Popen([sys.executable, "-m", "hermes", "observe", str(path), server.url, "-o",
                                   str(tmp_path / "out")], stdout=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while len(server.asked) < 10 and time.monotonic() < until:
            time.sleep(0.02)
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        before = len(server.asked)
        found = observe(load_scenario(path), Target(server.url), tmp_path / "out")
        assert len(server.asked) - 2 - before < 40, "what had ended is not sent again"
    rows = table(tmp_path / "out")
    assert found.parts == 2
    assert rows["request"].tolist() == list(range(40))
    assert rows["part"].is_monotonic_increasing
    assert set(rows["part"]) == {1, 2}
    with pytest.raises(InputError, match="another workload"):
        observe(load_scenario(scenario()), Target(server.url), tmp_path / "out")


@pytest.mark.parametrize(("workload", "names"), [
    ({"lengths": {"kind": "conversations", "turns": 3, "message": 10, "output": 5, "think_time": 1}}, "conversations"),
    ({"branches": 2}, "several answers"),
])
def test_workloads_that_cannot_be_driven(tmp_path: Path, workload: dict[str, Any], names: str) -> None:
    with pytest.raises(InputError, match=names):
        observe(load_scenario(scenario(**workload)), Target("http://127.0.0.1:9"), tmp_path)


@pytest.mark.long
def test_mistakes_get_one_line(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(yaml.safe_dump(scenario()))

    def run(*arguments: str) -> str:
        done = subprocess.run([sys.executable, "-m", "hermes", "observe", str(path), *arguments], capture_output=True,
                              text=True, check=False, timeout=60)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "http://127.0.0.1:9" in run("http://127.0.0.1:9", "-o", str(tmp_path / "a"))
    with serving() as server:
        assert "small, other" in run(server.url, "-o", str(tmp_path / "b"), "--model", "large")
        assert "NAME: VALUE" in run(server.url, "-o", str(tmp_path / "c"), "--header", "key")


def test_the_command_prints_what_it_did(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(yaml.safe_dump(scenario()))
    with serving() as server:
        done = CliRunner().invoke(app(), ["observe", str(path), server.url, "-o", str(tmp_path / "out")])
    assert done.exit_code == 0
    assert "12, 0 failed" in done.output


# -- repetitions -------------------------------------------------------------------------------------------------------


@pytest.mark.feature("Measuring and fitting", (
    "`hermes observe --repetitions`: noise, disturbed attempts rejected; `hermes compare` beside that noise"))
def test_repetitions_have_noise_and_are_compared_with_it(tmp_path: Path) -> None:
    path, out = tmp_path / "some.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(scenario()))
    with serving() as server:
        report, outcomes = observe_repeatedly(load_scenario(path), Target(server.url), out, 3, most=3)
        asked = len(server.asked)
        again, _ = observe_repeatedly(load_scenario(path), Target(server.url), out, 3, most=3)
        assert len(server.asked) == asked, "a repeated call asks for nothing that is there"
    assert again == report
    assert [one.file for one in report.attempts] == ["observed.parquet", "observed-2.parquet", "observed-3.parquet"]
    prompts = [tuple(body["prompt"]) for body in server.asked]
    assert len(set(prompts)) == len(prompts), "no repetition finds the prompts of another in a cache"
    assert observed_report(out) == observed_report(out / "observed.parquet") == (report, out)
    assert len(outcomes) == 3
    means = [pd.read_parquet(out / one.file).ttft_s.mean() for one in report.counted()]   # a busy machine: fewer than 3
    noise = report.noise["ttft"]["mean"]
    assert noise["mean"] == pytest.approx(sum(means) / len(means))
    assert noise["samples"] == len(means)
    if not all(one.accepted for one in report.attempts):
        return   # a busy machine: what was rejected is named, and the rest of this test needs three
    found = compare(simulate(scenario()), out)
    (row,) = [row for row in found.rows if (row.metric, row.stat) == ("ttft", "mean")]
    assert row.reference_s == pytest.approx(noise["mean"])
    assert row.noise_s == pytest.approx(noise["ci95"])
    assert found.repetitions == 3
    beyond = abs(row.ours_s - row.reference_s) > row.noise_s   # on a machine at rest it is
    line = next(line for line in found.to_text().splitlines() if line.startswith("beyond the noise of 3 repetitions"))
    assert ("TTFT mean" in line) == beyond
    assert found.to_dict() == compare(simulate(scenario()), out / "observed.parquet").to_dict()


@pytest.mark.long
def test_a_disturbed_repetition_is_kept_named_and_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's loop is blocked in the first attempt: it takes up its requests late."""
    calls = 0
    prompt = Vocabulary.prompt

    def blocked(self: Vocabulary, request: Any) -> list[int]:
        nonlocal calls
        calls += 1
        if 2 < calls <= 8:   # after the warm-up, in the middle of the arrivals
            time.sleep(0.3)
        return prompt(self, request)

    monkeypatch.setattr(Vocabulary, "prompt", blocked)
    rules = repetitions.LATE_S
    monkeypatch.setattr(repetitions, "LATE_S", max(rules, 0.2))   # whatever else this machine does
    monkeypatch.setattr(repetitions, "DRIFT_S", 1e9)
    with serving() as server:
        report, _ = observe_repeatedly(load_scenario(scenario()), Target(server.url), tmp_path, 2, most=4)
    first, *others = report.attempts
    assert not first.accepted
    assert "taken up late" in first.reasons[0]
    assert [one.number for one in report.counted()] == [one.number for one in others if one.accepted]
    assert (tmp_path / "observed.parquet").is_file()
    found = compare(simulate(scenario()), tmp_path)
    assert any("attempt 1 is disturbed" in remark for remark in found.remarks)
    counted = [pd.read_parquet(tmp_path / one.file).ttft_s.mean() for one in report.counted()]
    assert found.rows[0].reference_s == pytest.approx(sum(counted) / len(counted))


@pytest.mark.parametrize(("loads", "late", "names"), [
    ([(2.0, 0.1, 0.0)] * 9, [0.001] * 12, []),
    ([(2.0, 0.1, 0.5)] + [(2.0, 0.1, 0.0)] * 9, [0.001] * 12, []),   # one in ten
    ([(2.0, 0.1, 0.5)] * 2 + [(2.0, 0.1, 0.0)] * 8, [0.001] * 12, ["2 of 10 windows contended"]),
    ([(2.0, 1.9, 0.0)] * 3, [0.001] * 12, ["3 of 3 windows contended"]),
    ([], [0.001] * 11 + [0.5], ["taken up late"]),
    ([], [0.0] * 6 + [0.015] * 6, ["later and later"]),
])
def test_the_rules_look_at_the_driver_alone(tmp_path: Path, loads: Any, late: list[float], names: list[str]) -> None:
    with Journal(tmp_path / "observed.jsonl", {"requests": len(late)}, {}) as journal:
        for number, seconds in enumerate(late):
            journal.point(str(number), [{"scheduled_s": float(number), "taken_s": number + seconds,
                                         "arrival_s": number + 10.0, "chunk_s": [number + 99.0]}])
        for wall_s, cpu_s, waited_s in loads:
            journal.write({"kind": "load", "wall_s": wall_s, "cpu_s": cpu_s, "waited_s": waited_s})
    found = repetitions.judged(1, Outcome(len(late), 0, 1, 0.0, 0, "", tmp_path / "observed.parquet"))
    assert len(found.reasons) == len(names)
    assert all(name in reason for name, reason in zip(names, found.reasons, strict=True))


def test_a_report_that_is_none_is_one_line(tmp_path: Path) -> None:
    hermes_run = simulate(scenario())
    attempt = {"number": 1, "file": "../x", "requests": 1, "failed": 0, "parts": 1, "late_s": 0, "windows": 0,
               "contended_windows": 0}
    (tmp_path / "observed.json").write_text(json.dumps({
        "format": "hermes-observed/1", "rules": [], "repetitions": 2, "attempts": [attempt]}))
    with pytest.raises(InputError, match="a file beside this one") as found:
        compare(hermes_run, tmp_path)
    assert "\n" not in str(found.value)
    (tmp_path / "observed.json").write_text("[]")
    with pytest.raises(InputError, match=r"observed\.json"):
        compare(hermes_run, tmp_path)


def test_repetitions_with_other_columns_are_refused(tmp_path: Path) -> None:
    run = simulate(scenario())
    columns = ["arrival_s", "ttft_s", "e2e_s", "prompt_tokens", "output_tokens"]
    attempts = []
    for number, names in ((1, columns), (2, [name for name in columns if name != "e2e_s"])):
        file = "observed.parquet" if number == 1 else "observed-2.parquet"
        run.requests[["request", *names]].to_parquet(tmp_path / file)
        attempts.append({"number": number, "file": file, "requests": 12, "failed": 0, "parts": 1, "late_s": 0,
                         "windows": 0, "contended_windows": 0})
    (tmp_path / "observed.json").write_text(json.dumps({"rules": [], "repetitions": 2, "attempts": attempts}))
    with pytest.raises(InputError, match=r"observed-2\.parquet: expected the same columns of times"):
        compare(run, tmp_path)
