"""A client and its hardware model speak of the same thing, requests fit the model: else a line says what to write.

Every refusal here was "valid" once: a 70B model on an L40S was priced by an 8B model's profile of an H100.
"""

import re
import warnings

import pytest
import yaml

from hermes import simulate
from hermes.cli import main
from hermes.clients.consistency import described_model
from hermes.errors import InputError, InputWarning
from hermes.hardware.descriptions.devices import device_named_in, load_device
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.fitted.profile import load_profile
from hermes.scenario import load_scenario
from hermes.scenario.build import build

EIGHT, SEVENTY = "llama-3.1-8b", "llama-3.1-70b"
BLOCKS = {"num_blocks": 20_000}


def profile(name):
    return {"kind": "polynomial", "profile": name}


def roofline(model, device, **more):
    return {"kind": "roofline", "model": model, "device": device} | more


def scenario(client, prompt=100, output=10, requests=2, **more):
    return {
        "workload": {"requests": requests, "arrivals": {"kind": "poisson", "rate": 1.0},
                     "lengths": {"kind": "fixed", "prompt": prompt, "output": output}},
        "clients": [client],
    } | more


def built(client, **more):
    return build(load_scenario(scenario(client, **more)))


CONTRADICTIONS = {
    "model": (
        {"model": SEVENTY, "device": "l40s", "hardware": profile("llama-3.1-8b-h100-tp1-bf16"), "memory": BLOCKS},
        "clients.0.model: llama-3.1-70b is not llama-3.1-8b", "profile llama-3.1-70b-l40s-tp4-bf16",
    ),
    "no profile of the model": (
        {"model": "mixtral-8x7b", "hardware": profile("llama-3.1-8b-h100-tp1-bf16"), "memory": BLOCKS},
        "clients.0.model: mixtral-8x7b is not llama-3.1-8b", "{kind: roofline, model: mixtral-8x7b, device: h100-sxm}",
    ),
    "table": (
        {"model": "llama-2-70b", "hardware": {"kind": "table", "profile": "TABLE"}, "memory": BLOCKS},
        "clients.0.model: llama-2-70b is not bloom-176b, the model of the hardware's table", "llama-2-70b",
    ),
    "roofline's model": (
        {"model": SEVENTY, "hardware": roofline(EIGHT, "h100-sxm"), "memory": BLOCKS},
        "clients.0.model: llama-3.1-70b is not llama-3.1-8b", "write the same model in both",
    ),
    "device": (
        {"model": EIGHT, "device": "l40s", "hardware": profile("llama-3.1-8b-h100-tp1-bf16")},
        "clients.0.device: l40s is not h100-sxm", "profile llama-3.1-8b-l40s-tp1-bf16",
    ),
    "no profile of the device": (
        {"model": EIGHT, "device": "a40", "hardware": profile("llama-3.1-8b-h100-tp1-bf16")},
        "clients.0.device: a40 is not h100-sxm", "{kind: roofline, model: llama-3.1-8b, device: a40}",
    ),
    "roofline's device": (
        {"model": EIGHT, "device": "h200", "hardware": roofline(EIGHT, "h100-sxm")},
        "clients.0.device: h200 is not h100-sxm", "write the same device in both",
    ),
    "fewer devices": (
        {"model": SEVENTY, "devices": 1, "hardware": profile("llama-3.1-70b-h100-tp2-bf16"), "memory": BLOCKS},
        "clients.0.devices: 1 is not 2, the tensor parallelism", "leave it out",
    ),
    "more devices": (
        {"model": SEVENTY, "devices": 8, "hardware": profile("llama-3.1-70b-h100-tp2-bf16")},
        "clients.0.devices: 8 is not 2", "profile llama-3.1-70b-h100-tp8-bf16",
    ),
    "roofline's devices": (
        {"model": SEVENTY, "devices": 8, "hardware": roofline(SEVENTY, "h100-sxm", tp=2, pp=2)},
        "clients.0.devices: 8 is not 4, tp 2 x pp 2", "hardware.tp: 8",
    ),
    "bits of weights": (
        {"model": EIGHT, "device": "h100-sxm", "hardware": profile("llama-3.1-8b-h100-tp1-bf16"),
         "memory": {"weight_bits": 8}},
        "clients.0.memory.weight_bits: 8 is not about 16 bits", "bf16",
    ),
    "bits of KV": (
        {"model": EIGHT, "hardware": roofline(EIGHT, "h100-sxm"), "memory": {"kv_bits": 8}},
        "clients.0.memory.kv_bits: 8 is not 16 bits", "hardware.kv_dtype: fp8",
    ),
    "longer than the model's context": (
        {"model": EIGHT, "hardware": profile("llama-3.1-8b-h100-tp1-bf16"), "max_model_len": 200_000},
        "clients.0.max_model_len: 200000 is more than 131072", "llama-3.1-8b",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_one_line_that_says_what_to_write_and_allow_mismatch_takes_it(name):
    client, begins, says = CONTRADICTIONS[name]
    if name == "table":   # whatever the measurements of splitwise-sim are called
        [table] = [table for table in names_in("tables") if "bloom-176b-h100" in table]
        client = client | {"hardware": {"kind": "table", "profile": table}}
    with pytest.raises(InputError) as found:
        built(client)
    line = str(found.value)
    assert line.startswith(begins)
    assert says in line
    assert "`allow_mismatch: true`" in line
    assert "\n" not in line
    fits = {"memory": BLOCKS} if "memory" not in client else {}   # 8 bits of a model that has 16 may not fit
    assert built(client | fits | {"allow_mismatch": True}).clients


AGREEMENTS = {
    "another name of the same shapes": {"model": "llama-3-70b", "hardware": profile("llama-3.1-70b-h100-tp2-fp8")},
    "its publisher's name": {"model": "meta-llama/Llama-3.1-8B", "hardware": roofline(EIGHT, "h100-sxm"),
                             "memory": BLOCKS | {"kv_bytes_per_token": 131072}},
    "as many devices as it has": {"model": SEVENTY, "devices": 2, "device": "h100-sxm",
                                  "hardware": profile("llama-3.1-70b-h100-tp2-fp8")},
    "8-bit KV beside 8-bit weights": {"model": SEVENTY, "device": "h100-sxm", "memory": {"kv_bits": 8},
                                      "hardware": profile("llama-3.1-70b-h100-tp2-fp8")},
    "16-bit KV beside 4-bit weights": {"model": "mistral-7b", "memory": {"kv_bits": 16, "weight_bits": 4},
                                       "hardware": roofline("mistral-7b", "a40", dtype="int4-awq")},
    "a model nobody describes": {"model": "mine", "hardware": profile("llama-3.1-8b-h100-tp1-bf16"),
                                 "memory": BLOCKS},
    "a profile of a model nobody describes": {"model": SEVENTY, "devices": 1, "device": "h100-sxm", "memory": BLOCKS,
                                              "hardware": profile("vllm-cpu-small-llama")},
}


@pytest.mark.parametrize("name", AGREEMENTS)
def test_what_agrees_or_says_nothing_is_accepted(name):
    assert built(AGREEMENTS[name]).clients


def test_a_device_of_ones_own_agrees_with_the_shipped_one_it_copies(tmp_path):
    shipped = load_device("h100-sxm").model_dump() | {"name": "mine", "price_per_hour": 1.0, "link_bandwidth": 50e9}
    for speed, same in ((shipped["memory_bandwidth"], True), (2e12, False)):
        path = tmp_path / f"{same}.yaml"
        path.write_text(yaml.safe_dump(shipped | {"memory_bandwidth": speed}))
        client = {"model": EIGHT, "device": str(path), "hardware": profile("llama-3.1-8b-h100-tp1-bf16")}
        if same:
            assert built(client).clients
        else:
            with pytest.raises(InputError, match="h100-sxm, the device of"):
                built(client)


def test_a_client_without_a_model_has_the_memory_and_the_limit_of_its_profiles_model():
    client = {"device": "h100-sxm", "hardware": profile("llama-3.1-8b-h100-tp1-bf16")}
    one, named = (built(client | more).clients[0] for more in ({}, {"model": EIGHT}))
    assert one.scheduler.pool.num_blocks == named.scheduler.pool.num_blocks
    assert one.max_model_len == named.max_model_len == 131_072
    assert (one.model, named.model) == ("", EIGHT)


def test_every_gpu_profile_says_a_device_and_a_model_that_somebody_describes():
    """Else a contradiction would go unseen."""
    for name in names_in(""):
        source = load_profile(name).provenance
        on_gpu = "cpu" not in name
        assert (device_named_in(source.hardware) is not None) == on_gpu, source.hardware
        assert bool(described_model(source.model, None)) == on_gpu, source.model


@pytest.mark.parametrize(("words", "name"), [
    ("NVIDIA H100 80GB HBM3", "h100-sxm"), ("NVIDIA H100 NVL", None), ("NVIDIA H100 PCIe", "h100-pcie"),
    ("NVIDIA A100-SXM4-80GB", "a100-80gb"), ("NVIDIA A100-SXM4-40GB", "a100-40gb"), ("NVIDIA H200", "h200"),
    ("NVIDIA GB200", "gb200"), ("NVIDIA GB10", None), ("NVIDIA GeForce RTX 4090", "rtx-4090"),
    ("CPU, one thread", None),
])
def test_devices_are_known_by_the_names_cuda_gives_them(words, name):
    found = device_named_in(words)
    assert (None if found is None else found.name) == name


# -- requests longer than the model's context -------------------------------------------------------------------------

SMALL = {"model": EIGHT, "device": "h100-sxm", "hardware": profile("llama-3.1-8b-h100-tp1-bf16")}


def test_a_workload_of_requests_that_are_all_too_long_is_refused():
    with pytest.raises(InputError) as found:
        built(SMALL, prompt=200_000)
    assert str(found.value) == (
        "workload.lengths: expected requests of at most 131,072 tokens, the max_model_len of 'llm' (write shorter "
        "ones, a model of a longer context, or `allow_mismatch: true` in the client), found 200,010 tokens of "
        "prompt and output in the shortest of 2"
    )
    assert simulate(scenario(SMALL | {"allow_mismatch": True}, prompt=200_000)).summary["requests"]["completed"] == 2


@pytest.mark.feature("LLM clients", "Limits of the context, agreement of client and hardware")
@pytest.mark.parametrize(("limit", "served"), [(110, True), (109, False)])
def test_prompt_and_output_have_to_fit_as_in_vllm_serve(limit, served):
    client = SMALL | {"max_model_len": limit}
    if served:
        assert simulate(scenario(client)).summary["requests"]["completed"] == 2
    else:
        with pytest.raises(InputError, match="at most 109 tokens"):
            built(client)


def some_too_long(**workload):
    """40 requests of 50 to 250 prompt tokens at a client that takes 200 with the answer, and how many exceed that."""
    data = scenario(SMALL | {"max_model_len": 200}, requests=40)
    data["workload"]["lengths"] = {
        "kind": "independent", "prompt": {"kind": "uniform", "min": 50, "max": 250},
        "output": {"kind": "fixed", "tokens": 10},
    }
    data["workload"] |= workload
    return data


def test_a_share_that_is_too_long_is_rejected_with_the_reason_and_a_warning():
    with pytest.warns(InputWarning) as found:
        results = simulate(some_too_long())
    requests, table = results.summary["requests"], results.requests
    too_long = table["prompt_tokens"] + table["output_tokens"] > 200
    assert 0 < too_long.sum() == requests["rejected"] < 40
    assert (table["status"].astype(str) == "rejected").equals(too_long)
    [(reason, count)] = requests["reject_reasons"].items()
    assert count == requests["rejected"]
    assert re.fullmatch(r"e\.g\. llm: \d+ prompt and \d+ output tokens are more than its max_model_len of 200", reason)
    [text] = results.meta["warnings"]
    assert text == str(found[0].message)
    assert text.startswith(f"{requests['rejected']} of 40 requests of workload 'main' (")
    assert "more than 200 tokens, the max_model_len of 'llm'" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")   # cut, nothing is too long and nobody is warned
        assert simulate(some_too_long(max_total_tokens=200)).summary["requests"]["rejected"] == 0


def test_disaggregated_the_decode_client_limits_the_whole_and_the_prefill_client_its_prompt():
    clients = [SMALL | {"name": "p", "role": "prefill", "max_model_len": 101},
               SMALL | {"name": "d", "role": "decode", "max_model_len": 110}]
    done = simulate(scenario({}, clients=clients)).summary["requests"]
    assert done["completed"] == 2
    with pytest.raises(InputError, match="max_model_len of 'd'"):
        simulate(scenario({}, clients=[clients[0], clients[1] | {"max_model_len": 109}]))


def test_the_longest_client_counts_and_takes_what_the_others_refuse():
    clients = [SMALL | {"name": "short", "max_model_len": 50}, SMALL | {"name": "long"}]
    results = simulate(scenario({}, clients=clients, requests=4))
    assert results.summary["requests"]["completed"] == 4
    assert set(results.stages["client"].astype(str)) == {"long"}
    assert "warnings" not in results.meta


def test_a_graph_is_as_long_as_the_generations_all_requests_make():
    clients = [SMALL | {"max_model_len": 5_000},
               {"kind": "processing", "name": "find", "serves": {"retrieve": {"kind": "per_item", "fixed": "1 ms"}}}]
    stages = {"find": {"kind": "retrieve"},
              "answer": {"kind": "generate", "after": "find", "prompt": "prompt + 10 * 512"}}
    data = scenario({}, clients=clients, pipelines={"p": {"stages": stages}})
    data["workload"]["pipeline"] = "p"
    with pytest.raises(InputError, match="found 5,230 tokens"):
        build(load_scenario(data))
    data["clients"][0]["max_model_len"] = 5_230
    assert simulate(data).summary["requests"]["completed"] == 2
    stages["answer"]["probability"] = 0.5   # whether one is made is not known before
    data["clients"][0]["max_model_len"] = 5_000
    data["workload"]["requests"] = 20
    assert 0 < simulate(data).summary["requests"]["rejected"] < 20


def test_the_command_line_refuses_and_warns_in_one_line_each(tmp_path, capsys):
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(some_too_long()))
    assert main(["validate", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{file}: valid\n"
    assert err.startswith("hermes: warning: ")
    assert err.count("\n") == 1
    assert main(["run", str(file), "--set", "workload.lengths.prompt.min=300", "--set",
                 "workload.lengths.prompt.max=400"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"hermes: {file}:")
    assert "workload.lengths: expected requests of at most 200 tokens" in err
