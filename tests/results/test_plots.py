"""Charts of runs and their matplotlib figures: what they show is what the results say."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from synthetic_records import by_hand, large_record, random_record
from test_breakdown import scenario

from hermes.api import simulate
from hermes.cli import main, plot
from hermes.errors import InputError
from hermes.results import plots
from hermes.results.charts import Axis, Chart, Panel, end_labels, panel_spec
from hermes.results.charts.run_charts import KINDS, breakdown, chart, latency, utilisation
from hermes.results.charts.time_charts import MAX_CLIENTS, MAX_GROUPS, over_time
from hermes.results.files.export import write_results
from hermes.results.plots import image
from hermes.results.results import Results

OF_ANY = [kind for kind in KINDS if kind not in ("notes", "fleet", "gateway")]
"""Figures that every run has."""


def layers(panel: Panel, mark: str) -> list:
    return [layer.frame for layer in panel.layers if layer.mark == mark]


@pytest.fixture(scope="module")
def graph() -> Results:
    data = scenario({"a": {"kind": "rank"}, "b": {"kind": "generate", "after": "a", "input_bytes": 10**8}})
    first = data["workload"]
    data["workload"] = [{"name": "graph", **first}, {"name": "chat", **first, "pipeline": "plain"}]
    return simulate(data)


@pytest.fixture(scope="module")
def judged() -> Results:
    return simulate({
        "name": "judged", "slo": {"ttft": "100 ms", "e2e": "900 s"},
        "workload": {"requests": 150, "arrivals": {"kind": "poisson", "rate": 15},
                     "lengths": {"kind": "empirical", "profile": "azure-conv-2023"}},
        "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm", "count": 2}]})


def test_a_distribution_has_its_percentiles_and_the_limit(judged: Results) -> None:
    panel = latency([("run", judged)])[0]
    seconds = judged.requests["ttft_s"]
    factor = 1e3 if "(ms)" in panel.x.title else 1.0
    (curve,), (marks,), (rule,) = (layers(panel, mark) for mark in ("step", "point", "rule"))
    assert curve["x"].iloc[-1] == pytest.approx(seconds.max() * factor)
    assert marks["x"].tolist() == pytest.approx((np.percentile(seconds, [50, 99]) * factor).tolist())
    assert marks["y"].tolist() == [0.5, 0.99]
    assert rule["x"].tolist() == pytest.approx([0.1 * factor])
    assert f"p50 {seconds.median() * 1e3:.3g} ms" in panel.title
    values = panel_spec(panel)["layer"][0]["data"]["values"]
    assert values[-1]["x"] == pytest.approx(seconds.max() * factor, rel=1e-4)


def test_a_limit_far_beyond_the_data_is_named_at_the_edge(judged: Results) -> None:
    panel = latency([("run", judged)])[2]
    assert layers(panel, "rule") == []
    (text,) = layers(panel, "above")
    assert text["label"].tolist() == ["SLO p99 900 s →"]
    assert text["x"].tolist() == [panel.x.domain[1]]


def test_runs_share_a_panel_and_its_scale() -> None:
    runs = [("hand", Results(by_hand())), ("random", Results(random_record(3)[0]))]
    for panel in latency(runs):
        assert list(panel.palette()) == ["hand", "random"]
        assert panel.x.domain[1] >= max(frame["x"].max() for frame in layers(panel, "step"))
    with pytest.raises(InputError, match="at least one run"):
        chart([], "latency")
    with pytest.raises(InputError, match="did you mean 'queue'"):
        chart(runs, "quee")


def test_bars_are_as_long_as_the_means(graph: Results) -> None:
    by_cause, by_pipeline = breakdown([("run", graph)])
    summary = graph.summary
    for panel, expected in (
        (by_cause, sum(part["total_s"]["mean"] for part in summary["breakdown"]["stages"].values())),
        (by_pipeline, sum(entry["e2e_s"]["mean"] for entry in summary["by"]["pipeline"].values())),
    ):
        (bars,) = layers(panel, "bar")
        assert (bars["x2"] - bars["x"]).sum() == pytest.approx(expected * (1e3 if "(ms)" in panel.x.title else 1.0))
    assert by_cause.y.domain == ("rank", "generate")


def test_the_most_used_comes_first(graph: Results) -> None:
    ((bars,),) = [layers(panel, "bar") for panel in utilisation([("run", graph)])]
    assert bars["x2"].is_monotonic_decreasing
    assert bars["x2"].iloc[0] == pytest.approx(graph.utilisation["utilisation"].max())


def test_few_clients_have_a_line_each() -> None:
    results = Results(large_record(200, clients=MAX_CLIENTS, tokens=10))
    for panel in chart([("run", results)], "clients").panels:
        assert len(layers(panel, "line")) == MAX_CLIENTS
        (labels,) = layers(panel, "text")
        assert labels["label"].tolist() == [f"client-{number}" for number in range(MAX_CLIENTS)]
    hand = over_time([("run", Results(by_hand()))], ["kv"])[0]
    assert max(line["y"].max() for line in layers(hand, "line")) <= 1


def test_many_clients_are_drawn_by_group_with_their_range() -> None:
    record = large_record(300, clients=12, tokens=10)
    for number, info in enumerate(record.clients):
        info.group = "prefill" if number < 5 else "decode"
    results = Results(record)
    panel = over_time([("run", results)], ["running"])[0]
    assert list(panel.palette()) == ["decode x 7", "prefill x 5"]
    running = np.array([results.client_timeseries(client, 150)["running"] for client in range(5, 12)])
    np.testing.assert_allclose(layers(panel, "line")[0]["y"], running.mean(axis=0))
    band = layers(panel, "area")[0]
    np.testing.assert_allclose(band["y"], running.min(axis=0))
    np.testing.assert_allclose(band["y2"], running.max(axis=0))
    for number, info in enumerate(record.clients):
        info.group = f"group-{number}"   # too many groups: the others in one
    assert f"{12 - MAX_GROUPS} others" in over_time([("run", Results(record))], ["running"])[0].palette()


def test_the_queue_is_counted() -> None:
    panel = over_time([("run", Results(by_hand()))], ["system"])[0]
    (line,) = layers(panel, "line")
    assert line["y"].max() == 3
    assert line["y"].iloc[-1] == 1   # the unfinished one


def test_the_steady_window_is_shaded() -> None:
    results = simulate("quickstart", overrides=["workload.requests=600"])
    found = results.summary["headline"]
    assert found["window"] == "steady"
    (span,) = layers(over_time([("run", results)], ["system"])[0], "span")
    assert (span["x"][0], span["x2"][0]) == pytest.approx((found["start_s"], found["until_s"]))


def test_labels_at_the_ends_of_lines_keep_apart() -> None:
    import pandas as pd

    frame = pd.DataFrame({"x": 1.0, "y": [0.0, 0.1, 0.1, 5.0, 10.0, 10.0], "label": list("abcdef"), "series": "s"})
    places = np.sort(end_labels(frame, Axis(domain=(0.0, 10.0)), 130).frame["y"].to_numpy()) / 10 * 130
    assert np.diff(places).min() >= 14 - 1e-9
    assert places[0] >= 0
    assert places[-1] <= 130 + 1e-9


@pytest.mark.feature("Scenarios and commands", "`hermes plot` of a run or a sweep")
@pytest.mark.drawn
@pytest.mark.parametrize("kind", OF_ANY)
def test_the_command_draws_a_run(graph: Results, tmp_path: Path, kind: str) -> None:
    write_results(graph, tmp_path / "run")
    for name in ("x.png", "y.png", "x.svg"):
        assert main(["plot", str(tmp_path / "run"), "-o", str(tmp_path / name), "--kind", kind]) == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "x.png").read_bytes() == (tmp_path / "y.png").read_bytes(), "the same run, the same bytes"
    assert (tmp_path / "x.svg").read_text().startswith("<svg")


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(tmp_path), "-o", "x.png", "--kind", "brekdown"]) == 2
    assert "breakdown" in capsys.readouterr().err
    for name in ("x.jpeg", "x.pdf"):
        assert main(["plot", str(tmp_path), "-o", name]) == 2
        assert "a .png or .svg file" in capsys.readouterr().err


@pytest.mark.parametrize("kind", OF_ANY)
def test_a_figure_of_an_interrupted_run_says_so(kind: str) -> None:
    cut = Results(by_hand(), {"interrupted": True})
    assert chart([("run", cut)], kind).said.startswith("interrupted at ")
    assert "interrupted" not in chart([("run", Results(by_hand()))], kind).said
    both = chart([("whole", Results(by_hand())), ("cut", cut)], kind)
    assert both.said.startswith("cut: interrupted at ")


def test_the_command_says_that_a_run_was_interrupted(
    graph: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results(Results(graph.record, {"interrupted": True}), tmp_path / "cut")
    assert main(["plot", str(tmp_path / "cut"), "-o", str(tmp_path / "x.png")]) == 0
    assert capsys.readouterr().err.startswith("note: the run was interrupted at ")


@pytest.mark.drawn
@pytest.mark.parametrize("kind", OF_ANY)
def test_matplotlib_draws_the_same_data(judged: Results, kind: str) -> None:
    made, figure = chart([("judged", judged)], kind), judged.plot(kind)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert len(figure.axes) == len(made.panels)
    for axis, panel in zip(figure.axes, made.panels, strict=True):
        assert axis.get_title(loc="left") == panel.title
        assert axis.get_xlabel() == panel.x.title
        drawn = [list(line.get_xdata()) for line in axis.lines]
        for frame in (frame for mark in ("line", "step") for frame in layers(panel, mark)):
            assert frame["x"].tolist() in drawn
        assert sum(bar.get_width() for bar in axis.patches[:sum(map(len, layers(panel, "bar")))]) == pytest.approx(
            sum((frame["x2"] - frame["x"]).sum() for frame in layers(panel, "bar")))


@pytest.mark.drawn
@pytest.mark.parametrize("kind", OF_ANY)
def test_texts_lie_inside_their_figure(graph: Results, kind: str) -> None:
    figure = plots.draw(chart([("run", graph)], kind))
    figure.draw_without_rendering()
    edge = figure.bbox
    places = [axis.get_tightbbox() for axis in figure.axes]
    texts = [figure._suptitle, *figure.texts, *(text for axis in figure.axes for text in axis.texts)]
    for box in (*places, *(text.get_window_extent() for text in texts)):
        assert edge.x0 <= box.x0 < box.x1 <= edge.x1
        assert edge.y0 <= box.y0 < box.y1 <= edge.y1
    assert all(above.y0 > below.y1 for above, below in itertools.pairwise(places))


def test_the_settings_of_a_user_change_nothing(judged: Results) -> None:
    made = chart([("it costs $4 or $5, 名", judged)], "breakdown")
    plain = [image(made, suffix) for suffix in ("png", "svg")]
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "yellow", "svg.fonttype": "path",
                                "savefig.bbox": "tight"}):
        assert [image(made, suffix) for suffix in ("png", "svg")] == plain
    assert "it costs $4 or $5, 名".encode() in plain[1], "texts stay texts"


@pytest.mark.parametrize(("scale", "low", "high", "expected"), [
    (Axis(), 0.0, 2.1, ["0.0", "0.5", "1.0", "1.5", "2.0"]),
    (Axis(), 0.0, 4e9, ["0", "1,000,000,000", "2,000,000,000", "3,000,000,000", "4,000,000,000"]),
    (Axis(percent=True), 0.0, 1.3, ["0%", "20%", "40%", "60%", "80%", "100%", ""]),
    (Axis(percent=True), 0.0, 0.0065, ["0.0%", "0.1%", "0.2%", "0.3%", "0.4%", "0.5%", "0.6%"]),
    (Axis(kind="log"), 0.4, 210.0, ["0.5", "1", "2", "5", "10", "20", "50", "100", "200"]),
    (Axis(kind="log"), 0.4, 2.1e6, ["1", "10", "100", "1,000", "10,000", "100,000", "1,000,000"]),
    (Axis(kind="log"), 21.0, 34.0, ["22", "24", "26", "28", "30", "32", "34"]),
])
def test_ticks_are_round_numbers_of_equal_digits(scale: Axis, low: float, high: float, expected: list[str]) -> None:
    panel = Panel("t", replace(scale, domain=(low, high)), Axis(), [])
    (axis,) = plots.draw(Chart("t", "", [panel])).axes
    assert [label.get_text() for label in axis.get_xticklabels()
            if low <= label.get_position()[0] <= high] == expected


def test_a_figure_in_given_axes(judged: Results) -> None:
    figure, axes = plots.NotebookFigure(), []
    axes = list(figure.subplots(3))
    assert judged.plot("latency", ax=axes) is figure
    assert [axis.get_xlabel().split()[0] for axis in axes] == ["TTFT", "TPOT", "E2E"]
    with pytest.raises(InputError, match="3 axes, one for each panel; found 1"):
        judged.plot("latency", ax=axes[0])
    two = plots.plot_runs({"one": judged, "two": judged}, "queue")
    assert [text.get_text() for text in two.axes[0].get_legend().get_texts()] == ["one", "two"]


def test_the_command_knows_all_figures() -> None:
    assert tuple(KINDS) == plot.FIGURES


@pytest.mark.long
def test_names_of_any_length_and_kind_fit() -> None:
    record = large_record(100, clients=12, tokens=10)
    for number, info in enumerate(record.clients):
        info.name = f"a-client-with-a-name-as-long-as-a-fleet-of-many-racks-gives-it-{number}"
    for kind in OF_ANY:
        made = chart([("run " * 30, Results(record))], kind)
        assert image(made, "png").startswith(b"\x89PNG")
        texts = [name for panel in made.panels for frame in layers(panel, "text") for name in frame["label"]]
        assert all(len(name) <= 40 for name in texts)
        assert all(panel_spec(panel)["layer"] for panel in made.panels)


def test_pyplot_is_left_alone() -> None:
    if "matplotlib.pyplot" in sys.modules:
        import matplotlib.pyplot as plt

        assert plt.get_fignums() == []
