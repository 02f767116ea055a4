"""The charts of a sweep: what they show is what its table says, and the point they mark is the answer."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hermes.cli import main
from hermes.core.noise import t_quantile
from hermes.errors import InputError
from hermes.explore import open_sweep, run_sweep
from hermes.explore.sweep.plots import MAX_BARS, front_panel, plane_chart, sweep_chart
from hermes.results.plots import image

DATA = Path(__file__).parent / "data"


@pytest.fixture
def ran(folder, write):
    def run(text):
        run_sweep(write(text), folder / "out", workers=0)
        return open_sweep(folder / "out")

    return run


def layers(panel, mark):
    return [layer.frame for layer in panel.layers if layer.mark == mark]


def test_points_without_numbers_are_bars(ran):
    cases = "cases: [{label: one, set: {slo: {ttft: 1 s}}}, {label: two, set: {clients.0.count: 2, slo: {ttft: 1 s}}}]"
    sweep = ran(f"name: three\n{cases}\n")
    frame, made = sweep.frame(), sweep_chart(sweep)
    assert [panel.title.split()[0] for panel in made.panels] == ["TTFT", "TPOT", "Goodput"]
    ttft, _, goodput = made.panels
    (bars,) = layers(ttft, "bar")
    assert [name.removeprefix("» ") for name in ttft.y.domain] == ["one", "two"]
    np.testing.assert_allclose(bars["x2"], frame["slo.ttft.value_s"] * 1e3)
    np.testing.assert_allclose(layers(goodput, "bar")[0]["x2"], frame["headline.goodput_per_s"])
    assert "0 of 2 within the SLO of 1 s" in ttft.title   # they did not settle
    assert made.said.endswith("2 did not settle: no verdict on the SLO")
    assert made.title.startswith("three: ")


def test_one_number_gives_curves_with_a_line_for_each_of_the_others(ran):
    cases = "cases: [{label: one, set: {}}, {label: two, set: {clients.0.count: 2}}]"
    sweep = ran(f"name: n\n{cases}\ngrid: {{workload.requests: [30, 40, 60]}}\nseeds: 2\n")
    frame, panel = sweep.frame(), sweep_chart(sweep).panels[0]
    lines = layers(panel, "line")
    assert [line["series"].iloc[0] for line in lines] == ["one", "two"]
    factor = 1e3 if "(ms)" in panel.title else 1.0
    for line in lines:
        mine = frame[frame["case"] == line["series"].iloc[0]].groupby("workload.requests")["latency.ttft_s.p99"]
        np.testing.assert_allclose(line["x"], [30, 40, 60])
        np.testing.assert_allclose(line["y"], mine.mean() * factor)
    (band, *_) = layers(panel, "area")
    mine = frame[frame["case"] == band["series"].iloc[0]].groupby("workload.requests")["latency.ttft_s.p99"]
    np.testing.assert_allclose(band["y2"], mine.max() * factor)
    (labels,) = layers(panel, "text")
    assert sorted(labels["label"]) == ["one", "two"]


@pytest.mark.long
def test_many_lines_are_the_highest_the_lowest_and_the_others(ran):
    cases = ", ".join(f"{{label: c{i}, set: {{clients.0.count: {i}}}}}" for i in range(1, 9))
    panel = sweep_chart(ran(f"name: n\ncases: [{cases}]\ngrid: {{workload.requests: [30, 40]}}\n")).panels[0]
    (labels,) = layers(panel, "text")
    assert len(labels) == 5
    assert "4 others" in set(labels["label"])


def test_two_numbers_give_heat_maps(ran):
    sweep = ran("name: n\ngrid: {workload.requests: [30, 40, 60], clients.0.count: [1, 2, 3]}\n")
    frame, made = sweep.frame(), sweep_chart(sweep)
    (cells,), (texts,) = layers(made.panels[-1], "cell"), layers(made.panels[-1], "text")
    assert len(cells) == 9
    assert made.panels[-1].y.domain == ("3", "2", "1"), "more is higher"
    served = [f"{value:.3g}" for value in frame["headline.served_per_s"]]
    assert texts["label"].tolist() == served
    assert not layers(made.panels[0], "box")   # none settled: none is the best
    assert made.title == "n: no point settled"
    assert made.said == "9 points; 9 did not settle"   # and there is no SLO to judge
    assert image(made, "png").startswith(b"\x89PNG")


def settle(sweep, monkeypatch, goodput, offered, missed):
    """Give the points of a sweep of clients these figures."""
    table = sweep.arrow().to_pandas().assign(**{
        "headline.goodput_per_s": goodput, "headline.offered_per_s": offered, "headline.stable": True,
        "settling.settled": True, "settling.late_misses": False, "slo.pass": [not one for one in missed],
        "slo.ttft.limit_s": 1.0, "slo.ttft.percentile": 99.0, "slo.ttft.pass": [not one for one in missed],
        "slo.ttft.value_s": [2.0 if one else 0.5 for one in missed]})
    monkeypatch.setattr(type(sweep), "arrow", lambda self: pa.Table.from_pandas(table))


def test_the_fewest_clients_of_one_load_are_named_and_marked(ran, monkeypatch):
    sweep = ran("name: n\ngrid: {clients.0.count: [1, 2, 3]}\ncolumns: {clients.0.count: replicas}\n")
    settle(sweep, monkeypatch, [5.0, 9.0, 10.0], [10.0, 10.0, 10.0], [True, False, False])
    made = sweep_chart(sweep)
    assert made.title.startswith("n: replicas 2 is the fewest that meets the SLO (9/s within it on ")
    (ring,), (rule,) = layers(made.panels[0], "ring"), layers(made.panels[0], "rule")
    assert (ring["x"].iloc[0], ring["y"].iloc[0]) == (2.0, 0.5 * (1e3 if "(ms)" in made.panels[0].title else 1.0))
    assert rule["y"].tolist() == [1.0]
    assert "2 of 3 within the SLO of 1 s" in made.panels[0].title


def test_the_best_of_several_loads_is_named(ran, monkeypatch):
    sweep = ran("name: n\ngrid: {workload.requests: [10, 20, 30]}\n")
    settle(sweep, monkeypatch, [5.0, 9.0, 8.0], [5.0, 10.0, 20.0], [False, False, True])
    assert sweep_chart(sweep).title.startswith("n: requests 20 is the best that meets the SLO")


def test_two_numbers_that_settled_have_a_box_around_the_best(ran, monkeypatch):
    sweep = ran("name: n\ngrid: {workload.requests: [10, 20, 30], clients.0.count: [1, 2, 3]}\n")
    settle(sweep, monkeypatch, [5.0] * 8 + [9.0], [10.0] * 9, [True] * 8 + [False])
    (box,) = layers(sweep_chart(sweep).panels[0], "box")
    assert len(box) == 1


def test_no_point_that_meets_the_slo(ran, monkeypatch):
    sweep = ran("name: n\ngrid: {workload.requests: [10, 20]}\n")
    settle(sweep, monkeypatch, [5.0, 9.0], [5.0, 10.0], [True, True])
    made = sweep_chart(sweep)
    assert made.title == "n: no point meets the SLO"
    assert not layers(made.panels[0], "ring")


@pytest.mark.long
def test_long_names_and_many_points_fit(ran):
    name = "a-name-of-a-setting-that-would-fill-a-figure"
    cases = ", ".join(f"{{label: {name}-{i}, set: {{workload.requests: {3 + i}}}}}" for i in range(MAX_BARS + 2))
    made = sweep_chart(ran(f"name: n\ncases: [{cases}]\n"))
    assert len(made.panels[0].y.domain) == MAX_BARS
    assert all(len(label) <= 50 for label in made.panels[0].y.domain)
    assert f"the first {MAX_BARS} are drawn" in made.said
    assert image(made, "png") == image(made, "png")


def forget(folder, key):
    with closing(sqlite3.connect(folder.database)) as database, database:
        database.execute("DELETE FROM outcomes WHERE hash = ?", (key,))
        database.execute("DELETE FROM about WHERE key = 'results'")   # the table is written when all are there


def test_failed_points_and_those_that_are_missing_are_said(ran, folder):
    shutil.copy(DATA / "figures_of_mine.py", folder)
    sweep = ran("name: n\nextract: figures_of_mine:only_few\ngrid: {workload.requests: [10, 11, 9]}\n")
    made = sweep_chart(sweep)
    assert "3 points; 1 failed" in made.said
    assert len(layers(made.panels[0], "line")[0]) == 2
    forget(sweep.folder, sweep.manifest["points"][2]["hash"])
    assert "2 of 3 points finished" in sweep_chart(sweep).said
    for point in sweep.manifest["points"]:
        forget(sweep.folder, point["hash"])
    with pytest.raises(InputError, match="expected a sweep with finished points, found none"):
        sweep_chart(sweep)


def test_the_front_joins_the_points_that_no_other_beats():
    panel = front_panel("t", "x", "y", {"misses": [(1.0, 1.0)], "meets": []}, [(1.0, 3.0, "a"), (2.0, 2.0, "b")])
    (line,), (texts,) = layers(panel, "line"), layers(panel, "text")
    assert line[["x", "y"]].to_numpy().tolist() == [[1.0, 3.0], [2.0, 2.0]]
    assert texts["label"].tolist() == ["a", "b"]
    assert sum(len(frame) for frame in layers(panel, "point")) == 3
    assert front_panel("t", "x", "y", {"misses": [(1.0, 1.0)]}, []).layers


def test_matplotlib_draws_the_same_sweep(ran):
    sweep = ran("name: n\ngrid: {workload.requests: [30, 40, 60], clients.0.count: [1, 2, 3]}\n")
    figure, made = sweep.plot(), sweep_chart(sweep)
    assert figure.get_suptitle().replace("\n", " ") == made.title
    assert [axis.get_title(loc="left") for axis in figure.axes] == [panel.title for panel in made.panels]
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_the_command_draws_a_sweep(ran, folder, capsys):
    ran("name: n\n")
    assert main(["plot", str(folder / "out"), "-o", str(folder / "x.png")]) == 0
    assert (folder / "x.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plot", str(folder / "out"), "-o", str(folder / "x.png"), "--kind", "queue"]) == 2
    assert "a sweep has one figure" in capsys.readouterr().err


PLANE = """
name: plane
cases:
  - {label: few, set: {workload.requests: 20}}
  - {label: more, set: {workload.requests: 40}}
