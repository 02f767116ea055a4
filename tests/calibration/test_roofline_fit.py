"""Fitting the roofline's factors: steps made with known factors give them back; files, models left out, refusals."""

import json

import numpy as np
import pandas as pd
import pytest

from hermes.calibration.fit.roofline import data_set, errors, fit_card, fit_efficiency
from hermes.calibration.importers.priced import row_of, step_grid
from hermes.calibration.steps import STATS, MeasuredSteps, StepsHeader, save_steps
from hermes.cli import main
from hermes.errors import InputError
from hermes.hardware import HARDWARE, StepStats
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.efficiency import load_efficiency
from hermes.testing.hardware import batch


def thinned(every=9, noise=0.0, **options):
    """Steps priced by the shipped factors of H100 (or `efficiency=`), with noise if asked for."""
    model = HARDWARE.get("roofline").model_validate({"kind": "roofline", "device": "h100-sxm", **options}).build()
    grid = [row_of(phase, batch) for phase, part in step_grid()._asdict().items() for batch in part][::every]
    seconds = [model.step_ns(StepStats(**{name: row[name] for name in STATS})) / 1e9 for row in grid]
    factor = np.exp(np.random.default_rng(1).normal(0, noise, len(grid)))
    header = StepsHeader(
        name=f"{options['model']}-{options.get('dtype', 'bf16')}", hardware="h100-sxm", engine="roofline",
        model=options["model"], tensor_parallel=options.get("tp", 1), dtype=options.get("dtype", "bf16"),
        date="not measured", clock="computed", source="the roofline")
    return MeasuredSteps(header, pd.DataFrame(grid).assign(time_s=seconds * factor, excluded="", repetition=0))


@pytest.fixture(scope="module")
def card():
    return load_device("h100-sxm")


@pytest.mark.feature("Measuring and fitting", "`hermes fit-roofline`")
def test_known_factors_price_steps_nobody_showed_the_fit(card):
    sets = [data_set(thinned(model=model, tp=tp, efficiency="h200", noise=0.02))
            for model, tp in (("llama-3.1-8b", 1), ("llama-3.1-8b", 4), ("llama-3.1-70b", 4))]
    found, eight = fit_efficiency(sets, card)
    assert eight is None
    unseen = data_set(thinned(model="qwen3-32b", tp=4, efficiency="h200"))
    assert errors(unseen, card, found).mape < 0.02
    assert abs(errors(unseen, card, found).bias) < 0.02


def test_each_model_is_left_out_in_turn(card):
    sets = [data_set(thinned(every=25, model=model, dtype=dtype))
            for model in ("llama-3.1-8b", "qwen3-32b") for dtype in ("bf16", "fp8")]
    _, eight, rows = fit_card(sets, card)
    assert eight is not None
    assert [row.steps for row in rows] == [one.name for one in sets]
    assert max(row.mape for row in rows) < 0.05
    one, two = fit_card(sets[:2], card)[2]   # one model: its configurations
    assert one.steps == f"{sets[0].name} (configurations in 5 parts)"
    assert one.points == len(sets[0].seconds)
    assert max(one.mape, two.mape) < 0.05


def test_only_eight_bit_steps_are_refused(card):
    with pytest.raises(InputError, match="weights of 16 bits"):
        fit_efficiency([data_set(thinned(every=50, model="llama-3.1-8b", dtype="fp8"))], card)


def test_command_writes_factors_a_scenario_can_name(tmp_path, capsys):
    paths = []
    for model in ("llama-3.1-8b", "qwen3-32b"):
        steps = thinned(every=25, model=model)
        paths.append(tmp_path / f"{model}.yaml")
        save_steps(MeasuredSteps(steps.header, steps.rows), paths[-1])
    out = tmp_path / "mine.yaml"
    assert main(["fit-roofline", *map(str, paths), "--device", "h100-sxm", "-o", str(out)]) == 0
    assert "held out" in capsys.readouterr().out
    file = load_efficiency(str(out))
    assert file.device == "h100-sxm"
    assert len(file.held_out) == 2
    component = HARDWARE.get("roofline").model_validate(
        {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm", "efficiency": "mine.yaml"}
    )
    stats = batch([(1000, 0)], [500] * 8)
    shipped = HARDWARE.get("roofline").model_validate(
        {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}
    ).build()
    assert component.build(tmp_path).step_ns(stats) == pytest.approx(shipped.step_ns(stats), rel=0.05)
    assert main(["fit-roofline", *map(str, paths), "--device", "h100-sxm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["held_out"]
    assert main(["fit-roofline", str(paths[0]), "--device", "h10"]) == 2
    assert "did you mean" not in capsys.readouterr().out
