"""The study of scaling: what bisection learns, and a small search end to end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.studies import Context, scaling
from hermes.studies.scaling import HIGHEST, Search, split


def _point(share, stable=True):
    return {"share_25": share, "share_50": share, "stable": stable}


@given(st.integers(0, HIGHEST - 1))
def test_bisection_finds_the_highest_rate(answer):
    search, asked = Search("fp8", "chunked", 4, 25), {}
    while search.open:
        step = search.next
        assert step not in search.fine
        asked["fp8", "chunked", 4, step] = _point(0.99 if step <= answer else 0.98)
        search.learn(asked)
    assert search.low == answer
    assert search.contradictions == 0
    assert len(asked) <= HIGHEST.bit_length()


def test_only_points_of_its_own_system_count():
    search = Search("fp8", "chunked", 4, 25)
    search.learn({("bf16", "chunked", 4, 5): _point(1.0), ("fp8", "chunked", 8, 5): _point(1.0)})
    assert not search.fine
    search.learn({("fp8", "chunked", 4, search.next): _point(1.0, stable=False)})
    assert (search.low, search.high) == (0, HIGHEST // 2)


def test_sixty_percent_prefill():
    assert [split(count) for count in scaling.COUNTS] == ["1P/1D", "2P/2D", "5P/3D", "10P/6D", "19P/13D"]


def test_a_search_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(scaling, "QUICK_COUNTS", (2,))
    monkeypatch.setattr(scaling, "WEIGHTS", {"fp8": {}})
    monkeypatch.setattr(scaling, "HIGHEST", 8)
    monkeypatch.setattr(scaling, "STEP", 1.0)
    monkeypatch.setattr(scaling, "CLIENT_SECONDS", 60)
    monkeypatch.setattr(scaling, "SHORTEST_S", 10)
    monkeypatch.setattr(scaling, "Search", lambda *key: Search(*key, high=8))
    report = scaling.Scaling().run(Context("scaling", tmp_path, quick=True, workers=0))
    table = report.tables[0].frame
    assert len(table) == 2 * 3
    assert table["2"].between(0, 7).all()
    # whoever reads at 50 tokens/s reads at 25
    wide = table.pivot_table(index="batching", columns="tokens/s", values="2")
    assert (wide[50] <= wide[25]).all()
    every = report.tables[1].frame
    found = every[every.rate > 0]
    assert (found.share >= scaling.SHARE).all()
    assert len(found)


def test_keeps():
    assert scaling.keeps(_point(0.99), 25)
    assert scaling.keeps(_point(0.995, stable=None), 50)
    assert not scaling.keeps(_point(0.9899), 25)
    assert scaling.Search("fp8", "chunked", 2, 25).next == HIGHEST // 2
    assert pytest.approx(scaling.window_s(2, False)) == max(scaling.SHORTEST_S, scaling.CLIENT_SECONDS / 2)