grid: {workload.arrivals.rate: [2 /s, 4 /s]}
seeds: 2
"""


def test_one_column_against_another_is_a_point_for_each_setting(ran, monkeypatch):
    """Means of the seeds; the settings of one case, which differ in a rate, are joined."""
    sweep = ran(PLANE)
    (panel,) = plane_chart(sweep, "latency.e2e_s.p50", "headline.output_tokens_per_s").panels
    (points,) = layers(panel, "open")   # none settled
    certain = pa.Table.from_pandas(sweep.arrow().to_pandas().assign(**{"settling.late_misses": True}))
    monkeypatch.setattr(type(sweep), "arrow", lambda self: certain)
    (other,) = plane_chart(sweep, "latency.e2e_s.p50", "headline.output_tokens_per_s").panels
    assert not layers(other, "open")   # they miss the SLO however long they are
    assert "did not settle" not in sweep_chart(sweep).said
    assert panel.title == "4 settings; means of 2 seeds, bars: 95% intervals; hollow: did not settle"
    frame = sweep.frame()
    expected = frame.groupby(["case", "workload.arrivals.rate"], sort=False)[
        ["latency.e2e_s.p50", "headline.output_tokens_per_s"]].mean()
    assert points[["x", "y"]].to_numpy() == pytest.approx(expected.to_numpy())
    assert (panel.x.title, panel.y.title) == ("latency.e2e_s.p50 (s)", "headline.output_tokens_per_s (tokens/s)")
    error = t_quantile(2) * frame.groupby(["case", "workload.arrivals.rate"], sort=False)["latency.e2e_s.p50"].std()
    across, along = layers(panel, "error")   # 95% intervals of both columns
    np.testing.assert_allclose((across["x2"] - across["x"]) / 2, error / np.sqrt(2))
    assert (along["y2"] >= along["y"]).all()
    assert panel.x.domain[0] >= 0
    assert image(plane_chart(sweep, "latency.e2e_s.p50", "headline.output_tokens_per_s"), "png").startswith(b"\x89PNG")


def test_columns_far_apart_are_on_a_logarithmic_axis(ran):
    sweep = ran("name: n\ncases:\n  - {label: a, set: {workload.requests: 2}}\n"
                "  - {label: b, set: {workload.requests: 60}}\n")
    (panel,) = plane_chart(sweep, "requests.completed", "latency.e2e_s.p50").panels
    assert (panel.x.kind, panel.y.kind) == ("log", "linear")


@pytest.mark.parametrize(("options", "said"), [
    (["--x", "latency.e2e_s.p5", "--y", "latency.e2e_s.p50"], "did you mean"),
    (["--x", "latency.e2e_s.p50", "--y", "status"], "has numbers"),
    (["--x", "latency.e2e_s.p50"], "--x and --y go together"), (["--y", "latency.e2e_s.p50"], "go together"),
])
def test_a_wrong_column_is_one_line(ran, folder, capsys, options, said):
    ran("name: n\n")
    assert main(["plot", str(folder / "out"), "-o", str(folder / "x.png"), *options]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert said in line
