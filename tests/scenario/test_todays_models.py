"""Large models from a minimal scenario: model, devices, and how they are split."""

import pytest

from hermes.api import simulate
from hermes.errors import InputError
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.site import page_url

MODELS = {
    "DeepSeek-V3, ranks": ("deepseek-v3", "h200", {"dp": 8, "ep": 8}),
    "DeepSeek-V3": ("deepseek-v3", "h200", {"tp": 8}),
    "gpt-oss on H100": ("gpt-oss-120b", "h100-sxm", {}),
    "gpt-oss on B200": ("gpt-oss-120b", "b200", {}),
    "Qwen3-235B": ("qwen3-235b-a22b", "h200", {"tp": 8, "ep": 8}),
    "Llama-3.1-405B": ("llama-3.1-405b", "h100-sxm", {"pp": 2, "tp": 8}),
    "Gemma 3": ("gemma-3-27b", "h100-sxm", {}),
    "Kimi K2": ("kimi-k2", "b300", {"tp": 8}),
    "Mixtral on AMD": ("mixtral-8x7b", "mi300x", {}),
}
WORKLOAD = {"requests": 24, "arrivals": {"kind": "poisson", "rate": 4},
            "lengths": {"kind": "fixed", "prompt": 500, "output": 30}}


@pytest.mark.drawn
@pytest.mark.parametrize("name", MODELS)
def test_a_minimal_scenario_runs(name):
    model, device, parallel = MODELS[name]
    found = simulate({"workload": WORKLOAD, "clients": [{"model": model, "device": device, "parallel": parallel}]})
    assert found.summary["requests"]["completed"] == 24
    ranks = parallel.get("dp", 1) * parallel.get("pp", 1)
    assert len(found.clients) == ranks
    assert found.clients["num_devices"].sum() == parallel.get("tp", 1) * ranks
    tpot = found.requests["tpot_s"]
    assert 0.002 < tpot.median() < 0.2   # a tenth to ten times what such engines show


@pytest.mark.parametrize(("parallel", "field"), [({"tp": 3}, "parallel.tp"), ({"dp": 8, "ep": 4}, "parallel.ep"),
                                                 ({"pp": 100}, "parallel.pp")])
def test_a_wrong_split_is_named_as_it_was_given(parallel, field):
    with pytest.raises(InputError) as caught:
        simulate({"workload": WORKLOAD, "clients": [{"model": "deepseek-v3", "device": "h200", "parallel": parallel}]})
    assert f"clients.0.{field}: " in str(caught.value)


@pytest.mark.parametrize(("model", "device", "parallel", "hardware", "said"), [
    ("deepseek-v3", "h200", {"dp": 8, "ep": 8}, {"kind": "composed"},
     "latent attention and more than 2 data-parallel ranks of experts"),
    ("qwen3-30b-a3b", "h100-sxm", {"dp": 4, "ep": 4}, {"kind": "composed"},
     "more than 2 data-parallel ranks of experts"),
    ("gpt-oss-120b", "h100-sxm", {}, {"kind": "composed", "terms": {"engine": {"scale": 1.5}}}, "sliding windows"),
    ("qwen3-30b-a3b", "rtx-pro-6000", {"dp": 2, "ep": 2}, {"kind": "composed"}, None),   # was compared with a server
    ("llama-3.1-8b", "h100-sxm", {}, {"kind": "composed"}, None),
    ("llama-3.1-8b", "h100-sxm", {}, {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"}, None),
])
@pytest.mark.filterwarnings("ignore::hermes.errors.InputWarning")
def test_clients_of_a_kind_that_no_server_was_compared_with_say_so(model, device, parallel, hardware, said):
    client = {"name": "x", "model": model, "device": device, "parallel": parallel, "hardware": hardware}
    remarks = build(load_scenario({"workload": WORKLOAD, "clients": [client]})).remarks
    assert remarks == ([] if said is None else [
        f"x: times with {said} were never compared with a server's ({page_url('background/ranks')})"])
