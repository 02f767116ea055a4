"""`workload.sampling`: whether the sampler sorts the vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from hermes.api import simulate
from hermes.errors import InputError
from hermes.scenario import load_scenario, resolved_yaml
from hermes.scenario.assumptions import assumptions


def scenario(*sampling: str | None, **hardware: Any) -> dict[str, Any]:
    """Return a scenario with a workload for each kind of sampling."""
    workloads = [{
        "name": f"w{number}", "requests": 20, "arrivals": {"kind": "poisson", "rate": 2.0},
        "lengths": {"kind": "fixed", "prompt": 200, "output": 50}, **({"sampling": one} if one else {})}
        for number, one in enumerate(sampling)]
    client = {"model": "qwen3-14b", "device": "h100-sxm", "hardware": {"kind": "composed", **hardware}}
    return {"seed": 1, "workload": workloads, "clients": [client]}


def sorts(*sampling: str | None, **hardware: Any) -> bool:
    model: Any = load_scenario(scenario(*sampling, **hardware)).source.hardware[0]
    return bool(model.sources.sampling_ns > 0)


@pytest.mark.feature("Hardware", "`workload.sampling`: greedy or top-p, for all clients of named terms")
def test_the_workload_says_whether_the_sampler_sorts() -> None:
    assert sorts(None), "the generation settings of Qwen3 have a top-p"
    assert not sorts("greedy")
    assert sorts("top_p")
    assert sorts("greedy", "top_p"), "vLLM sorts the batch if one request has a top-p"
    assert sorts("greedy", None), "what nobody said is the publisher's"
    assert not sorts("greedy", top_p=False)


def test_sorting_takes_its_share_of_the_time_between_tokens() -> None:
    drawn, greedy = (simulate(scenario(one)).summary["latency"]["tpot_s"]["mean"] for one in ("top_p", "greedy"))
    assert drawn > greedy


def test_both_keys_must_agree() -> None:
    with pytest.raises(InputError, match=r"clients.0.hardware.top_p.*contradicts the workload's sampling: greedy"):
        load_scenario(scenario("greedy", top_p=True))
    with pytest.raises(InputError, match="sampling"):
        load_scenario(scenario("hot"))


def test_what_is_said_is_no_assumption_and_survives_being_written_out() -> None:
    assumed = [{one.name for one in assumptions(load_scenario(scenario(one)))} for one in (None, "greedy")]
    assert ["sampling" in names for names in assumed] == [True, False]
    first = load_scenario(scenario("greedy"))
    again = load_scenario(yaml.safe_load(resolved_yaml(first)))
    assert again == first
