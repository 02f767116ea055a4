"""The study of reasoning: requests that meet SLOs are counted as the requests say, and sharing saves KV."""

from dataclasses import replace

import pytest

from hermes import simulate
from hermes.study import load_study

STUDY = load_study("reasoning")
reasoning, figures_of = STUDY.module("report"), STUDY.module("figures")
TPOT_MS, TTFT_MS, reasoning_figures = figures_of.TPOT_MS, figures_of.TTFT_MS, figures_of.reasoning_figures


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr(reasoning, "QUICK_WINDOW_S", 6)
    patch.setattr(reasoning, "STRATEGIES", ("chunked", "2P/6D"))
    patch.setattr(reasoning, "PARTS", tuple(replace(part, rates=(4.0,)) for part in reasoning.PARTS))
    yield reasoning.run(STUDY.context(tmp_path_factory.mktemp("study"), quick=True, workers=0))
    patch.undo()


def test_counts_are_those_of_the_requests(tmp_path):
    scenario = STUDY.context(tmp_path).file("conversation.yaml")
    results = simulate(scenario, overrides=["workload.duration=5 s"])
    figures, requests = reasoning_figures(results), results.requests
    assert len(requests) > 10
    for ttft in TTFT_MS:
        for tpot in TPOT_MS:
            mine = (requests.ttft_s <= ttft / 1e3) & (requests.tpot_s <= tpot / 1e3)
            assert figures[f"good_{ttft}_{tpot}"] == mine.sum()
    # eight branches of 1,400 to 2,600 tokens each
    tokens = requests.emitted_tokens / 8
    assert tokens.between(1400, 2600).all()
    assert 1900 < tokens.mean() < 2100


def test_tables_are_complete_and_grow_with_the_slo(report):
    for part in reasoning.PARTS:
        previous = None
        for tpot in part.tpot_ms:
            table = next(t for t in report.tables if t.name == f"{part.name}-{tpot}ms").frame
            assert list(table.batching) == ["chunked", "2P/6D"]
            shares = table[[name for name in table.columns if name.endswith(" ms")]].to_numpy()
            assert (shares[:, 1:] >= shares[:, :-1]).all()
            assert ((shares >= 0) & (shares <= 1)).all()
            assert previous is None or (shares >= previous).all()
            previous = shares


def test_shared_prompts_take_less_memory(report):
    table = next(t for t in report.tables if t.name == "sharing").frame
    peak = table.set_index(["batching", "rate", "answers"])["peak"]
    for key in dict.fromkeys((row.batching, row.rate) for row in table.itertuples()):
        assert peak[(*key, "branches")] < peak[(*key, "separate copies")]
    assert (table.rejected == 0).all()


def test_the_report_is_written(report, tmp_path):
    files = {path.name for path in report.write(tmp_path)}
    assert {"goodput-conversation.png", "goodput-code.png", "sharing.csv"} <= files
