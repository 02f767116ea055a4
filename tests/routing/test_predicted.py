"""The router that predicts latency: its estimates by hand, its choices, what it learns, and the contract.

By hand a step takes 1,000 ns, 100 ns more for each prompt token that it computes, and 10 ns for each running sequence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hermes.api import simulate
from hermes.errors import InputError
from hermes.routing import ROUTERS
from hermes.routing.latency import Fitted, LeastSquares, Load, StepTimes
from hermes.scenario import load_scenario
from hermes.testing.routers import RouterContract


class Steps:
    name = "steps"

    def step_estimate_ns(self, prompt_tokens: int, past_tokens: int, decode_seqs: int, decode_tokens: int) -> int:
        return 1000 + 100 * prompt_tokens + 10 * decode_seqs


def estimate(load: Load, budget: int = 50) -> tuple[int, int]:
    found = StepTimes([Steps()], [budget]).of(0, load)
    assert found is not None
    return round(found.ttft_s * 1e9), round(found.tpot_s * 1e9)


@pytest.mark.feature("Routing and networks", "Router `predicted`: TTFT and TPOT from step times, or fitted online")
@pytest.mark.parametrize(("load", "ttft_ns", "tpot_ns"), [
    # one step of 30 tokens; then one of a single sequence
    (Load(0, 30, 0, 0, 0), 1000 + 3000, 1010),
    # 80 + 30 in steps of 50: two full ones, and 10
    (Load(80, 30, 0, 0, 0), 2 * 6000 + 2000, 1010),
    # exactly two full steps
    (Load(70, 30, 0, 0, 0), 2 * 6000, 1010),
    # 10 sequences leave 40 tokens of a step: 40, 40, 30; half of the step of 1,100 in flight before
    (Load(80, 30, 16, 10, 900), 550 + 2 * (1000 + 4000 + 100) + (1000 + 3000 + 100), 1110),
    # all of it is cached: one token is computed
    (Load(0, 0, 64, 0, 0), 1100, 1010),
])
def test_estimates_from_step_times(load: Load, ttft_ns: int, tpot_ns: int) -> None:
    assert estimate(load) == (ttft_ns, tpot_ns)


def test_without_a_budget_all_prompts_go_in_one_step() -> None:
    assert estimate(Load(80, 30, 0, 0, 0), budget=0)[0] == 1000 + 11000


def test_a_line_is_found_and_follows_a_change() -> None:
    line = LeastSquares(2, 0.9)
    for x in range(20):
        line.add([1.0, x / 10], 3 + 2 * x / 10)
    assert line.value([1.0, 5.0]) == pytest.approx(13, rel=1e-4)
    for x in range(200):
        line.add([1.0, x % 20 / 10], 1 + x % 20 / 10)
    assert line.value([1.0, 5.0]) == pytest.approx(6, rel=1e-4)
    assert line.value([1.0, -5.0]) == 0.0


def test_nothing_is_predicted_before_enough_was_seen() -> None:
    fitted = Fitted([0, 0, 1], 2, 1.0)
    load = Load(1000, 0, 0, 0, 0)
    for _ in range(2):
        assert fitted.of(1, load) is None
        fitted.seen_ttft(0, load, 0.5)
    assert fitted.of(1, load).ttft_s == pytest.approx(0.5, rel=1e-3)   # type: ignore[union-attr]  # just seen
    assert fitted.of(2, load) is None, "it has a line of its own"


def scenario(rate: float = 30.0, **router: Any) -> dict[str, Any]:
    """Two replicas of a slow device and two of a fast one."""
    def group(name: str, device: str) -> dict[str, Any]:
        return {"name": name, "count": 2, "model": "llama-3.1-8b", "memory": {"num_blocks": 4000},
                "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": device}}

    return {"workload": {"requests": 600, "arrivals": {"kind": "poisson", "rate": rate},
                         "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 100, "max": 3000},
                                     "output": {"kind": "uniform", "min": 5, "max": 40}}},
            "clients": [group("slow", "a100-80gb"), group("fast", "h100-sxm")],
            "router": {"kind": "predicted"} | router}


@pytest.mark.drawn
@pytest.mark.parametrize("more", [{}, {"view": "own"}, {"view": "exact"}])
def test_step_times_predict_what_comes(more: dict[str, Any]) -> None:
    """The error of the median request is below a quarter of the mean TTFT; round robin on the same load is slower."""
    run = simulate(scenario(**more))
    ttft = run.requests["ttft_s"].to_numpy()
    error = np.abs(run.requests["note_predicted_ttft_s"].to_numpy() - ttft)
    assert np.median(error) < 0.25 * ttft.mean()
    data = scenario()
    turns = simulate(data | {"router": {"kind": "round_robin"}}).requests["ttft_s"]
    assert ttft.mean() < 0.8 * turns.mean()
    clients = run.record.stages["client"]
    assert (clients >= 2).sum() > (clients < 2).sum()


def test_a_fit_comes_close_to_the_step_times() -> None:
    run = simulate(scenario(estimate="fit", per_client=True))
    noted, ttft = run.requests["note_predicted_ttft_s"].to_numpy(), run.requests["ttft_s"].to_numpy()
    learnt = ~np.isnan(noted)
    assert 0 < (~learnt).sum() < 300
    late = learnt & (np.arange(600) > 400)
    assert np.median(np.abs(noted - ttft)[late]) < 0.5 * ttft[late].mean()


def test_first_within_the_limits_keeps_later_clients_free() -> None:
    """Nearly no load: with a wide limit every request goes to the first client; with one that the slow device breaks
    for the longest prompts, only those go to the fast one."""
    wide = simulate(scenario(0.5, pick="first", ttft=5.0)).record.stages
    assert set(wide["client"].tolist()) == {0}
    narrow = simulate(scenario(0.5, pick="first", ttft=0.12)).record.stages
    fast = narrow["client"] == 2
    assert 0 < fast.sum() < 600
    assert narrow["prompt_tokens"][fast].min() > np.median(narrow["prompt_tokens"][~fast])


def test_a_tpot_limit_passes_over_slow_devices() -> None:
    """A step of the slow device reads 16 GB at 2 TB/s: 8 ms."""
    limited = simulate(scenario(0.5, pick="first", tpot=0.007)).record.stages
    assert set(limited["client"].tolist()) == {2}


def test_caches_shorten_the_estimate() -> None:
    data = scenario(caches={"kind": "approximate"})
    data["workload"]["prefixes"] = {"groups": 4, "tokens": 1500}
    for group in data["clients"]:
        group["memory"] |= {"prefix_caching": True}
    run = simulate(data)
    believed = run.requests["note_believed_cached_tokens"].to_numpy()
    assert believed.max() > 1000
    assert run.requests["cached_tokens"].sum() > 0.5 * believed.sum()


def test_first_needs_a_limit() -> None:
    with pytest.raises(InputError, match="give `ttft` or `tpot`"):
        load_scenario(scenario(pick="first"))


CONFIGS: list[dict[str, Any]] = [
    {}, {"view": "own", "caches": {"kind": "approximate"}}, {"view": "exact", "caches": "exact", "tpot": 0.05},
    {"pick": "first", "ttft": 0.5}, {"estimate": "fit", "least": 5},
    {"estimate": "fit", "least": 3, "per_client": True},
]


@pytest.mark.drawn
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("roles", [False, True], ids=["both", "roles"])
class TestPredicted(RouterContract):
    counts = (1, 4)

    @pytest.fixture(autouse=True)
    def _chosen(self, config: dict[str, Any], roles: bool) -> None:
        self.config, self.roles = config, roles

    def make(self) -> Any:
        return ROUTERS.get("predicted").model_validate(self.config)

    def scenario(self, count: int) -> dict[str, Any]:
        data = super().scenario(count)
        (load,), (group,) = data["workload"], data["clients"]
        load["prefixes"] = {"groups": 5, "tokens": 150}
        group["memory"] = {"num_blocks": 300, "prefix_caching": True, "kv_bytes_per_token": 1e5}
        if self.roles:
            data["clients"] = [{**group, "name": "p", "role": "prefill"}, {**group, "name": "d", "role": "decode"}]
            data["network"] = {"kind": "link", "bandwidth": "50 GB/s"}
        return data
