"""Step times with a factor for each phase and a fixed time."""

from __future__ import annotations

import numpy as np
import pytest

from hermes.hardware.base import HardwareModel, StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.fitted.adjusted import StepAdjustment
from hermes.hardware.roofline import Roofline
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.testing.hardware import MonotoneHardwareModelContract, batch

BASE = Roofline(model="llama-3.1-8b", device="h100-sxm").build()
PROMPT, DECODES, BOTH = batch([(500, 0)], []), batch([], [300] * 9), batch([(500, 0)], [300] * 9)


def adjusted(**figures: float) -> HardwareModel:
    return StepAdjustment.model_validate(figures).apply(BASE)


class TestSlowPrompts(MonotoneHardwareModelContract):
    largest = {"tokens": 8192, "past": 8192, "seqs": 256, "context": 32768}

    def make(self) -> HardwareModel:
        return adjusted(prompts=1.7, decodes=0.8, fixed=0.002)


class TestSlowDecodes(TestSlowPrompts):
    def make(self) -> HardwareModel:
        return adjusted(prompts=0.3, decodes=1.4)


class TestOverNamedTerms(TestSlowPrompts):
    def make(self) -> HardwareModel:
        base = Composed(model="llama-3.1-8b", device="h100-sxm").build()
        return StepAdjustment(prompts=1.2, decodes=1.1, fixed=0.001).apply(base)


@pytest.mark.parametrize(("stats", "figures", "ns"), [
    (PROMPT, {"prompts": 1.5, "decodes": 3.0}, 1.5 * BASE.step_ns(PROMPT)),
    (DECODES, {"prompts": 1.5, "decodes": 3.0}, 3.0 * BASE.step_ns(DECODES)),
    (BOTH, {"prompts": 2.0, "decodes": 2.0, "fixed": 0.001}, 2.0 * BASE.step_ns(BOTH) + 1e6),
    (BOTH, {"prompts": 1.5, "decodes": 3.0}, 1.5 * BASE.step_ns(BOTH) + 1.5 * BASE.step_ns(DECODES)),
    (BOTH, {"prompts": 3.0, "decodes": 1.5}, 1.5 * BASE.step_ns(BOTH) + 1.5 * BASE.step_ns(PROMPT)),
])
def test_each_kind_of_step(stats: StepStats, figures: dict[str, float], ns: float) -> None:
    assert adjusted(**figures).step_ns(stats) == pytest.approx(ns, abs=1)
    assert adjusted(**figures).run_ns(stats, 3)[0] == adjusted(**figures).step_ns(stats)


def test_nothing_changed_is_the_model_itself() -> None:
    assert adjusted() is BASE


def test_a_client_takes_it() -> None:
    client = {"model": "llama-3.1-8b", "device": "h100-sxm"}
    scenario = {"workload": {"requests": 1, "arrivals": {"kind": "at_once"},
                             "lengths": {"kind": "fixed", "prompt": 900, "output": 50}}}

    def ends(**more: object) -> np.ndarray:
        record = build(load_scenario({**scenario, "clients": [{**client, **more}]})).run()
        return np.asarray(record.stages["end_ns"] - record.stages["start_ns"])

    plain, slow = ends(), ends(adjust={"prompts": 2, "decodes": 2})
    assert slow[0] / plain[0] == pytest.approx(2.0, rel=0.1)   # the idle engine's first step is not a step's time
    later = ends(adjust={"fixed": "1 ms"}) - plain
    assert later[0] == pytest.approx(50e6, rel=0.01)
