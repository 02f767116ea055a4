"""AIBrix's APA: its own cases, by hand, and simulations."""

from __future__ import annotations

import numpy as np
import pytest
from each import each

from hermes import simulate
from hermes.config import validate
from hermes.core.record import STARTING
from hermes.errors import InputError
from hermes.fleet.aibrix_rules import Rates, Tolerance, apa_replicas
from hermes.fleet.apa import Apa
from hermes.testing.fleet import AutoscalerContract

S = 1_000_000_000


@each("name, current, use, rates, expected", [
    ("basic_scale_up", 2, 45, Rates(), 3),
    ("scale_up_upto_ceiling", 2, 35, Rates(), 3),
    ("scale_up_upto_max_scale_up", 2, 90, Rates(), 4),
    ("scale_up_upto_max_scale_up_ceiling", 2, 90, Rates(2.5, 2), 5),
    ("basic_scale_down", 6, 20, Rates(), 4),
    ("scale_down_upto_ceiling", 6, 18, Rates(), 4),
    ("scale_down_upto_max_scale_down", 6, 10, Rates(), 3),
    ("scale_down_upto_max_scale_down_floor", 6, 5, Rates(2, 2.5), 2),
    ("no_scaling_as_within_up_tolerance", 2, 33, Rates(), 2),
    ("no_scaling_as_within_down_tolerance", 2, 27, Rates(), 2),
])
def test_cases_of_apa(name: str, current: int, use: float, rates: Rates, expected: int) -> None:
    """algorithm/apa_test.go, target 30."""
    assert apa_replicas(use, 30, current, Tolerance(), rates) == expected


@each("name, target, rates, expected", [("with one metrics source", 50, Rates(4, 2), 2),
                                        ("the second of multiple metrics source", 30, Rates(4, 2), 3)])
def test_cases_of_the_controller(name: str, target: float, rates: Rates, expected: int) -> None:
    """TestComputeDesiredReplicas: one replica with a use of 70."""
    assert apa_replicas(70, target, 1, Tolerance(), rates) == expected


def test_the_use_is_the_mean_of_the_window_by_hand() -> None:
    """Two replicas at (20 + 40) / 2 = 30, then at 60: the mean of both looks is 45, 1.5 times the target."""
    decider = validate(Apa, {"kind": "apa", "metric": "running", "target": 30}).decider()
    assert decider.asks(0, 2, [20.0, 40.0]) == 2
    assert decider.asks(10 * S, 2, [60.0, 60.0]) == 3
    assert decider.asks(185 * S, 2, [60.0, 60.0]) == 4   # the first look has left the window


def test_the_first_decisions_by_hand() -> None:
    """Eight users on one replica, a target of 2. The looks at 0 and 1 s find 0 and 8 sequences: the mean of 4 is twice
    the target, so that there are 2 replicas. At 2 s they are still starting: one pod answers, with 8. The mean of the
    three looks is 5.33, 2 x 2.67 is limited to 4."""
    results = simulate({
        "workload": {"requests": 40, "arrivals": {"kind": "closed_loop", "users": 8},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 1500}},
        "clients": [{"name": "llm", "count": 8, "model": "llama-3.1-8b", "device": "h100-sxm",
                     "fleet": {"start": 1, "start_up": {"total": 100.0}, "autoscaler": {
                         "kind": "apa", "metric": "running", "target": 2, "period": 1, "max": 4}}}]})
    started = [(client, time / S) for client, _, time, state in results.record.membership.tolist() if state == STARTING]
    assert started == [(1, 1.0), (2, 2.0), (3, 2.0)]


def test_runs_decide_as_single_steps_do() -> None:
    first, second = (simulate({
        "stepping": stepping,
        "workload": {"requests": 400, "arrivals": {"kind": "mmpp", "rates": [150, 5], "dwells": [3, 6]},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 32}},
        "clients": [{"name": "llm", "count": 4, "memory": {"num_blocks": 60},
                     "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
                     "fleet": {"start": 2, "start_up": {"total": 0.3}, "autoscaler": {
                         "kind": "apa", "metric": "kv_use", "target": 0.2, "period": 0.2, "window": 1.0,
                         "down_cooldown": 1.0}}}]}).record for stepping in ("runs", "every_step"))
    assert np.array_equal(first.membership, second.membership)
    assert (first.membership[:, 3] == STARTING).any()


def test_wrong_numbers_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="down_tolerance"):
        validate(Apa, {"kind": "apa", "metric": "running", "target": 1, "down_tolerance": 1.0})


class TestApa(AutoscalerContract):
    def make(self) -> Apa:
        return validate(Apa, {"kind": "apa", "metric": "running", "target": 2.0, "period": 0.2, "window": 1.0,
                              "down_cooldown": 0.6})
