"""The fidelity grid: complete cells, the same work from every source, differences recomputed."""

import pandas as pd
import pytest

from hermes.study import load_study

STUDY = load_study("fidelity")
fidelity = STUDY.module("report")


@pytest.fixture(scope="module")
def frame(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr(fidelity, "COUNTS", (3,))
    patch.setattr(fidelity, "OVERHEADS_MS", (1, 5))
    patch.setattr(fidelity, "TPS", (8,))
    kept = {}
    patch.setattr(fidelity, "build", lambda frame: kept.setdefault("frame", frame))
    fidelity.run(STUDY.context(tmp_path_factory.mktemp("study"), quick=True, workers=0))
    patch.undo()
    return kept["frame"]


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
    report = fidelity.build(both)
    assert {path.name for path in report.write(tmp_path)} >= {"predictions.csv", "sources.csv", "makespans.png"}
    assert any("roofline, ideal" in line for line in report.findings)
