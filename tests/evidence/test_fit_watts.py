"""The fit of a card's watts: finds what made synthetic loads, leaves out groups, and holds on measured servers."""


import numpy as np
import pytest
from outside import OUTSIDE
from scripts_loaded import load

from evidence.accuracy.watts import ServedLoad, error, fit_watts, left_out
from hermes.errors import InputError
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.power import limited_compute, watts

DATA = OUTSIDE / "data"
FIXED = {"serving": 200.0, "most": 700.0}


def loads(memory=300.0, token_j=0.03, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    compute = limited_compute(200.0, 700.0)
    out = []
    for model in ("a", "b", "c"):
        for tp in (1, 2):
            for size in (8, 64, 512):
                parts = (rng.uniform(0.1, 1.0, 4), rng.uniform(0, 0.3, 4), rng.uniform(0.1, 0.8, 4),
                         size * rng.uniform(5, 20, 4))
                seconds, used, moved, tokens = parts
                drawn = np.minimum(200.0 + compute * used + memory * moved + token_j * tokens, 700.0)
                mean = float((drawn * seconds).sum() / seconds.sum()) * (1 + noise * rng.standard_normal())
                out.append(ServedLoad(model, tp, f"{size} sequences", mean, *parts))
    return out


def test_finds_the_watts_that_made_the_loads():
    power = fit_watts(loads(), ("memory", "token_j"), **FIXED)
    assert power.memory == pytest.approx(300.0, rel=1e-3)
    assert power.token_j == pytest.approx(0.03, rel=1e-3)
    assert power.compute == pytest.approx(500.0 / 0.72)
    noisy = fit_watts(loads(noise=0.03), ("memory", "token_j"), **FIXED)
    assert noisy.memory == pytest.approx(300.0, rel=0.15)
    serving = fit_watts(loads(), ("serving", "memory"), token_j=0.03, most=700.0)
    assert serving.serving == pytest.approx(200.0, rel=1e-3)
    assert serving.memory == pytest.approx(300.0, rel=1e-3)


def test_what_is_left_out_is_not_fitted():
    """A model that draws 20% more than the others: the fit without it does not see it, and is 1 / 1.2 - 1 off there."""
    odd = [load._replace(measured_w=1.2 * load.measured_w) if load.model == "c" else load for load in loads()]
    found = {each.name: each for each in left_out(odd, lambda load: load.model, ("memory", "token_j"), **FIXED)}
    assert set(found) == {"a", "b", "c"}
    assert found["c"].errors == pytest.approx(np.full(6, 1 / 1.2 - 1), abs=1e-3)
    assert found["c"].power.memory == pytest.approx(300.0, rel=1e-3)
    assert abs(found["a"].median) > 0.01
    assert found["c"].worst == pytest.approx(-1 / 6, abs=1e-3)
    assert left_out(odd, lambda load: "all", ("memory",), serving=200.0, most=700.0, token_j=0.03) == []


def test_needs_as_many_loads_as_figures():
    with pytest.raises(InputError, match="at least 2 loads"):
        fit_watts(loads()[:1], ("memory", "token_j"), **FIXED)


def test_a_load_is_the_mean_over_its_time():
    load = ServedLoad("m", 1, "1", 400.0, np.array([1.0, 3.0]), np.zeros(2), np.array([1.0, 0.0]), np.zeros(2))
    power = fit_watts(loads(), ("memory", "token_j"), **FIXED)
    assert load.predicted_w(power) == pytest.approx((float(watts(power, 0.0, 1.0)) + 3 * 200.0) / 4)
    assert error(load, power) == pytest.approx(load.predicted_w(power) / 400 - 1)


@pytest.mark.feature("Hardware", "Watts by what a card does, with class and range")
@pytest.mark.long
@pytest.mark.outside("data/h100/ml-energy")
def test_shipped_watts_are_the_fit_and_hold_on_models_left_out():
    """What `scripts/fit_watts.py` prints: the shipped figures of each card, medians of what was left out within 10%."""
    script = load("scripts/fit_watts.py")
    found = script.tables(DATA)
    assert set(found) == {"a100-80gb", "h100-sxm", "b200"}
    for card, fitted in found.items():
        shipped = load_device(card).power
        for name in ("serving", "memory", "compute", "most"):
            assert getattr(fitted.power, name) == pytest.approx(getattr(shipped, name), rel=0.02), (card, name)
        assert fitted.power.token_j == pytest.approx(shipped.token_j, abs=0.001)
        for part in fitted.left_out:
            assert abs(part.median) < 0.10, (card, part.name)
            assert abs(part.worst) < 0.15, (card, part.name)
