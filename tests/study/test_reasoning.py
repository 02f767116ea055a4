"""The study of reasoning: requests that meet SLOs are counted as the requests say, and sharing saves KV."""

from dataclasses import replace

import pandas as pd
import pytest

from hermes import simulate
from hermes.study import load_study

STUDY = load_study("reasoning")
reasoning, figures_of, small = STUDY.module("report"), STUDY.module("figures"), STUDY.module("small_clients")
TPOT_MS, TTFT_MS, reasoning_figures = figures_of.TPOT_MS, figures_of.TTFT_MS, figures_of.reasoning_figures


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr(reasoning, "SPLITS", ("4P/4D", "2P/6D"))
    patch.setattr(reasoning, "MORE_SEEDS", (2,))
    patch.setattr(small, "SYSTEMS", (small.System("small", 2, ("1P/1D",)),))
    patch.setattr(small, "RATES", (0.5,))
    patch.setattr(reasoning, "PARTS", tuple(replace(part, rates=(4.0,)) for part in reasoning.PARTS))
    patch.setattr(reasoning, "BUDGETS", (512, 2048))
    yield reasoning.run(STUDY.context(tmp_path_factory.mktemp("study"), workers=0, changes=["window_s=8"]))
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


@pytest.mark.long
def test_tables_are_complete_and_grow_with_the_slo(report):
    for part in reasoning.PARTS:
        previous = None
        for tpot in part.tpot_ms:
            table = next(t for t in report.tables if t.name == f"{part.name}-{tpot}ms").frame
            assert [name.split()[0] for name in table.batching] == ["continuous", "chunked", "4P/4D", "2P/6D"]
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


@pytest.mark.long
def test_the_report_is_written(report, tmp_path):
    files = {path.name for path in report.write(tmp_path)}
    assert {"goodput-conversation.png", "goodput-code.png", "sharing.csv"} <= files


def test_the_best_budget_meets_the_slos_most():
    part = replace(reasoning.PARTS[0], rates=(1.0,), ttft_ms=(10, 20), tpot_ms=(25,))
    frame = pd.DataFrame([
        {"batching": name, "rate": 1.0, "requests.total": 10, "good_10_25": tight, "good_20_25": loose}
        for name, tight, loose in (("continuous", 9, 9), ("chunked 256", 1, 9), ("chunked 512", 4, 8),
                                   ("chunked 2048", 5, 5))])
    assert reasoning.share_met(part, frame).tolist() == pytest.approx([0.9, 0.5, 0.6, 0.5])
    assert reasoning.best_budget(part, frame).batching.tolist() == ["continuous", "chunked 512"]


def test_small_clients_have_the_rows_of_table_3(report):
    cells = next(table for table in report.tables if table.name == "tp2-table-3").frame
    assert len(cells) == 3 * 2
    assert set(cells.outcome) <= set(small.OUTCOMES)
    rows = {one.name: one for one in report.compared}
    assert sum(one.where == "Table III" for one in rows.values()) == 3 * 2 + 1
    share = rows["reasoning: share of all cells that agree"]
    assert share.here == (cells.outcome == "agree").mean()
    assert share.why.endswith("of 6 cells")
    rates = next(table for table in report.tables if table.name == "tp2-highest-rate").frame
    assert set(rates.strategy) == {"continuous", "chunked 512", "chunked 2048", "1P/1D"}


@pytest.mark.parametrize(("best", "paper", "outcome"), [
    (("continuous",), ("continuous",), "agree"),
    (("continuous", "chunked 512"), ("continuous",), "tie"),
    (("continuous", "chunked 512"), ("continuous", "chunked"), "agree"),
    (("1P/3D", "2P/2D"), ("continuous",), "disagree"),
    ((), ("continuous",), "nothing meets the SLOs"),
])
def test_outcomes_of_a_cell(best, paper, outcome):
    assert small.outcome(best, paper) == outcome


def test_figure_8_has_an_interval_over_seeds(report):
    rows = [one for one in report.compared if one.where == "Fig. 8"]
    assert len(rows) == 2 * 5
    for row in rows:
        low, high = row.interval
        assert low <= row.here <= high
        assert row.why.startswith("continuous ")
        assert row.verdict in (("-",) if row.paper is None else ("agrees", "differs", "reversed", "cannot tell"))
