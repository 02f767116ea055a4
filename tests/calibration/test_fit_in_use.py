"""A fitted profile in a simulation: its file is read, its prices are used, steps outside its range are counted."""

import numpy as np
import pytest
from machines import gpu_and_mixed_steps

import hermes
from hermes.calibration.fit import fit_steps, write_profile
from hermes.hardware import StepStats
from hermes.hardware.fitted.polynomial import PolynomialModel
from hermes.hardware.fitted.profile import Profile
from hermes.hardware.fitted.terms import feature_columns
from hermes.testing.hardware import FIELDS, batch


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    result = fit_steps(gpu_and_mixed_steps(mixed=1.0, every=8), "made-up-gpu")
    write_profile(result, folder / "gpu.yaml")
    return folder / "gpu.yaml", result.profile


def scenario(path, **changes):
    return {
        "seed": 3,
        "workload": {
            "requests": 120, "arrivals": {"kind": "poisson", "rate": 30},
            "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 10, "max": 12_000},
                        "output": {"kind": "uniform", "min": 2, "max": 300}},
        },
        "clients": [{
            "name": "gpu", "hardware": {"kind": "polynomial", "profile": str(path)}, "scheduler": {"kind": "chunked"},
            "memory": {"num_blocks": 40_000},
        }],
    } | changes


def outside(profile: Profile, columns) -> np.ndarray:
    """Which steps leave the measured range of their phase, feature by feature."""
    values = feature_columns(columns)
    prefills, decodes = values["prefill_tokens"] > 0, values["decode_seqs"] > 0
    out = np.zeros(len(prefills), dtype=bool)
    for phase, rows in ((profile.phases.prefill, ~decodes), (profile.phases.decode, ~prefills),
                        (profile.phases.mixed, prefills & decodes)):
        for name, (low, high) in phase.range.items():
            out |= rows & ((values[name] < low) | (values[name] > high))
    return out


def test_steps_outside_the_measured_range_are_counted_in_the_results(fitted):
    path, profile = fitted
    single = hermes.simulate(scenario(path), stepping="every_step")
    runs = single.columns("runs")
    expected = outside(profile, {name: runs[name] for name in FIELDS})
    assert 0 < expected.sum() < len(expected)
    assert single.summary["steps"]["out_of_range"] == expected.sum()
    assert single.summary["steps"]["out_of_range_share"] == pytest.approx(expected.mean())
    assert single.summary["clients"]["gpu"]["out_of_range_steps"] == expected.sum()
    together = hermes.simulate(scenario(path))
    assert len(together.columns("runs")["prefill_tokens"]) < len(expected)
    assert together.summary["steps"]["out_of_range"] == expected.sum()
    assert together.summary["latency"] == single.summary["latency"]


def test_a_profile_without_a_range_has_nothing_outside_it(fitted, tmp_path):
    data = fitted[1].model_dump()
    for phase in data["phases"].values():
        phase["range"] = {}
    everywhere = Profile.model_validate(data)
    rows = [batch([(10**6, 0)], []), batch([], [10**6] * 999), batch([(1, 1)], [1])]
    columns = {name: np.array([getattr(stats, name) for stats in rows]) for name in FIELDS}
    assert PolynomialModel(everywhere).out_of_range(columns, np.ones(3, dtype=np.int64)).tolist() == [0, 0, 0]
    assert PolynomialModel(fitted[1]).out_of_range(columns, np.ones(3, dtype=np.int64)).tolist() == [1, 1, 1]


def test_steps_take_as_long_as_the_profile_says(fitted):
    path, profile = fitted
    results = hermes.simulate(scenario(path), stepping="every_step")
    runs, model = results.columns("runs"), PolynomialModel(profile)
    took = np.rint(1e9 * (runs["end_s"] - runs["start_s"]))
    priced = [
        model.step_ns(StepStats(**{name: int(runs[name][i]) for name in FIELDS})) for i in range(len(took))
    ]
    assert took.tolist() == pytest.approx(priced, rel=1e-8, abs=1)  # the file has nine digits
