"""Interpolation tables: splitwise-sim's semantics, the options, and refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.config.validation import validate
from hermes.errors import InputError
from hermes.hardware import HARDWARE
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.fitted.table import TableModel, Tables, load_table
from hermes.testing.hardware import batch, columns_of

PROVENANCE = {"source": "t", "hardware": "h", "engine": "e", "model": "m", "dtype": "bf16", "date": "2026"}


def tables(prefill, decode, **more):
    data = {"format": "hermes-table/1", "name": "t", "provenance": PROVENANCE}
    data["prefill"] = {"x": "prefill_tokens", "points": prefill}
    data["decode"] = {"x": "decode_seqs", "points": decode}
    return validate(Tables, data | more, "t.yaml")


POINTS = [[128, 0.058], [256, 0.052], [512, 0.054], [1024, 0.078]]
DECODE = [[128, 0.030], [256, 0.028], [512, 0.031]]


@pytest.mark.feature("Hardware", "Whole-step tables: `table`")
def test_lines_between_points_and_beyond():
    model = TableModel(tables(POINTS, DECODE), monotone=False)
    times = {x: model.step_ns(batch([(x, 0)], [])) for x in (1, 128, 192, 512, 768, 1024, 2048)}
    assert times == {
        1: 63_953_125, 128: 58_000_000, 192: 55_000_000, 512: 54_000_000, 768: 66_000_000, 1024: 78_000_000,
        2048: 126_000_000,
    }
    assert model.step_ns(batch([], [5000] * 64)) == 31_000_000  # before the first x: 128
    assert model.run_ns(batch([], [5000] * 128), 3).tolist() == [30_000_000] * 3


def test_mixed_steps_take_a_multiple_of_the_prefill_table_at_all_tokens():
    assert TableModel(tables(POINTS, DECODE), monotone=False).step_ns(batch([(500, 0)], [9] * 12)) == 59_400_000
    double = TableModel(tables(POINTS, DECODE), mixed_factor=2.0, monotone=False)
    assert double.step_ns(batch([(500, 0)], [9] * 12)) == 108_000_000


def test_a_mixed_table_replaces_the_factor():
    own = tables(POINTS, DECODE, mixed={"x": "decode_ctx", "points": [[100, 0.1], [200, 0.2]]})
    assert TableModel(own).run_ns(batch([(500, 0)], [60, 60]), 3).tolist() == [120_000_000, 122_000_000, 124_000_000]


def test_ends_are_held_without_extrapolation():
    model = TableModel(tables(POINTS, DECODE), extrapolate=False, monotone=False)
    assert [model.step_ns(batch([(x, 0)], [])) for x in (1, 5000)] == [58_000_000, 78_000_000]


def test_an_extended_line_stops_at_half_of_the_shortest_time():
    model = TableModel(tables(POINTS, [[10, 0.03], [20, 0.02]]), monotone=False)
    times = [model.step_ns(batch([], [1] * n)) for n in (20, 25, 30, 31, 99)]
    assert times == [20_000_000, 15_000_000, 10_000_000, 10_000_000, 10_000_000]


def test_more_work_is_never_cheaper_where_measured_times_fall():
    model = TableModel(tables(POINTS, [[10, 0.030], [20, 0.024], [40, 0.030], [80, 0.030]]))
    prefill = {x: model.step_ns(batch([(x, 0)], [])) for x in (1, 128, 256, 512, 1024, 2048)}
    # 58 ms at 128 tokens is above the 52 of 256 and the 54 of 512: together the three take as long as they did; past
    # the last point the line is as steep as from 512 on
    assert prefill == {1: 54_250_000, 128: 54_250_000, 256: 54_250_000, 512: 55_500_000, 1024: 78_000_000,
                       2048: 123_000_000}
    decode = {n: model.step_ns(batch([], [1] * n)) for n in (1, 10, 20, 40, 80, 160)}
    assert decode == {1: 27_000_000, 10: 27_000_000, 20: 27_000_000, 40: 30_000_000, 80: 30_000_000, 160: 30_000_000}


def test_a_table_that_ends_in_a_fall_still_grows():
    model = TableModel(tables([[512, 0.1], [1024, 0.2], [2048, 0.41], [2064, 0.40]], DECODE))
    times = [model.step_ns(batch([(x, 0)], [])) for x in (2048, 2064, 4 * 2064)]
    assert times[0] == 405_000_000
    assert times[1] == 405_000_000
    assert 3 < times[2] / times[1] < 5


def test_a_step_with_both_phases_takes_at_least_as_long_as_either():
    own = tables(POINTS, [[1, 0.09], [10, 0.2]], mixed={"x": "decode_ctx", "points": [[100, 0.01], [200, 0.02]]})
    model = TableModel(own)
    assert model.step_ns(batch([(1024, 0)], [50])) == 90_000_000    # the decode alone
    assert model.step_ns(batch([(2048, 0)], [50])) == 123_000_000   # the prompt alone
    assert model.run_ns(batch([(1024, 0)], [50]), 2).tolist() == [90_000_000] * 2
    assert TableModel(own, monotone=False).step_ns(batch([(1024, 0)], [150])) == 15_000_000


def test_steps_outside_the_table_are_counted():
    model = TableModel(tables(POINTS, DECODE), monotone=False)
    stats = [
        batch([(127, 0)], []), batch([(128, 0)], []), batch([(1025, 0)], []), batch([], [9] * 127),
        batch([], [9] * 128), batch([(120, 0)], [9] * 8), batch([(120, 0)], [9] * 7),
    ]
    out = model.out_of_range(columns_of(stats), np.full(7, 3))
    assert out.tolist() == [3, 0, 3, 3, 0, 0, 3]


SHIPPED = [load_table(name) for name in names_in("tables")]


@given(st.integers(1, 100_000), st.integers(1, 600))
def test_shipped_tables_follow_numpy_inside(tokens, seqs):
    for data in SHIPPED:
        model = TableModel(data, monotone=False)
        x, y = np.transpose(data.prefill.points)
        if x[0] <= tokens + seqs <= x[-1]:
            expected = 1.1e9 * np.interp(tokens + seqs, x, y)
            assert abs(model.step_ns(batch([(tokens, 7)], [3] * seqs)) - expected) <= 1
        x, y = np.transpose(data.decode.points)
        # below 128 splitwise-sim extends the first line
        line = y[0] + (y[1] - y[0]) / (x[1] - x[0]) * (seqs - x[0]) if seqs < x[0] else np.interp(seqs, x, y)
        assert abs(model.step_ns(batch([], [7] * seqs)) - 1e9 * line) <= 1


# scipy's interp1d over the medians of perf_model.csv, as splitwise-sim calls it; seconds, for 1500 prompt tokens, the
# same beside 40 decodes, 40,000 prompt tokens, and 1, 40 and 200 decodes
SPLITWISE_SIM = {
    "splitwise-2023-llama-2-70b-h100-tp8": (
        0.104058794, 0.116902692, 3.547502382, 0.031466219, 0.030976859, 0.028969225),
    "splitwise-2023-bloom-176b-h100-tp8": (
        0.187880647, 0.211814092, 6.088728757, 0.035327248, 0.035453766, 0.035972814),
}


@pytest.mark.parametrize("name", SPLITWISE_SIM)
def test_what_splitwise_sim_answers(name):
    model = HARDWARE.get("table").model_validate({"kind": "table", "profile": name, "monotone": False}).build()
    steps = [
        batch([(1500, 0)], []), batch([(1000, 0), (500, 0)], [77] * 40), batch([(40_000, 0)], []),
        batch([], [77]), batch([], [77] * 40), batch([], [77] * 200),
    ]
    assert [model.step_ns(stats) / 1e9 for stats in steps] == pytest.approx(SPLITWISE_SIM[name], rel=1e-8, abs=1e-9)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([[1, 0.1]], "prefill.points: "),
        ([[1, 0.1], [1, 0.2]], r"prefill.points.1: expected x above 1, found 1"),
        ([[1, 0.1], [2, 0.0]], r"prefill.points.1: expected x >= 0 and 0 < seconds"),
        ([[-1, 0.1], [2, 0.1]], r"prefill.points.0: "),
        ([[1, 0.1], [2, float("nan")]], r"prefill.points.1.1: expected a finite number, found nan"),
        ([[1, 0.1], [2]], r"prefill.points.1: "),
        ([[1, "a"], [2, 0.1]], r"prefill.points.0.1: expected a number, found 'a'"),
        ("junk", r"prefill.points: expected a list, found 'junk'"),
    ],
)
def test_bad_points_are_refused(points, message):
    with pytest.raises(InputError, match=r"t\.yaml: " + message):
        tables(points, DECODE)


def test_unknown_features_are_refused():
    with pytest.raises(InputError, match="'sampled'"):
        tables(POINTS, DECODE, mixed={"x": "sampled", "points": POINTS})
