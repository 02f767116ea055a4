"""Engines that are not vLLM: which rules and times stand in for theirs, and that a run says so."""

from __future__ import annotations

from typing import Any

import pytest

import hermes
from hermes.errors import InputError
from hermes.hardware.descriptions.engines import engine_name, load_engine, reduce_rules


def run(**client: Any) -> dict[str, Any]:
    results = hermes.simulate({
        "workload": {"requests": 10, "arrivals": {"kind": "poisson", "rate": 4.0},
                     "lengths": {"kind": "fixed", "prompt": 400, "output": 30}},
        "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm", **client}]})
    return dict(results.summary)


def test_tensorrt_llm_has_its_own_limits_and_says_whose_rules_and_times_stand_in() -> None:
    engine = load_engine("trtllm-1.2.0")
    assert (engine.name, engine.stands_in) == ("trtllm-1.2", "vllm-0.33")
    other = load_engine(engine.stands_in)
    assert (engine.rules, engine.frontend) == (other.rules, other.frontend)
    assert engine.step.model_dump(exclude={"source"}) == other.step.model_dump(exclude={"source"})
    summary = run(engine="trtllm-1.2")
    (found,) = summary["sources"]
    assert any(part["source"] == "host times of vllm-0.33 used for trtllm-1.2" for part in found["parts"])
    assert found["class"] != "measured"
    (named,) = (one for one in summary["assumes"] if one["name"] == "scheduling rules")
    assert named["default"] == "those of vllm-0.33 for trtllm-1.2"


def test_an_engine_of_its_own_rules_names_no_other() -> None:
    summary = run(engine="vllm-0.33")
    assert "scheduling rules" not in {one["name"] for one in summary["assumes"]}
    assert any(part["source"] == "engine vllm-0.33" for part in summary["sources"][0]["parts"])


def test_a_changed_term_of_the_engine_keeps_its_source() -> None:
    found = run(engine="trtllm-1.2", hardware={"kind": "composed", "terms": {"engine": {"scale": 2.0}}})["sources"][0]
    assert any("used for trtllm-1.2" in part["source"] for part in found["parts"])


@pytest.mark.parametrize(("given", "nearest"), [
    ("trtllm-1.0", "trtllm-1.2"), ("trtllm-0.20.1", "trtllm-1.2"), ("vllm-0.40", "vllm-0.33")])
def test_another_version_is_refused_with_the_nearest_of_the_same_engine(given: str, nearest: str) -> None:
    with pytest.raises(InputError, match=f"an engine whose rules are known.*{nearest!r}"):
        engine_name(given)


def test_an_engine_that_nobody_describes_is_refused_without_a_suggestion() -> None:
    with pytest.raises(InputError) as caught:
        engine_name("lmdeploy-0.9")
    assert caught.value.suggestion is None
    assert reduce_rules("trtllm 1.2.0") is None
