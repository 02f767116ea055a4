from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from synthetic_records import by_hand, large_record, random_record

from hermes.errors import InputError
from hermes.results import breakdown_plots, plots
from hermes.results.results import Results


def png(figure: object) -> bytes:
    return figure._repr_png_()  # type: ignore[attr-defined]


def test_latency_cdf() -> None:
    runs = {"hand": Results(by_hand()), "random": Results(random_record(3)[0])}
    figure = plots.latency_cdf(runs, ["ttft", "tpot", "itl", "e2e", "queue"], log=True)
    assert len(figure.axes) == 5
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["hand", "random"]
    line = plots.latency_cdf(Results(by_hand()), ["ttft"]).axes[0].lines[0]
    assert (line.get_xdata()[0], line.get_xdata()[-1]) == (10.0, 115.0)
    assert png(figure).startswith(b"\x89PNG")
    with pytest.raises(InputError, match="did you mean 'ttft'"):
        plots.latency_cdf(runs, ["tft"])
    with pytest.raises(InputError, match="at least one run"):
        plots.latency_cdf({})


def test_over_time() -> None:
    results = Results(large_record(200, clients=plots.MAX_CLIENTS, tokens=10))
    figure = plots.client_timeseries(results, bins=20)
    assert [len(axis.lines) for axis in figure.axes] == [plots.MAX_CLIENTS] * 3
    chosen = plots.client_timeseries(Results(by_hand()), ["llm-b"])
    assert [len(axis.lines) for axis in chosen.axes] == [1] * 3
    assert max(chosen.axes[2].lines[0].get_ydata()) == pytest.approx(25.0)
    with pytest.raises(InputError, match="a client"):
        plots.client_timeseries(results, ["nobody"])
    assert png(figure).startswith(b"\x89PNG")


def test_many_clients_are_drawn_as_groups_of_alike_ones() -> None:
    """Those beyond the eighth used to be missing without a word."""
    record = large_record(300, clients=12, tokens=10)
    for info in record.clients[:5]:
        info.role = "prefill"
    results = Results(record)
    figure = plots.client_timeseries(results, bins=20)
    assert [len(axis.lines) for axis in figure.axes] == [2] * 3
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "client-0 to client-4 (5 clients, mean and range)", "client-5 to client-11 (7 clients, mean and range)"]
    running = np.array([results.client_timeseries(client, 20)["running"] for client in range(5, 12)])
    np.testing.assert_allclose(figure.axes[0].lines[1].get_ydata(), running.mean(axis=0))
    band = figure.axes[0].collections[1].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (pytest.approx(running.min()), pytest.approx(running.max()))
    assert [len(axis.lines) for axis in plots.client_timeseries(results, range(12), 20).axes] == [12] * 3
    for number, info in enumerate(record.clients):
        info.hardware = f"another-{number}"   # too many groups: all in one
    assert [len(axis.lines) for axis in plots.client_timeseries(results, bins=20).axes] == [1] * 3


@pytest.mark.parametrize("clients", [3, 8, 12])
def test_long_names_leave_room_for_the_axes(clients: int) -> None:
    """Eight names beside each other used to collapse the axes to nothing, with a warning of matplotlib."""
    record = large_record(100, clients=clients, tokens=10)
    for number, info in enumerate(record.clients):
        info.name = f"a-client-with-a-name-as-long-as-a-fleet-of-many-racks-gives-it-{number}"
        info.role = ("prefill", "decode", "both")[number % 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = plots.client_timeseries(Results(record), bins=20)
        png(figure)
    for axis in figure.axes:
        box = axis.get_position()
        assert box.width > 0.85
        assert box.height > 0.2
    shown = figure.legends[0].get_window_extent()
    assert shown.x1 <= figure.bbox.x1
    assert shown.y1 <= min(axis.get_tightbbox().y0 for axis in figure.axes), "below the axes, not on them"


@pytest.mark.parametrize("draw", [
    plots.latency_cdf, plots.client_timeseries, plots.queue, breakdown_plots.breakdown, breakdown_plots.utilisation,
])
def test_a_figure_of_an_interrupted_run_says_so(draw: Callable[[Results], Any]) -> None:
    cut = draw(Results(by_hand(), {"interrupted": True}))
    assert "4 of 6 requests completed" in cut.get_suptitle()
    assert cut.get_suptitle().startswith("interrupted at ")
    assert draw(Results(by_hand())).get_suptitle() == ""


def test_which_of_several_runs_was_interrupted() -> None:
    runs = {"whole": Results(by_hand()), "cut": Results(by_hand(), {"interrupted": True})}
    assert plots.latency_cdf(runs).get_suptitle().startswith("cut: interrupted at ")


def test_queue() -> None:
    figure = plots.queue(Results(by_hand()), bins=300)
    assert max(figure.axes[0].lines[0].get_ydata()) == 3
    assert figure.axes[0].lines[0].get_ydata()[-1] == 1  # the unfinished one
    assert png(figure).startswith(b"\x89PNG")


def test_pyplot_is_left_alone() -> None:
    if "matplotlib.pyplot" in sys.modules:
        import matplotlib.pyplot as plt

        assert plt.get_fignums() == []
