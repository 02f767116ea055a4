"""The eight cases of splitwise-sim as a study. (tests/study/test_splitwise.py holds them to splitwise-sim.)"""

import pandas as pd
import pytest

from hermes.study import load_study, run_points

STUDY = load_study("splitwise")
splitwise = STUDY.module("report")


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    context = STUDY.context(tmp_path_factory.mktemp("study"), quick=True, workers=0)
    short = splitwise.points(context, **{"workload.duration": "2 s"})
    frames = [run_points(context, model, short, scenario=f"{model}.yaml", extract=splitwise.splitwise_figures).assign(
        model=model) for model in splitwise.MODELS]
    return splitwise.tidy(pd.concat(frames, ignore_index=True))


def test_eight_cases(ours):
    assert len(ours) == 8 * 2
    assert ours.groupby(splitwise.CASE).size().eq(2).all()
    assert (ours.rejected == 0).all()
    # machines of Llama have more room than those of Bloom; both models get the same requests
    assert set(ours.groupby("model")["KV tokens"].first()) == {210645, 89234}
    assert ours.groupby(["workload", "rate", "seed"]).done.nunique().eq(1).all()


def test_means_and_spread(ours):
    table, apart = splitwise.means(ours), splitwise.spread(ours)
    case = ours[(ours.model == "bloom-176b") & (ours.workload == "code") & (ours.rate == 40)]["TBT p50"]
    row = table[(table.model == "bloom-176b") & (table.workload == "code") & (table.rate == 40)].iloc[0]
    assert row["TBT p50"] == pytest.approx(case.mean())
    far = apart[(apart.model == "bloom-176b") & (apart.workload == "code") & (apart.rate == 40)].iloc[0]
    assert far["TBT p50"] == pytest.approx((case.max() - case.min()) / case.mean())


def test_the_report(ours, tmp_path):
    report = splitwise.build(ours, None)
    assert {path.name for path in report.write(tmp_path)} >= {"cases.csv", "latencies.csv", "latency-bars.png"}
    assert not any("paper" in line for line in report.findings)   # nothing to compare with, nothing said


def test_the_figures_of_the_paper(tmp_path):
    """Without splitwise-sim's answers nothing can be told; with them the largest error decides, of either sign."""
    assert {row.verdict for row in splitwise.compare(STUDY.context(tmp_path))} == {"cannot tell"}
    for error, verdict in ((-0.03, "agrees"), (-0.07, "differs")):
        against = pd.DataFrame([
            {"case": "bloom-176b-code-40", "error": value, "requests": 10, "placed alike": 9, "same times": 8}
            for value in (0.01, error)])
        worst, *cells, times = splitwise.compared(against)
        assert {row.name: row.verdict for row in cells} == {
            f"{case}: difference from splitwise-sim, %": verdict if case == "bloom-176b-code-40" else "not computed"
            for case in splitwise.CELLS}
        assert (worst.here, worst.verdict) == (pytest.approx(-100 * error), verdict)
        assert worst.why == "1 of the 8 cases, 2 statistics; 9 of 10 requests on the same machines"
        assert (times.name, times.here, times.verdict) == (
            "bloom-176b-code-40: requests with splitwise-sim's times", 8, "-")
