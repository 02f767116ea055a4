"""Limits of single pipelines and workloads: who is held against what, and what becomes of the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_records import random_record

import hermes
import hermes.scenario
from hermes.cli import main
from hermes.config.yaml_document import parse_yaml
from hermes.config.yaml_writer import to_yaml
from hermes.errors import InputError
from hermes.explore.objective import limits_text, missed
from hermes.explore.sweep.figures import figures, flatten
from hermes.results.files.export import write_results
from hermes.results.layout import format_s
from hermes.results.results import Results
from hermes.results.slo import OwnSlo, SloConfig, slo_groups
from hermes.scenario import load_scenario

WORKLOAD = {"requests": 30, "arrivals": {"kind": "poisson", "rate": 2.0},
            "lengths": {"kind": "fixed", "prompt": 200, "output": 20}}
TWO_STEPS = {"stages": {"think": {"kind": "generate"}, "answer": {"kind": "generate", "after": "think"}}}


def scenario(**slo: Any) -> dict[str, Any]:
    return {
        "workload": [{**WORKLOAD, "name": "chat", "pipeline": [{"name": "plain"}, {"name": "twice"}]},
                     {**WORKLOAD, "name": "reports", "pipeline": "twice"}],
        "pipelines": {"twice": TWO_STEPS}, "slo": {"baseline_tpot": 0.1, **slo},
        "clients": [{"name": "llm",
                     "hardware": {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"},
                     "memory": {"num_blocks": 5000}}],
    }


def test_each_request_is_held_against_its_own_limits():
    """Answers of two generations miss a limit that suits one; with a baseline of their own they pass."""
    alone = hermes.simulate(scenario())
    first = alone.requests.groupby("pipeline", observed=True).ttft_s.max()
    between = (first["plain"] + first["twice"]) / 2
    strict = {"baseline_ttft": between, "ttft_slowdown": {"p50": 1, "p90": 1, "p99": 1}}
    one = hermes.simulate(scenario(**strict)).summary
    assert "slo_of" not in one
    assert one["slo"]["pass"] is False
    own = hermes.simulate(scenario(**strict, pipelines={"twice": {"baseline_ttft": 2 * first["twice"]}})).summary
    assert own["slo"]["pass"] is True
    assert own["slo"]["ttft_p99"]["limit_s"] == between
    of_plain = alone.requests.query("pipeline == 'plain'").ttft_s
    assert own["slo"]["ttft_p99"]["value_s"] == pytest.approx(of_plain.quantile(0.99))
    assert own["slo_of"]["pipeline twice"]["ttft_p50"]["limit_s"] == 2 * first["twice"]
    assert own["goodput"]["requests"] == 60 > one["goodput"]["requests"]
    assert own["by"]["pipeline"]["twice"]["goodput_share"] == 1.0
    both = hermes.simulate(scenario(**strict, pipelines={"twice": {"baseline_ttft": 2 * first["twice"]}},
                                    workloads={"reports": {"e2e": 1e-3}})).summary
    assert list(both["slo_of"]) == ["pipeline twice", "pipeline twice, workload reports"]
    assert both["goodput"]["limits_of"]["pipeline twice, workload reports"] == {
        "ttft_s": None, "tpot_s": None, "e2e_s": 1e-3}
    assert both["by"]["workload"]["reports"]["goodput_share"] == 0.0
    assert both["by"]["workload"]["chat"]["goodput_share"] == 1.0


def test_one_group_that_fails_fails_the_run():
    summary = hermes.simulate(scenario(baseline_ttft=0.9, workloads={"reports": {"baseline_ttft": "1 us"}})).summary
    assert summary["slo"]["ttft_p50"]["pass"] is True
    assert summary["slo_of"]["workload reports"]["pass"] is False
    assert summary["slo"]["pass"] is False


def test_where_all_have_their_own_the_run_has_no_table(tmp_path: Path):
    results = hermes.simulate(scenario(baseline_ttft=0.9, workloads={"reports": {"ttft": 1.0}, "chat": {"ttft": 1.0}}))
    assert results.summary["slo"]["pass"] is True
    assert results.summary["slo"]["ttft_p50"]["value_s"] is None
    text = results.to_text(verbose=True)
    assert "workload chat: TTFT p50" in text
    assert "workload chat: TTFT p99" in text
    assert "others for workload chat, workload reports" in " ".join(results.to_text().split())
    write_results(results, tmp_path)
    stored = hermes.open_run(tmp_path)
    assert stored.slo == results.slo
    assert Results(stored.record, slo=stored.slo).summary["slo_of"] == results.summary["slo_of"]


@pytest.mark.parametrize(("slo", "message"), [
    ({"pipelines": {"twise": {"ttft": 1}}}, r"slo\.pipelines\.twise: expected a pipeline of the scenario: one of "
                                            r"plain, twice, found 'twise' \(did you mean 'twice'\?\)"),
    ({"workloads": {"twice": {"ttft": 1}}}, r"slo\.workloads\.twice: expected a workload .* chat, reports"),
    ({"workloads": {"chat": {"tfft": 1}}}, r"slo\.workloads\.chat\.tfft"),
])
def test_unknown_names_are_refused(slo, message):
    with pytest.raises(InputError, match=message):
        hermes.simulate(scenario(**slo))


def test_a_resolved_scenario_keeps_what_was_left_out():
    checked = load_scenario(scenario(baseline_ttft=2.0, pipelines={"twice": {"e2e": 5.0}}))
    again = load_scenario(parse_yaml(hermes.scenario.resolved_yaml(checked), "x").plain())
    assert again.slo == checked.slo
    assert again.slo.of("twice", "chat").baseline_ttft == 2.0


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_every_request_is_in_one_group(seed, data):
    record = random_record(seed)[0]
    n = len(record.status)
    for label in ("pipeline", "workload"):
        codes = np.array(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)), dtype=np.int64)
        record.labels[label] = codes, ["a", "b", "c"]
    own = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.builds(OwnSlo, e2e=st.floats(1, 9)))
    slo = SloConfig(pipelines=data.draw(own), workloads=data.draw(own))
    groups = slo_groups(slo, record)
    assert sum(group.rows.astype(int) for group in groups).tolist() == [1] * n
    for group in groups:
        for row in np.flatnonzero(group.rows):
            names = [record.labels[label][1][record.labels[label][0][row]] for label in ("pipeline", "workload")]
            assert group.slo == slo.of(*names)


def test_a_missed_limit_of_a_workload_is_named_with_its_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]
                                                              ) -> None:
    """`run`, the searches' verdict, a sweep's table and the list of limits say which workload, which limit, how far."""
    one = scenario(ttft="1 min", workloads={"reports": {"e2e": "1 ms", "percentile": 90}})
    result = hermes.simulate(one)
    reports = result.requests.query("workload == 'reports'").e2e_s
    said = f"workload reports: E2E p90 {format_s(float(reports.quantile(0.9)))}, limit 1 ms"
    assert f"misses    {said}\n" in result.to_text()
    assert missed(figures(result)) == said
    assert limits_text(load_scenario(one).slo).endswith("; workload reports: TTFT p90 <= 60 s, E2E p90 <= 1 ms, "
                                                        "TPOT p50 <= 125 ms, TPOT p90 <= 150 ms, TPOT p99 <= 500 ms")
    (tmp_path / "sweep.yaml").write_text(to_yaml({"name": "s", "scenario": one, "grid": {"clients.0.count": [1]}}, ""))
    assert main(["sweep", str(tmp_path / "sweep.yaml"), "-o", str(tmp_path / "out"), "--workers", "0", "-q"]) == 0
    assert f"1 misses: {said}\n" in capsys.readouterr().out


def test_names_with_dots_and_rejected_requests_in_a_verdict() -> None:
    """The flat figures join keys by dots, and a workload's name may hold some."""
    limit = {"percentile": 99.0, "limit_s": 1.0, "share": 0.5, "pass": False}
    row = dict(flatten({"slo": {"pass": False}, "slo_of": {
        "workload a.b.e2e": {"ttft": {**limit, "value_s": 2.5}, "e2e": {**limit, "value_s": None}, "pass": False},
        "workload fine": {"ttft": {**limit, "value_s": 0.5, "pass": True}, "pass": True}}}))
    assert missed(row) == ("workload a.b.e2e: TTFT p99 2.5 s, limit 1 s; "
                           "workload a.b.e2e: E2E p99 is a rejected request, limit 1 s")
