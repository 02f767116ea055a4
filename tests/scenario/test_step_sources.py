"""Where the step times of a run come from, in its summary and its lines."""

from __future__ import annotations

from typing import Any

import pytest
from each import each

import hermes
from hermes.hardware.composed.kernel_tables import shipped_kernels
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.files import names_in
from hermes.results.compare.regress import flatten


def run(*clients: dict[str, Any]) -> Any:
    return hermes.simulate({
        "workload": {"requests": 40, "arrivals": {"kind": "poisson", "rate": 4.0},
                     "lengths": {"kind": "fixed", "prompt": 400, "output": 30}},
        "clients": [{"name": f"c{number}", "model": "llama-3.1-8b"} | one for number, one in enumerate(clients)]})


def sources(**client: Any) -> dict[str, Any]:
    found = run(client).summary["sources"]
    assert len(found) == 1
    return dict(found[0])


def test_shares_add_up_and_name_tables_engine_and_roofline() -> None:
    found = sources(device="h100-sxm")
    assert sum(part["share"] for part in found["parts"]) == pytest.approx(1.0)
    assert [part["share"] for part in found["parts"]] == sorted(
        (part["share"] for part in found["parts"]), reverse=True)
    assert found["parts"][0]["source"] == "kernel tables h100-sxm"
    assert any(part["source"] == "engine vllm-0.33" for part in found["parts"])


def test_a_card_that_nobody_measured_is_a_guess_wider_than_a_measured_one() -> None:
    known, unknown = sources(device="h100-sxm"), sources(device="mi300x")
    assert known["class"] != "guess"
    assert unknown["class"] == "guess"
    assert unknown["because"]
    assert unknown["high"] / unknown["low"] > 1.5 * known["high"] / known["low"]


def test_a_fit_of_whole_steps_is_near_with_its_name() -> None:
    found = sources(hardware={"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"})
    assert found["class"] == "near"
    assert [part["share"] for part in found["parts"]] == [1.0]
    assert "llama-3.1-8b-h100-tp1-bf16" in found["parts"][0]["source"]


@pytest.mark.long
@each("device", [name for name in names_in("devices") if load_device(name).type == "gpu"])
def test_a_run_of_each_shipped_card_prints_its_class_and_ranges(device: str) -> None:
    small = "llama-3.1-8b" if load_device(device).memory > 20e9 else "qwen2.5-0.5b"
    results = hermes.simulate({
        "workload": {"requests": 20, "arrivals": {"kind": "poisson", "rate": 0.5},
                     "lengths": {"kind": "fixed", "prompt": 100, "output": 20}},
        "clients": [{"model": small, "device": device}]})
    (found,) = results.summary["sources"]
    text = " ".join(results.to_text().split())
    assert f": {found['class']}" in text
    assert "ranges means and p50 of TPOT and E2E" in text
    own_tables = device in shipped_kernels()
    assert (found["class"] == "guess") == (not own_tables and load_device(device).efficiency != device), device


def test_groups_alike_share_a_line_and_others_are_named() -> None:
    alike = run({"device": "h100-sxm"}, {"device": "h100-sxm"}).to_text()
    assert alike.count("\nsources") == 1
    assert "sources   c0:" not in alike
    other = run({"device": "h100-sxm"}, {"device": "mi300x"}).to_text()
    assert "sources   c0: " in other
    assert "sources   c1: " in other


def test_the_line_says_which_terms_make_a_guess() -> None:
    text = " ".join(run({"device": "mi300x"}).to_text().split())
    assert "guess (" in text
    assert "guess (" not in " ".join(run({"device": "h100-sxm"}).to_text().split())


def test_regress_leaves_sources_out() -> None:
    assert not [name for name in flatten(run({"device": "h100-sxm"}).summary) if name.startswith("sources")]


def test_kernels_of_another_engine_are_named_as_such() -> None:
    own, other, named = sources(device="h100-sxm"), sources(device="h100-sxm", scheduler={"kind": "sglang"}), sources(
        device="h100-sxm", scheduler={"kind": "sglang"}, hardware={"kind": "composed", "engine": "vllm-0.33"})
    assert any(part["source"] == "host times of vllm-0.33 used for sglang" for part in named["parts"])
    assert any(part["source"] == "kernel tables h100-sxm-sglang" for part in other["parts"])
    assert other["high"] > own["high"]
    assert own["class"] == "measured" != other["class"]


def test_results_have_ranges_wider_than_the_steps() -> None:
    found = sources(device="mi300x")["results"]
    assert list(found) == ["times", "times p99", "ttft", "ttft p99"]
    assert found["ttft p99"]["high"] > found["times"]["high"] > 1.0


def test_the_line_of_ranges_is_percent_or_factors_and_no_queue_that_grows_has_one() -> None:
    known, unknown = (run({"device": device}).to_text() for device in ("h100-sxm", "mi300x"))
    assert "ranges    means and p50 of TPOT and E2E -" in known
    assert "p99 x" in " ".join(unknown[unknown.index("\nranges"):].split())
    overload = hermes.simulate({
        "workload": {"requests": 2000, "arrivals": {"kind": "poisson", "rate": 20.0},
                     "lengths": {"kind": "fixed", "prompt": 4000, "output": 100}},
        "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm"}]})
    assert overload.summary["headline"]["stable"] is False
    assert "\nranges" not in overload.to_text()
