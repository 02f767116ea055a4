"""The fidelity grid: complete cells, the same work from every source, differences recomputed."""

import pandas as pd
import pytest

from hermes.hardware import load_profile
from hermes.study import load_study

STUDY = load_study("fidelity")
fidelity = STUDY.module("report")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr(fidelity, "COUNTS", (3,))
    patch.setattr(fidelity, "OVERHEADS_MS", (1, 5))
    patch.setattr(fidelity, "TPS", (8,))
    kept = {}
    patch.setattr(fidelity, "build", lambda frame, compared: kept.update(frame=frame, compared=compared))
    fidelity.run(STUDY.context(tmp_path_factory.mktemp("study"), quick=True, workers=0))
    patch.undo()
    return kept


@pytest.fixture(scope="module")
def frame(ran):
    return ran["frame"]


@pytest.mark.long
def test_every_source_has_every_cell(frame):
    assert len(frame) == 2 * 2 * 6
    assert not frame.duplicated([*fidelity.CELL, "source"]).any()
    assert (frame.rejected == 0).all()


def test_engine_time_adds_up(frame):
    """One millisecond in every step: as many milliseconds as there are steps, so five add five times as much."""
    wide = frame.pivot_table(index=fidelity.CELL, columns="source", values="makespan s")
    one, five = (wide[f"roofline + {ms} ms"] - wide["roofline, fitted"] for ms in (1, 5))
    assert five.to_numpy() == pytest.approx(5 * one.to_numpy(), rel=1e-6)
    assert (wide["roofline, ideal"] < wide["roofline, fitted"]).all()


def test_differences_are_to_the_kernel_tables(frame):
    apart = fidelity.relative(frame)
    assert (apart[apart.source == fidelity.MAIN][list(fidelity.FIGURES)] == 0).all(axis=None)
    row = apart[apart.source == "roofline, ideal"].iloc[0]
    cell = frame[(frame[fidelity.CELL] == row[fidelity.CELL]).all(axis=1)].set_index("source")["TTFT s"]
    assert row["TTFT s"] == pytest.approx(cell["roofline, ideal"] / cell[fidelity.MAIN] - 1)


def test_the_report(frame, tmp_path):
    both = pd.concat([frame, frame.assign(tp=4)], ignore_index=True)
    report = fidelity.build(both, [])
    assert {path.name for path in report.write(tmp_path)} >= {"predictions.csv", "sources.csv", "makespans.png"}
    assert any("roofline, ideal" in line for line in report.findings)


def test_errors_against_recorded_servers_are_those_of_the_accuracy_page(ran):
    """The mean of the medians by loads, and the worst: agreement only if both are as small as the paper's, and only for
    its model and parallelism."""
    table = pd.read_csv(STUDY.folder.parents[1] / "docs" / "accuracy" / "all-sets.csv")
    rows = {one.name: one for one in ran["compared"]}
    small = rows["error of mean E2E, recorded vLLM servers of one or two H100, five models, %"]
    large = rows["error of mean E2E, recorded vLLM servers of eight H100, Llama-3.1-70B, %"]
    assert (small.verdict, large.verdict) == ("not comparable", "differs")
    own = table[(table["set"] == "llm-d, tables") & (table["card"] == "h100-sxm tp8") & (table["metric"] == "e2e")]
    (_, row), = own[own["stat"] == "mean"].iterrows()
    assert large.here == f"{row['median_percent']:.1f} on average, {row['worst_percent']:+g} at worst"
    mine = table[(table["card"] == "h100-sxm") & (table["metric"] == "e2e") & (table["stat"] == "mean")]
    assert mine["model"].nunique() == 5
    assert small.here.startswith(f"{(mine['median_percent'] * mine['cases']).sum() / mine['cases'].sum():.1f} on")


def test_errors_of_the_fits_are_those_of_the_profiles(ran):
    (decode,) = [one for one in ran["compared"] if "decode step" in one.name]
    known = [load_profile(f"splitwise-2023-llama-2-70b-h100-tp{tp}").phases.decode.error.mse_s2 for tp in (2, 4, 8)]
    assert decode.here == (min(known), max(known))


def test_the_table_of_assumptions_has_the_difference_between_the_sources(ran, frame):
    (one,) = [one for one in ran["compared"] if "fitted roofline" in one.name]   # TP8 alone
    wide = frame.pivot_table(index=fidelity.CELL, columns="source", values="makespan s")
    ratios = 100 * (wide[fidelity.FITTED] / wide[fidelity.MAIN] - 1)
    assert one.here == pytest.approx((ratios.min(), ratios.max()))
