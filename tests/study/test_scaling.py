"""The study of scaling: what bisection learns, and a small search end to end."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.study import load_study

STUDY = load_study("scaling")
scaling = STUDY.module("report")
HIGHEST, split, System = scaling.HIGHEST, scaling.split, scaling.System
RATES = [step * scaling.STEP for step in range(1, HIGHEST)]


def _point(share, stable=True):
    return {"share_25": share, "share_50": share, "stable": stable}


def _search(weights, strategy, count, speed):
    return scaling.asked(weights, strategy, count, speed, 0.99).search


@given(st.integers(0, HIGHEST - 1))
def test_bisection_finds_the_highest_rate(answer):
    search, asked = _search("fp8", "chunked 256", 4, 25), {}
    while search.open:
        place = search.next
        assert place not in search.rows
        row = _point(0.99 if place < answer else 0.98)
        asked[System("fp8", "chunked 256", 4), search.rates[place]] = row
        search.learn(asked)
    assert search.low == answer - 1
    assert search.highest == (RATES[answer - 1] if answer else None)
    assert search.contradictions == 0
    assert len(asked) <= HIGHEST.bit_length()


def test_only_points_of_its_own_system_count():
    search = _search("fp8", "chunked 256", 4, 25)
    search.learn({(System("bf16", "chunked 256", 4), RATES[4]): _point(1.0),
                  (System("fp8", "chunked 256", 8), RATES[4]): _point(1.0)})
    assert not search.rows
    search.learn({(System("fp8", "chunked 256", 4), RATES[search.next]): _point(1.0, stable=False)})
    assert (search.low, RATES[search.high]) == (-1, HIGHEST // 2 * scaling.STEP)


def test_sixty_percent_prefill():
    assert [split(count) for count in scaling.COUNTS] == ["1P/1D", "2P/2D", "5P/3D", "10P/6D", "19P/13D"]


@pytest.mark.long
def test_a_search_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(scaling, "QUICK_COUNTS", (2,))
    monkeypatch.setattr(scaling, "WEIGHTS", {"fp8": {}})
    monkeypatch.setattr(scaling, "HIGHEST", 8)
    monkeypatch.setattr(scaling, "STEP", 1.0)
    monkeypatch.setattr(scaling, "CLIENT_SECONDS", 60)
    monkeypatch.setattr(scaling, "SHORTEST_S", 10)
    report = scaling.run(STUDY.context(tmp_path, quick=True, workers=0))
    table = report.tables[0].frame
    assert len(table) == 2 * 4
    assert table["2"].between(0, 7).all()
    # whoever reads at 50 tokens/s reads at 25
    wide = table.pivot_table(index="batching", columns="tokens/s", values="2")
    assert (wide[50] <= wide[25]).all()
    every = report.tables[1].frame
    found = every[every.rate > 0]
    assert (found.share >= 0.99).all()
    assert len(found)
    best = scaling.best_budget(every)
    assert set(best.batching) == {"continuous", "chunked", "disaggregated"}
    for speed, group in every[every.batching.str.startswith("chunked")].groupby("tokens/s"):
        assert best[(best.batching == "chunked") & (best["tokens/s"] == speed)].rate.item() == group.rate.max()


def test_the_figures_of_the_paper():
    """Eight clients: each speed has a row, and what is kept from 25 to 50 tokens/s by hand."""
    every = pd.DataFrame([
        {"weights": "fp8", "tokens/s": speed, "batching": batching, "clients": 8, "rate": rate, "then": "speed",
         "peak": 0.4}
        for speed, rates in ((25, (2.0, 7.0, 3.0, 5.0)), (50, (0.2, 0.35, 0.1, 1.0)))
        for batching, rate in zip(("continuous", "chunked 256", "chunked 2048", "disaggregated"), rates, strict=True)])
    name, rows = "fp8, 8 clients", {one.name: one for one in scaling.compared(every)}
    rates = rows[f"{name}: requests/s and client at 25 tokens/s"]
    assert (rates.here, rates.verdict) == ("chunked 7.00, disaggregated 5.00, continuous 2.00", "agrees")
    assert rates.why.startswith("chunked 256 ends by speed, KV 40% full; ")
    ratio = rows[f"{name}: chunked over disaggregated at 25 tokens/s"]
    assert (ratio.here, ratio.verdict) == (pytest.approx(1.4), "agrees")
    assert ratio.why == "tokens a step: 256 1.40, 2048 0.60"
    kept = {one: rows[f"{name}: share of the rate kept at 50 tokens/s, {one}"]
            for one in ("chunked", "disaggregated", "continuous")}
    assert {one: row.here for one, row in kept.items()} == pytest.approx(
        {"chunked": 0.05, "disaggregated": 0.2, "continuous": 0.1})
    assert [row.verdict for row in kept.values()] == ["agrees", "agrees", "-"]
    assert len(rows) == 5
    bf16 = scaling.compared(every.assign(weights="bf16", rate=every.rate * (every["tokens/s"] == 25)))
    assert len(bf16) == 2   # nothing reads at 50 tokens/s
    worse = scaling.compared(every.assign(rate=every.rate.where(every.batching != "chunked 256", 1.0)))
    assert [row.verdict for row in worse[:2]] == ["differs", "differs"]


def test_keeps():
    assert scaling.keeps(_point(0.99), 25)
    assert scaling.keeps(_point(0.995, stable=None), 50)
    assert not scaling.keeps(_point(0.9899), 25)
    assert RATES[_search("fp8", "chunked 256", 2, 25).next] == HIGHEST // 2 * scaling.STEP
    assert pytest.approx(scaling.window_s(2, False)) == max(scaling.SHORTEST_S, scaling.CLIENT_SECONDS / 2)
