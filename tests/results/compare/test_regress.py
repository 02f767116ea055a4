from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full
from synthetic_records import by_hand, random_record

from hermes import __version__
from hermes.errors import HermesError, InputError
from hermes.results.compare.regress import check, differences, flatten, record
from hermes.results.results import Results

SUMMARY = {"a": {"x": 1.5, "y": None, "flag": True}, "n": 3, "who": {"me": "z"}, "list": [1, 2]}
FLAT = {"a.x": 1.5, "a.y": None, "a.flag": True, "n": 3, "who.me": "z", "list.0": 1, "list.1": 2}


def test_flatten() -> None:
    assert flatten(SUMMARY) == FLAT
    assert flatten({}) == {}


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_nothing_changed(tmp_path: Path, suffix: str) -> None:
    scenario = tmp_path / "scenarios" / "a.yaml"
    scenario.parent.mkdir()
    scenario.write_text("x")
    asked = []

    def run(path: str) -> dict[str, Any]:
        asked.append(path)
        return Results(by_hand()).summary

    golden = tmp_path / "golden" / f"file.{suffix}"
    written = record([scenario, "built-in"], golden, run)
    assert list(written.scenarios) == ["../scenarios/a.yaml", "built-in"]
    assert written.scenarios["built-in"].metrics == flatten(Results(by_hand()).summary)
    report = check(golden, run)
    assert (report.ok, report.exit_code, report.scenarios) == (True, 0, 2)
    assert "no differences" in report.to_text()
    assert [Path(path).resolve() if path != "built-in" else path for path in asked[2:]] == [scenario, "built-in"]
    before = golden.read_bytes()
    record([scenario, "built-in"], golden, run)
    assert golden.read_bytes() == before
    assert [path.name for path in golden.parent.iterdir()] == [golden.name]


def test_a_change_beside_what_chance_does(tmp_path: Path) -> None:
    """Seeds are run only where something changed, and only numbers that changed get a spread."""
    golden = tmp_path / "g.yaml"
    record(["same", "other"], golden, lambda path: {"x": 1.0, "y": 2.0, "name": "a", "late": 0.0})
    asked = []

    def run_seed(path: str, seed: int) -> dict[str, Any]:
        asked.append((path, seed))
        return {"x": (0.9, 1.0, 1.1)[seed], "y": 2.0, "name": "b", "late": 0.0}

    def run(path: str) -> dict[str, Any]:
        return {"x": 1.5 if path == "other" else 1.0, "y": 2.0, "name": "b" if path == "other" else "a", "late": 0.0}

    report = check(golden, run, 3, run_seed)
    assert asked == [("other", 0), ("other", 1), ("other", 2)]
    changed = {difference.metric: difference.seeds for difference in report.differences}
    assert changed["name"] is None
    assert changed["x"] is not None
    assert (changed["x"]["samples"], changed["x"]["class"]) == (3, "good")
    assert changed["x"]["cv"] == pytest.approx(0.1)
    assert "over seeds" in report.to_text()
    assert "CV 10% (good, 3)" in report.to_text()
    # 3 seeds: t = 4.303, standard deviation 0.1: two seeds differ by up to 4.303 x 0.1 x sqrt(2) = 0.61
    assert [d.verdict for d in report.differences if d.metric == "x"] == ["noise"]
    assert report.exit_code == 1
    far = check(golden, lambda path: {"x": 1.62, "y": 2.0, "name": "a", "late": 0.0}, 3, run_seed)
    assert {d.verdict for d in far.differences} == {"change"}
    assert far.to_dict()["differences"][0]["verdict"] == "change"
    assert "over seeds" not in check(golden, run).to_text()
    zero = check(golden, lambda path: run("same") | {"late": 1.0}, 2, lambda path, seed: {"late": 0.0})
    assert {difference.seeds is None for difference in zero.differences} == {True}  # nothing to take a share of


@pytest.mark.feature("Scenarios and commands", "`hermes regress record`, `hermes regress check`")
def test_what_changed(tmp_path: Path) -> None:
    golden = tmp_path / "g.yaml"
    record(["s"], golden, lambda path: SUMMARY)
    changed = {"a": {"x": 1.8, "y": 0.5, "flag": 1}, "n": 3, "list": [1, 2], "more": 7}
    report = check(golden, lambda path: changed)
    found = {(d.metric, d.what, d.old, d.new, d.change and round(d.change, 9)) for d in report.differences}
    assert found == {
        ("a.x", "changed", 1.5, 1.8, 0.2), ("a.y", "changed", None, 0.5, None), ("a.flag", "changed", True, 1, None),
        ("who.me", "missing", "z", None, None), ("more", "added", None, 7, None),
    }
    assert report.exit_code == 1
    text = report.to_text()
    for part in ("a.x", "1.5", "1.8", "+20%", "missing", "added", "5 differences in 7 metrics of 1 scenario\n"):
        assert part in text
    assert json.loads(json.dumps(report.to_dict()))["ok"] is False
    assert "4 not shown" in report.to_text(limit=1)


