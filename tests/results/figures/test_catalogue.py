"""The catalogue of figures: every place exists, is named once, and is what tables, sweeps and comparisons use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hermes.api import simulate
from hermes.explore.capacity.text import SHOWN
from hermes.explore.size.text import GOOD, HOUR, MILLION, PER_J
from hermes.explore.sweep.figures import figures
from hermes.explore.sweep.table import COLUMNS, SOMETIMES
from hermes.results.assumes import HEADLINES
from hermes.results.charts.report_page import ROWS
from hermes.results.compare import _USAGE
from hermes.results.compare.compare_verdict import COMPARED
from hermes.results.figures.catalogue import FIGURES, LATENCIES, Figure, figure_at, limit_name
from hermes.units import unit_of

PACKAGE = Path(__file__).resolve().parents[3] / "hermes"
PAGE = (PACKAGE.parent / "docs" / "reference" / "results.md").read_text(encoding="utf-8")
NOT_IN_A_PLAIN_RUN = ("notes.", "believed.", "fleet.", "cache.", "latency.prefill_ttft_s.", "attempts.migrations.",
                      "incidents.", "fleet_slo.")
"""A pipeline, a router, a fleet, a prefix cache, a hand-over, a gateway or a failure has them."""


def test_every_figure_of_a_plain_run_is_in_its_summary() -> None:
    found = figures(simulate("quickstart", overrides=["workload.requests=20"]))
    missing = [path for path in FIGURES if path not in found and not path.startswith(NOT_IN_A_PLAIN_RUN)]
    assert not missing
    for path, figure in FIGURES.items():   # the last key, or the one before a statistic, is on the page
        keys = [key for key in path.split(".") if key != "*"]
        key = keys[-2] if keys[0] in ("latency", "notes") else keys[-1]
        assert keys[0] in ("notes", "devices") or f"`{key}`" in PAGE, figure


def test_units_are_those_of_exported_columns() -> None:
    for path, figure in FIGURES.items():
        unit = {"1": "", "USD": "$", "1/s": "requests/s"}.get(unit_of(path), unit_of(path))
        if not path.endswith("_per_hour"):   # exported as a number
            assert figure.unit == unit, path


def test_a_figure_has_one_name() -> None:
    by_name: dict[str, set[str]] = {}
    for path, figure in FIGURES.items():
        by_name.setdefault(figure.label, set()).add(path.rpartition(".")[2] if "latency" not in path else path)
    assert not {name: places for name, places in by_name.items() if len(places) > 1}
    assert all(figure.better in (-1, 0, 1) for figure in FIGURES.values())
    assert all(figure.better for figure in FIGURES.values() if figure.judged), "what is judged has a direction"


def test_what_names_figures_takes_them_from_the_catalogue() -> None:
    for place in (*HEADLINES.values(), *COMPARED, *_USAGE, *ROWS, *SHOWN, GOOD, HOUR, MILLION, PER_J,
                  *(path for _, _, path, _ in (*COLUMNS, *SOMETIMES))):
        assert place in FIGURES
    words = [figure.words for figure in FIGURES.values() if " " in figure.words and len(figure.words) > 20]
    again = [(path.name, word) for path in PACKAGE.rglob("*.py") if path.name != "catalogue.py"
             for word in words if f'"{word}"' in path.read_text(encoding="utf-8")]
    assert not again, "a name that is written a second time"


def test_a_figure_of_a_group_whose_name_has_dots() -> None:
    figure, group = figure_at("believed.balance.a.b.jain")
    assert (figure.path, group) == ("believed.balance.*.jain", "a.b")
    assert figure_at("fleet.chat.ready_mean")[1] == "chat"
    assert figure_at("headline.served_per_s") == (FIGURES["headline.served_per_s"], "")
    with pytest.raises(KeyError):
        figure_at("headline.nothing")


def test_words_by_hand() -> None:
    dollars = FIGURES["headline.per_million_answer_tokens_dollars"]
    assert dollars.label == "$ per million tokens of answers"
    assert dollars.dollars("0.5") == "$0.5 per million tokens of answers"
    assert dollars.dollars("0.5", short=True) == "$0.5/M answer tokens"
    assert FIGURES["headline.served_per_s"].label == "served, requests/s"
    assert FIGURES["latency.ttft_s.p99"].label == "TTFT p99"
    assert Figure("a", "b").label == Figure("a", "b").words == "b"
    assert limit_name("ttft", 99.0) == "TTFT p99"
    assert limit_name("tpot_p50", None) == "TPOT p50"
    assert re.fullmatch("[A-Z0-9]+", LATENCIES["e2e"])
