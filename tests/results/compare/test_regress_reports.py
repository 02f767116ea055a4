"""Differences as Markdown and JUnit XML, and the GitHub action that writes them."""

import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from hermes.cli import main
from hermes.results.compare.regress import Difference, RegressReport
from hermes.results.compare.regress_reports import to_junit, to_markdown

ROOT = Path(__file__).parents[3]
CHANGED = RegressReport([
    Difference("a.yaml", "latency.ttft_s.p99", "changed", 0.25, 0.5, 1.0,
               {"cv": 0.02, "class": "stable", "samples": 5, "mean": 0.5}),
    Difference("a.yaml", "old | metric", "missing", 3, None), Difference("b.yaml", "", "failed", new="no such file"),
], scenarios=3, metrics=300)


def test_markdown():
    text = to_markdown(CHANGED)
    assert "### Predictions: 3 differences" in text
    assert "| a.yaml | latency.ttft_s.p99 | 0.25 | 0.5 | +100.0000% | CV 2% (stable) | change |" in text
    assert "old \\| metric" in text
    assert "no differences" in to_markdown(RegressReport(scenarios=1, metrics=2))


def test_junit():
    suite = ElementTree.fromstring(to_junit(CHANGED, ["a.yaml", "b.yaml", "c.yaml"]))
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    cases = {case.get("name"): case.find("failure") for case in suite}
    assert cases["c.yaml"] is None
    assert cases["a.yaml"].get("message") == "2 predictions differ"
    assert "latency.ttft_s.p99: changed, 0.25 -> 0.5" in cases["a.yaml"].text


def golden(folder):
    scenario = folder / "small.yaml"
    scenario.write_text(yaml.safe_dump({
        "workload": {"requests": 3, "arrivals": {"kind": "at_once"},
                     "lengths": {"kind": "fixed", "prompt": 100, "output": 5}},
        "clients": [{"model": "llama-3.1-8b", "device": "l40s"}]}))
    file = folder / "golden.yaml"
    assert main(["regress", "record", str(scenario), "-f", str(file)]) == 0
    return scenario, file


@pytest.mark.feature("Scenarios and commands", "Its differences as Markdown and JUnit XML, and a GitHub action")
def test_the_command_writes_both(tmp_path, capsys):
    scenario, file = golden(tmp_path)
    out = ["--markdown", str(tmp_path / "d.md"), "--junit", str(tmp_path / "d.xml")]
    assert main(["regress", "check", "-f", str(file), *out]) == 0
    assert "no differences" in (tmp_path / "d.md").read_text()
    scenario.write_text(scenario.read_text().replace("prompt: 100", "prompt: 2000"))
    assert main(["regress", "check", "-f", str(file), "--seeds", "0", *out]) == 1
    assert "latency.ttft_s.mean" in (tmp_path / "d.md").read_text()
    assert ElementTree.parse(tmp_path / "d.xml").getroot().get("failures") == "1"


@pytest.mark.long
def test_the_steps_of_the_action_run(tmp_path):
    """Its shell script, with the variables that GitHub sets."""
    scenario, file = golden(tmp_path)
    action = yaml.safe_load((ROOT / ".github/actions/regress/action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    script = next(step["run"] for step in action["runs"]["steps"] if step.get("name") == "Check")
    variables = {"FILE": str(file), "SEEDS": "0", "MARKDOWN": str(tmp_path / "d.md"), "JUNIT": str(tmp_path / "d.xml"),
                 "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}

    def run():
        import sys

        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.run(["bash", "-e", "-c", script], env=os.environ | variables | {"PATH": path},
                              capture_output=True, check=False).returncode

    assert run() == 0
    scenario.write_text(scenario.read_text().replace("prompt: 100", "prompt: 2000"))
    assert run() == 1
    assert "no differences" in (tmp_path / "summary.md").read_text()
    assert "latency.ttft_s.mean" in (tmp_path / "summary.md").read_text()
