"""The figure of a sweep: what it shows is what the table says."""

import shutil
import sqlite3
import warnings
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hermes.cli import main
from hermes.errors import InputError
from hermes.explore import open_sweep, run_sweep
from hermes.explore import plots as sweep_plots
from hermes.explore.plots import overview

DATA = Path(__file__).parent / "data"


@pytest.fixture
def ran(folder, write):
    def run(text):
        run_sweep(write(text), folder / "out", workers=0)
        return open_sweep(folder / "out")

    return run


def rows(figure):
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_latency_and_throughput_by_case(ran):
    cases = "cases: [{label: one, set: {slo: {ttft: 1 s}}}, {label: two, set: {clients.0.count: 2, slo: {ttft: 1 s}}}]"
    sweep = ran(f"name: three\n{cases}\ngrid: {{workload.requests: [3, 4]}}\n")
    frame, figure = sweep.frame(), overview(sweep)
    assert rows(figure) == ["one, requests 3", "one, requests 4", "two, requests 3", "two, requests 4"]
    assert [axis.get_xlabel() for axis in figure.axes] == [
        "TTFT (ms)", "TPOT (ms)", "end-to-end latency (ms)", "requests/s"]
    p50, p99 = figure.axes[0].lines
    np.testing.assert_allclose(p50.get_xdata(), frame["latency.ttft_s.p50"] * 1e3)
    np.testing.assert_allclose(p99.get_xdata(), frame["latency.ttft_s.p99"] * 1e3)
    bars = [bar.get_width() for bar in figure.axes[-1].patches]
    assert bars[:4] == pytest.approx(frame["throughput.requests_per_s"].tolist())
    assert bars[4:] == pytest.approx(frame["goodput.requests_per_s"].tolist())
    assert figure.get_suptitle() == "three"


@pytest.mark.parametrize("points", [1, 40])
def test_from_one_case_to_forty(ran, monkeypatch, points):
    name = "a-name-of-a-setting-that-nobody-would-want-to-read-in-a-figure-more-than-once"
    sweep = ran(f"name: n\ngrid: {{workload.requests: [2]}}\ncolumns: {{workload.requests: {name}}}\n")
    frame, settings = sweep.frame(), sweep.settings(0)
    frame = frame.loc[[0] * points].assign(point=range(points))
    monkeypatch.setattr(type(sweep), "frame", lambda self: frame)
    monkeypatch.setattr(type(sweep), "__len__", lambda self: points)
    monkeypatch.setattr(type(sweep), "settings", lambda self, number: {**settings, name: number})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = overview(sweep)
        figure.draw_without_rendering()
    assert len(rows(figure)) == points
    assert all(len(label) <= 60 for label in rows(figure))
    for axis in figure.axes:
        box = axis.get_window_extent()
        assert box.width > 150
        assert box.height / points > 15
    labels = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert all(above.y0 >= below.y1 - 1 for above, below in pairwise(labels)), "no label lies on another"


def forget(folder, key):
    with closing(sqlite3.connect(folder.database)) as database, database:
        database.execute("DELETE FROM outcomes WHERE hash = ?", (key,))
        database.execute("DELETE FROM about WHERE key = 'results'")   # the table is written when all are there


def test_failed_points_and_those_that_are_missing_are_said(ran, folder, monkeypatch):
    shutil.copy(DATA / "figures_of_mine.py", folder)
    sweep = ran("name: n\nextract: figures_of_mine:only_few\ngrid: {workload.requests: [10, 11, 9]}\n")
    figure = overview(sweep)
    assert rows(figure) == ["requests 10", "requests 11", "requests 9"]
    for axis in figure.axes:
        said = [text for text in axis.texts if text.get_text() != "*"]   # the star of a whole run
        assert [(text.get_text(), text.get_position()[1]) for text in said] == [("failed", 1)]
    forget(sweep.folder, sweep.manifest["points"][2]["hash"])
    assert overview(sweep).get_suptitle() == "n: 2 of 3 points finished"
    monkeypatch.setattr(sweep_plots, "MAX_CASES", 1)
    assert overview(sweep).get_suptitle() == "n: the first 1 of 2 finished points, 2 of 3 points finished"
    for point in sweep.manifest["points"]:
        forget(sweep.folder, point["hash"])
    with pytest.raises(InputError, match="expected a sweep with finished points, found none"):
        overview(sweep)


def test_the_command_draws_a_sweep(ran, folder, capsys):
    ran("name: n\n")
    assert main(["plot", str(folder / "out"), "-o", str(folder / "x.png")]) == 0
    assert (folder / "x.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plot", str(folder / "out"), "-o", str(folder / "x.png"), "--kind", "queue"]) == 2
    assert "a sweep has one figure" in capsys.readouterr().err
