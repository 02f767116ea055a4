from __future__ import annotations

import sys

import pytest
from synthetic_records import by_hand, large_record, random_record

from hermes.errors import InputError
from hermes.results import plots
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
    results = Results(large_record(200, clients=10, tokens=10))
    figure = plots.client_timeseries(results, bins=20)
    assert [len(axis.lines) for axis in figure.axes] == [plots.MAX_CLIENTS] * 3
    chosen = plots.client_timeseries(Results(by_hand()), ["llm-b"])
    assert [len(axis.lines) for axis in chosen.axes] == [1] * 3
    assert max(chosen.axes[2].lines[0].get_ydata()) == pytest.approx(25.0)
    with pytest.raises(InputError, match="a client"):
        plots.client_timeseries(results, ["nobody"])
    assert png(figure).startswith(b"\x89PNG")


def test_queue() -> None:
    figure = plots.queue(Results(by_hand()), bins=300)
    assert max(figure.axes[0].lines[0].get_ydata()) == 3
    assert figure.axes[0].lines[0].get_ydata()[-1] == 1  # the unfinished one
    assert png(figure).startswith(b"\x89PNG")


def test_pyplot_is_left_alone() -> None:
    if "matplotlib.pyplot" in sys.modules:
        import matplotlib.pyplot as plt

        assert plt.get_fignums() == []
