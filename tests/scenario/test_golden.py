"""This project's own golden predictions, and that they would notice a fitted coefficient change by 1%.

A golden file proves only that nothing changed; that what it holds is right is the business of the other tests. The
invariant beside it here: every request of every scenario is accounted for.
"""

from functools import cache
from pathlib import Path

import pytest
import yaml

from hermes.api import simulate
from hermes.config.yaml_document import load_yaml
from hermes.hardware.descriptions.files import find
from hermes.results.compare.regress import check, record

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "quick.yaml"


@cache   # the tests compare it with three files
def summary(scenario):
    return simulate(scenario).summary


def test_predictions_are_those_recorded():
    report = check(GOLDEN, summary)
    assert report.ok, report.to_text()


def test_recorded_requests_are_accounted_for():
    for name, entry in load_yaml(GOLDEN).plain()["scenarios"].items():
        metrics = entry["metrics"]
        parts = [metrics[f"requests.{status}"] for status in ("completed", "rejected", "unfinished")]
        assert sum(parts) == metrics["requests.total"] > 0, name


def only_quickstart(tmp_path):
    """Return a golden file that has what is recorded of `quickstart`."""
    golden = tmp_path / "golden.yaml"
    recorded = yaml.load(GOLDEN.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    recorded["scenarios"] = {"quickstart": recorded["scenarios"]["quickstart"]}
    golden.write_text(yaml.safe_dump(recorded))
    return golden


def notices(golden, mutated):
    report = check(golden, mutated)
    assert not report.ok
    latency = next(d for d in report.differences if d.metric.startswith("latency."))
    assert (latency.scenario, latency.what) == ("quickstart", "changed")
    assert latency.change is not None


@pytest.mark.drawn
@pytest.mark.parametrize("term", ["gate_up", "attention_of_decodes", "engine"])
def test_one_percent_of_a_term_is_noticed(term, tmp_path):
    golden = only_quickstart(tmp_path)
    scaled = f"clients.0.hardware={{kind: composed, terms: {{{term}: {{scale: %s}}}}}}"

    assert check(golden, lambda name: simulate(name, overrides=[scaled % "1.0"]).summary).ok
    notices(golden, lambda name: simulate(name, overrides=[scaled % "1.01"]).summary)


@pytest.mark.parametrize(("phase", "term"), [("prefill", "1"), ("decode", "1"), ("prefill", "prefill_attn")])
def test_one_percent_of_a_coefficient_is_noticed(phase, term, tmp_path):
    def with_profile(profile):
        client = (f"clients.0={{allow_mismatch: true, hardware: {{kind: polynomial, profile: {profile}}}, "
                  "memory: {num_blocks: 20000}}")
        return lambda name: simulate(name, overrides=[client, "workload.requests=200"]).summary

    shipped = "splitwise-2023-llama-2-70b-h100-tp8"
    profile = yaml.safe_load(find(shipped, None, "", "a profile").read_text())
    changed = next(row for row in profile["phases"][phase]["terms"] if row["term"] == term)
    changed["seconds"] *= 1.01
    (tmp_path / "mutated.yaml").write_text(yaml.safe_dump(profile))
    golden = tmp_path / "golden.yaml"
    record(["quickstart"], golden, with_profile(shipped))

    assert check(golden, with_profile(shipped)).ok
    notices(golden, with_profile(tmp_path / "mutated.yaml"))
