"""`hermes explain`, and clients that name a model, a device and an engine only."""

import json

import pytest

import hermes
from hermes.cli import main

MINIMAL = """
workload:
  requests: 20
  arrivals: {kind: poisson, rate: 4 /s}
  lengths: {kind: fixed, prompt: 300, output: 20}
clients:
  - {model: llama-3.1-70b, device: h100-sxm, parallel: {tp: 4}, engine: vllm-0.23}
"""


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "my.yaml").write_text(MINIMAL)
    return str(tmp_path / "my.yaml")


def explained(capsys, *command):
    assert main(["explain", *command, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_terms_and_sources_are_printed(scenario, capsys):
    (step,) = explained(capsys, scenario, "--decodes", "16", "--prompt", "500")
    terms = {row["term"]: row for row in step["terms"]}
    assert sum(row["seconds"] for row in step["terms"]) == pytest.approx(step["step_s"], rel=1e-6)
    assert terms["qkv"]["source"] == "kernel tables h100-sxm (vllm 0.24.0)"
    assert terms["engine"]["source"] == "engine vllm-0.23"
    assert all(row["source"] for row in step["terms"])
    assert main(["explain", scenario]) == 0
    assert "attention_of_decodes" in capsys.readouterr().out


PROFILE = ["--set", "clients.0.hardware={kind: polynomial, profile: llama-3.1-70b-h100-tp4-bf16}"]


def test_a_fit_to_whole_steps_has_one_term(capsys):
    steps = explained(capsys, "quickstart", *PROFILE)
    assert [[row["term"] for row in step["terms"]] for step in steps] == [["whole step"]] * len(steps)


def test_a_fit_says_what_it_contains(capsys):
    (step, *_) = explained(capsys, "quickstart", *PROFILE)
    assert "whole steps of vllm 0.24.0: its kernels, the link between 4 devices" in step["notes"][0]


@pytest.mark.parametrize("hardware", [
    "{kind: roofline, model: llama-3.1-70b, device: h100-sxm, tp: 4}", "{kind: composed}"])
def test_terms_of_every_analytical_kind_add_up(scenario, capsys, hardware):
    (step,) = explained(capsys, scenario, "--set", f"clients.0.hardware={hardware}", "--prompt", "300")
    assert len(step["terms"]) > 5
    assert all(row["source"] for row in step["terms"])
    assert sum(row["seconds"] for row in step["terms"]) == pytest.approx(step["step_s"], rel=1e-6)


@pytest.mark.parametrize("model", ["llama-3.1-70b", "qwen3-32b", "deepseek-v3"])
@pytest.mark.parametrize(("tp", "pp"), [(1, 2), (4, 2), (2, 4), (8, 4)])
def test_terms_of_pipeline_stages_add_up(scenario, capsys, model, tp, pp):
    """One table for the batches in flight, without their waits for each other; hops are a term."""
    layout = ["--set", f"clients.0.model={model}", "--set", f"clients.0.parallel={{tp: {tp}, pp: {pp}}}",
              "--set", "clients.0.memory={num_blocks: 50000}"]
    (step,) = explained(capsys, scenario, *layout, "--prompt", "300")
    assert sum(row["seconds"] for row in step["terms"]) == pytest.approx(step["step_s"], rel=1e-6)
    assert "hops" in {row["term"] for row in step["terms"]}
    assert step["notes"][0].startswith(f"{pp} pipeline stages")


def test_time_of_the_host_is_a_term(scenario, capsys):
    """Without asynchronous scheduling the host's time is not hidden behind the device's."""
    (step,) = explained(capsys, scenario, "--set", "clients.0.hardware={kind: composed, asynchronous: false}")
    assert sum(row["seconds"] for row in step["terms"]) == pytest.approx(step["step_s"], rel=1e-6)
    assert step["terms"][-1]["term"] == "host"


def test_one_term_is_overridden_alone(scenario, capsys):
    slow = ["--set", "clients.0.hardware={kind: composed, link: {latency: 32 us, bandwidth: 15 GB/s}}"]
    (before,), (after,) = explained(capsys, scenario), explained(capsys, scenario, *slow)
    changed = {a["term"] for a, b in zip(before["terms"], after["terms"], strict=True) if a != b}
    assert changed == {"all_reduce"}
    assert next(row for row in after["terms"] if row["term"] == "all_reduce")["source"] == "given link"


def test_the_engine_brings_its_front_end(scenario):
    ours = hermes.simulate(scenario)
    without = hermes.simulate(scenario, overrides=["clients.0.frontend={}"])
    gain = (ours.requests["ttft_s"] - without.requests["ttft_s"]).mean()
    assert gain == pytest.approx(6e-3, abs=2e-3)


@pytest.mark.parametrize(("change", "message"), [
    (["clients.0.model=null"], "model"), (["clients.0.device=''"], "device"), (["clients.0.engine=vllm-7"], "engine"),
    (["clients.0.parallel={tp: 3}"], "tp"),
])
def test_what_is_missing_is_one_line(scenario, change, message, capsys):
    options = [word for value in change for word in ("--set", value)]
    assert main(["run", scenario, *options]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize("hardware", ["{kind: polynomial, profile: llama-3.1-70b-h100-tp2-bf16}",
                                      "{kind: composed, tp: 2}"])
def test_devices_that_contradict_the_hardware_model_are_refused(scenario, hardware, capsys):
    assert main(["run", scenario, "--set", f"clients.0.hardware={hardware}"]) == 2
    assert "clients.0.parallel.tp: 4 contradicts the hardware model, which has 2" in capsys.readouterr().err


def test_a_step_of_nothing_is_refused(scenario, capsys):
    assert main(["explain", scenario, "--decodes", "0"]) == 2
    assert "--decodes" in capsys.readouterr().err


def test_a_rank_is_told_that_its_experts_serve_all_ranks(tmp_path, capsys):
    """Four ranks of 16 decodes: experts of 64 tokens, as one engine of four devices with 64 decodes has."""
    experts = []
    for decodes, parallel in (("16", "{dp: 4, ep: 4}"), ("64", "{tp: 4, ep: 4}")):
        file = tmp_path / "ranks.yaml"
        file.write_text(MINIMAL.replace("llama-3.1-70b", "qwen3-30b-a3b").replace("{tp: 4}", parallel))
        (step,) = explained(capsys, str(file), "--decodes", decodes)
        experts.append(next(row["seconds"] for row in step["terms"] if row["term"] == "experts"))
        if "dp" in parallel:
            assert step["ranks"] == 4
            assert any("experts, dispatch and combine are of the tokens of all of them" in note
                       for note in step["notes"])
            assert main(["explain", str(file), "--decodes", decodes]) == 0
            assert "on each of 4 ranks" in capsys.readouterr().out.replace("\n", " ")
    assert experts[0] == pytest.approx(experts[1], rel=1e-9)
