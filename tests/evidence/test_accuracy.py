"""`hermes accuracy`: the reference sets, their table, and the bars."""

import json
from functools import cache
from pathlib import Path

import pytest
from outside import OUTSIDE

from evidence.accuracy import table
from evidence.accuracy.served import Case, Row
from evidence.accuracy.table import SETS, Bars, lines, missed
from hermes.cli import main
from hermes.config.validation import load

DATA = OUTSIDE / "data"
BARS = Path(__file__).resolve().parents[1] / "golden" / "accuracy-bars.yaml"
CASE = Case("a set", "a case", "vllm-0.23", "h100-sxm", "qwen3-14b")
needs_data = pytest.mark.outside("data")


def row(measured, predicted, peer=None, metric="e2e", stat="mean"):
    return Row(CASE, metric, stat, measured, predicted, peer)


def test_a_line_has_the_median_and_the_worst_error():
    (line,) = lines([row(1.0, 1.1, 0.2), row(1.0, 0.7, -0.4), row(2.0, 2.0)])
    assert (line.cases, round(line.median, 9), round(line.worst, 9), round(line.peer, 9)) == (3, 0.1, -0.3, 0.3)


@pytest.mark.feature("Hardware", "Errors against every reference set: `hermes accuracy`")
def test_bars_are_checked():
    bar = {"set": "a set", "metric": "e2e", "stat": "mean", "worst": 0.1, "median": 0.1}
    bars = Bars.model_validate({"bars": [bar]})
    assert missed(bars, [row(1.0, 1.05), row(1.0, 0.95)]) == []
    (found,) = missed(bars, [row(1.0, 1.05), row(1.0, 0.95), row(1.0, 1.2)])
    assert (found["of"], round(found["found"], 9)) == ("worst", 0.2)
    assert {miss["found"] for miss in missed(bars, [])} == {None}, "a bar without a case is missed"


def test_every_bar_is_of_a_set(tmp_path):
    assert len(load(Bars, BARS).bars) >= 20


def test_a_bar_bounds_something_and_earlier_medians_are_numbers(tmp_path, capsys):
    (tmp_path / "bars.yaml").write_text("bars: [{set: a, metric: e2e, stat: mean}]")
    assert main(["accuracy", "--data", str(tmp_path), "--bars", str(tmp_path / "bars.yaml")]) == 2
    assert "bars.0.worst: give worst or median" in capsys.readouterr().err
    (tmp_path / "old.json").write_text(json.dumps({"lines": [{"about": ["a"], "median": 10**400}]}))
    assert main(["accuracy", "--data", str(tmp_path), "--against", str(tmp_path / "old.json")]) == 2
    assert "what `hermes accuracy --json` printed" in capsys.readouterr().err


def test_missing_sets_are_named(tmp_path, capsys):
    assert main(["accuracy", "--data", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert all(f"left out: {name}: no " in out for name in SETS)
    assert main(["accuracy", "--data", str(tmp_path / "none")]) == 2
    assert main(["accuracy", "--data", str(tmp_path), "--only", "residence"]) == 2
    assert "residency" in capsys.readouterr().err


@pytest.mark.long
@needs_data
def test_the_command_compares_and_remembers(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(table, "measure", cache(table.measure))   # three commands read the same set
    command = ["accuracy", "--data", str(DATA), "--only", "ml-energy", "--json"]
    assert main(command) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    assert {line["about"][2] for line in found["lines"]} == {"b200", "b200 tp2", "h100-sxm", "h100-sxm tp4"}
    (tmp_path / "old.json").write_text(text)
    assert main([*command, "--against", str(tmp_path / "old.json")]) == 0
    (tmp_path / "other.json").write_text('{"lines": [{"about": 3}]}')
    assert main([*command, "--against", str(tmp_path / "other.json")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "other.json" in err
    for line in found["lines"]:
        line["median"] -= 0.03
    (tmp_path / "old.json").write_text(json.dumps(found))
    assert main([*command, "--against", str(tmp_path / "old.json")]) == 1
    assert len(json.loads(capsys.readouterr().out)["risen"]) == len(found["lines"]) == 25


@needs_data
@pytest.mark.long
def test_the_bars_hold_but_those_that_are_known_to_be_missed(capsys):
    assert main(["accuracy", "--data", str(DATA), "--bars", str(BARS), "--json"]) in (0, 1)
    missing = {(miss["set"], miss["metric"]): miss["found"] for miss in json.loads(capsys.readouterr().out)["missed"]}
    # the causes that were looked for stand in docs/accuracy.md; none may get worse
    known = {
        ("llm-d, 1 user", "tokens/s"): 0.228, ("lmbench x1, sharegpt", "e2e"): 0.103,
        ("lmbench x2, sharegpt, round_robin", "e2e"): 0.097, ("lmbench x2, short_input, round_robin", "ttft"): 0.090,
        ("lmbench x2, effect of llm-d, router and hop", "ttft change"): 13.0,
        ("lmbench x2, effect of llm-d, all of them", "ttft change"): 3.62,
        ("lmbench x2, short_input, round_robin", "tpot"): 0.050, ("lmbench x2, short_input, round_robin", "e2e"): 0.045,
        ("InferenceX, trt fp8", "tpot"): 0.454, ("InferenceX, sglang fp4", "tpot"): 0.297,
        ("InferenceX, MiniMax", "tpot"): 0.765, ("InferenceX, MiniMax", "output tokens/s"): 4.58,
        ("lmbench H100 x2, sharegpt, connections", "ttft"): 1.87,
        ("lmbench H100 x2, sharegpt, connections", "e2e"): 0.079,
    }
    assert missing.keys() <= known.keys()
    assert all(found <= known[key] for key, found in missing.items())
