"""Several models behind one gateway: each stage goes to a client of its model, with every router; cascades."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hermes.api import simulate
from hermes.routing import ROUTERS

SMALL, LARGE = "llama-3.1-8b", "mistral-7b"
WITH: dict[str, dict[str, Any]] = {"heavy_light": {"threshold": 100}}


def clients(count: int) -> list[dict[str, Any]]:
    return [{"name": name, "count": count, "model": model, "memory": {"num_blocks": 400, "prefix_caching": True},
             "hardware": {"kind": "roofline", "model": model, "device": "h100-sxm"}}
            for name, model in (("small", SMALL), ("large", LARGE))]


def asks(model: str, **more: Any) -> dict[str, Any]:
    return {"name": model, "requests": 30, "arrivals": {"kind": "poisson", "rate": 200.0}, "model": model,
            "lengths": {"kind": "fixed", "prompt": 150, "output": 10}, "prefixes": {"groups": 3, "tokens": 64}} | more


@pytest.mark.feature("Routing and networks", "Several models behind one gateway with every router; cascades as graphs")
@pytest.mark.drawn
@pytest.mark.parametrize("gateway", [None, {"delay": 0.001, "replicas": 2}], ids=["none", "two gateways"])
@pytest.mark.parametrize("kind", ROUTERS.names())
def test_every_router_keeps_to_the_model_of_a_request(kind: str, gateway: dict[str, Any] | None) -> None:
    record = simulate({"workload": [asks(SMALL), asks(LARGE)], "clients": clients(2), "gateway": gateway,
                       "router": {"kind": kind, **WITH.get(kind, {})}}).record
    assert (record.status == 1).all()
    of_large = record.stages["client"] >= 2
    assert of_large.tolist() == (record.stages["request"] >= 30).tolist()
    assert len(set(record.stages["client"].tolist())) >= 2


def _cascade(**large: Any) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return the requests that the small and the large model answered, and the results."""
    run = simulate({
        "workload": [asks(SMALL, requests=400, pipeline="cascade", lengths={
            "kind": "independent", "prompt": {"kind": "uniform", "min": 100, "max": 299},
            "output": {"kind": "fixed", "tokens": 10}})],
        "clients": clients(1), "gateway": {}, "pipelines": {"cascade": {"stages": {
            "first": {"kind": "generate"},
            "second": {"kind": "generate", "model": LARGE, "after": "first", **large}}}}})
    stages = run.record.stages
    return stages["request"][stages["client"] == 0], stages["request"][stages["client"] == 1], run


def test_a_cascade_asks_the_large_model_with_a_probability() -> None:
    """0.3 of 400 are 120; three standard deviations are 3 x sqrt(400 x 0.3 x 0.7) = 27."""
    small, large, run = _cascade(probability=0.3)
    assert sorted(small.tolist()) == list(range(400))
    assert abs(len(large) - 120) < 27
    stages = run.record.stages
    ttft = run.requests["ttft_s"].to_numpy()
    for request in range(400):   # the user gets the last answer
        rows = np.flatnonzero(stages["request"] == request)
        last = rows[stages["end_ns"][rows].argmax()]
        assert ttft[request] == pytest.approx((stages["first_token_ns"][last] - run.record.arrival_ns[request]) / 1e9)
        assert stages["client"][last] == (request in large)


def test_a_cascade_by_an_outcome_of_each_request() -> None:
    """Prompts of 200 tokens or more."""
    _, large, run = _cascade(copies="min(1, prompt // 200)")
    assert sorted(large.tolist()) == np.flatnonzero(run.record.prompt_tokens >= 200).tolist()
    assert 0 < len(large) < 400


def test_two_models_by_choice() -> None:
    run = simulate({"workload": [asks(SMALL, pipeline="either")], "clients": clients(1), "gateway": {"replicas": 2},
                    "pipelines": {"either": {"stages": {
                        "small": {"kind": "generate", "choice": "model", "weight": 2},
                        "large": {"kind": "generate", "model": LARGE, "choice": "model"}}}}})
    served = run.record.stages["client"].tolist()
    assert sorted(run.record.stages["request"].tolist()) == list(range(30))
    assert 0 < sum(served) < 30