def test_tolerances(tmp_path: Path) -> None:
    golden = tmp_path / "g.yaml"
    record(["s", "t"], golden, lambda path: {"a": {"x": 100.0, "y": 100.0}, "b": 100.0}, {"a.*": 0.1, "a.y": 0.0})

    def new(path: str) -> dict[str, Any]:
        return {"a": {"x": 110.0, "y": 100.1}, "b": 100.0 if path == "s" else 101.0}

    found = [(d.scenario, d.metric) for d in check(golden, new).differences]
    assert found == [("s", "a.y"), ("t", "a.y"), ("t", "b")]
    text = golden.read_text().replace("  t:\n", "  t:\n    tolerances: {b: 0.02}\n")
    golden.write_text(text)
    assert [(d.scenario, d.metric) for d in check(golden, new).differences] == [("s", "a.y"), ("t", "a.y")]
    kept = record(["s", "t"], golden, new)  # recording again keeps what people wrote
    assert kept.tolerances == {"a.*": 0.1, "a.y": 0.0}
    assert kept.scenarios["t"].tolerances == {"b": 0.02}


def test_only_the_metrics_asked_for_are_compared(tmp_path: Path) -> None:
    golden = tmp_path / "g.yaml"
    record(["s"], golden, lambda path: {"a": {"x": 1.0, "y": 1.0}, "b": 1.0})

    def new(path: str) -> dict[str, Any]:
        return {"a": {"x": 2.0, "y": 1.0, "z": 1.0}, "b": 2.0}

    report = check(golden, new, metrics=["a.*"])
    assert [(d.metric, d.what) for d in report.differences] == [("a.x", "changed"), ("a.z", "added")]
    assert report.metrics == 2
    assert check(golden, new, metrics=["a.y"]).ok
    with pytest.raises(InputError, match=r"--metrics: .*did you mean 'a.y'|did you mean 'a.x'"):
        check(golden, new, metrics=["a.q"])


def test_a_golden_file_says_which_version_recorded_it(tmp_path: Path) -> None:
    golden = tmp_path / "g.yaml"
    assert record(["s"], golden, lambda path: SUMMARY).version == __version__
    assert "recorded with" not in check(golden, lambda path: SUMMARY).to_text()
    golden.write_text(golden.read_text().replace(__version__, "0.0.1"))
    assert f"recorded with HERMES 0.0.1 (this is {__version__})" in check(golden, lambda path: SUMMARY).to_text()
    lines = golden.read_text().splitlines(keepends=True)   # as before versions were written
    golden.write_text("".join(line for line in lines if not line.startswith("version:")))
    assert check(golden, lambda path: SUMMARY).version == ""


def test_a_scenario_that_fails(tmp_path: Path) -> None:
    golden = tmp_path / "g.yaml"
    record(["s"], golden, lambda path: SUMMARY)

    def fail(path: str) -> dict[str, Any]:
        raise HermesError("no such profile")

    report = check(golden, fail)
    assert [(d.what, d.new) for d in report.differences] == [("failed", "no such profile")]
    assert "no such profile" in report.to_text()
    with pytest.raises(HermesError):
        record(["s"], tmp_path / "other.yaml", fail)
    assert not (tmp_path / "other.yaml").exists()


@pytest.mark.parametrize(("text", "message"), [
    ("format: 2\nscenarios: {}", r"g.yaml:1:9: format"), ("format: 1\nscenarios: {}", "at least one scenario"),
    ("format: 1\nscenarios: {a: {metrics: {x: [1]}}}", "scenarios.a.metrics.x"), ("- 1", "a mapping"),
    ("format: 1\ntolerances: {x: -1}\nscenarios: {a: {metrics: {}}}", "a relative tolerance of at least 0"),
    ("format: 1\nscenarios: {a: {metrics: {x: .nan}}}", "scenarios.a.metrics.x"),
    ("format: 1\nscenario: {}", "did you mean 'scenarios'"),
])
def test_malformed(tmp_path: Path, text: str, message: str) -> None:
    golden = tmp_path / "g.yaml"
    golden.write_text(text)
    with pytest.raises(InputError, match=message):
        check(golden, lambda path: SUMMARY)
    with pytest.raises(InputError, match="a readable file"):
        check(tmp_path / "none.yaml", lambda path: SUMMARY)


@quick_and_full(8, 25)
@given(st.integers(0, 10**6))
def test_any_summary_survives(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    summary = Results(random_record(seed)[0]).summary
    golden = tmp_path_factory.mktemp("golden") / "g.yaml"
    record(["s"], golden, lambda path: summary)
    assert check(golden, lambda path: summary).ok


numbers = st.floats(allow_nan=False, allow_infinity=False)


@given(numbers, numbers, st.floats(0, 0.5))
def test_tolerance_is_relative_to_the_old_value(old: float, new: float, tolerance: float) -> None:
    found = differences("s", {"m": old}, {"m": new}, [("*", tolerance)])
    assert bool(found) == (abs(new - old) > tolerance * abs(old))
    for difference in found:
        assert difference.change is None or not math.isnan(difference.change)
