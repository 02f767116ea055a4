"""Other names of devices and models: what people mean, what is near an unknown name, and what is not."""

import json
import re

import pytest

from hermes.cli import main
from hermes.config.yaml_document import as_node
from hermes.deploy.vllm import hub_name
from hermes.errors import InputError
from hermes.hardware.base import StepStats
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.descriptions.hf_config import SUPPORTED, from_hf_config, lacking
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.descriptions.names import ALIASES
from hermes.hardware.roofline import Roofline
from hermes.scenario import scenario_of
from hermes.scenario.build import build


@pytest.mark.parametrize(("name", "meant"), [
    ("H100", "h100-sxm"), ("h100-SXM5", "h100-sxm"), ("NVIDIA H100 80GB HBM3", "h100-sxm"), ("H100-PCIe", "h100-pcie"),
    ("A100", "a100-80gb"), ("a100", "a100-80gb"), ("A100-SXM4-40GB", "a100-40gb"), ("H200", "h200"), ("B200", "b200"),
    ("MI300X", "mi300x"), ("MI325X", "mi325x"), ("L40S", "l40s"), ("L4", "l4"), ("T4", "t4"), ("GH200", "gh200"),
    ("RTX4090", "rtx-4090"), ("GB200", "gb200"),
])
def test_a_card_by_the_name_that_people_use(name, meant):
    assert load_device(name).name == meant


@pytest.mark.parametrize(("name", "meant"), [
    ("Qwen2.5-7B", "qwen2.5-7b"), ("Qwen/Qwen2.5-72B-Instruct", "qwen2.5-72b"), ("Llama-3.3-70B", "llama-3.1-70b"),
    ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"), ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
    ("DeepSeek-V3-0324", "deepseek-v3"), ("zai-org/GLM-4.5", "glm-4.5"), ("GLM-4.5-Air", "glm-4.5-air"),
    ("microsoft/phi-4", "phi-4"), ("microsoft/Phi-3-mini-128k-instruct", "phi-3.5-mini"), ("phi-4-mini", "phi-4-mini"),
    ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"), ("google/gemma-3-27b-it", "gemma-3-27b"),
    ("DeepSeek-V3.1", "deepseek-v3.1"), ("MiniMaxAI/MiniMax-M2.1", "minimax-m2.5"), ("Qwen/QwQ-32B", "qwq-32b"),
])
def test_a_model_by_its_name_at_the_hub(name, meant):
    assert load_model(name).name == meant


def test_a_folder_is_not_a_name_at_the_hub(tmp_path):
    (tmp_path / "Qwen").mkdir()
    assert load_model("Qwen/Qwen2.5-7B", tmp_path / "elsewhere").name == "qwen2.5-7b"
    with pytest.raises(InputError, match="an existing file"):
        load_model("Qwen/Qwen2.5-7B", tmp_path)


def test_every_other_name_stands_for_a_file_and_hides_none():
    for folder, others in ALIASES.items():
        assert set(others.values()) <= set(names_in(folder))
        assert not others.keys() & set(names_in(folder))


def near(load, name):
    with pytest.raises(InputError) as caught:
        load(name)
    text = str(caught.value)
    assert "\n" not in text
    return re.findall(r"([\w.-]+) \(", text.split("nearest: ")[1].split("; or")[0])


@pytest.mark.parametrize("name", ["h100x", "h300", "l4s", "nothing", "rtx-5090", "gb300"])
def test_an_unknown_card_lists_the_five_nearest_with_their_bandwidth(name):
    found = near(load_device, name)
    assert len(found) == 5
    with pytest.raises(InputError, match="GB/s"):
        load_device(name)


@pytest.mark.parametrize(("name", "bandwidth", "not_near"), [
    ("a10", 600e9, {"a100-80gb", "a100-40gb"}), ("A10-24GB", 600e9, {"a100-80gb"}), ("a2", 200e9, {"a40"}),
    ("l20", 864e9, {"l4", "h20"}), ("v100", 900e9, {"h100-sxm"}), ("a100-pcie", 1935e9, {"h200"}),
])
def test_no_card_of_three_times_the_bandwidth_is_suggested(name, bandwidth, not_near):
    found = near(load_device, name)
    assert found
    assert not not_near & set(found)
    assert all(1 / 3 < load_device(card).memory_bandwidth / bandwidth < 3 for card in found)


@pytest.mark.parametrize("name", ["llama-3.1-9b", "qwen2.5-8b"])
def test_an_unknown_model_lists_the_five_nearest_of_its_type(name):
    found = near(load_model, name)
    assert len(found) == 5
    assert all(other.startswith(("llama", "codellama") if "llama" in name else "qwen2") for other in found)


@pytest.mark.parametrize(("name", "kind", "other"), [
    ("deepseek-v3.2", "deepseek_v32", "deepseek-v3"), ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek_v32", "deepseek-v3"),
    ("llama-4-scout", "llama4", "llama-3"), ("qwen3-next-80b-a3b", "qwen3_next", "qwen3-30b"),
    ("meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8", "llama4", "llama-3"),
])
def test_a_model_of_a_type_that_is_not_modelled_is_never_taken_for_another(name, kind, other):
    with pytest.raises(InputError, match=f"type {kind}, which is not modelled; modelled types: ") as caught:
        load_model(name)
    assert other not in str(caught.value).split(kind)[1]
    assert f"; no description can say {lacking(kind)}" in str(caught.value)


def test_a_config_of_another_type_suggests_no_type(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deepseek_v32"}))
    with pytest.raises(InputError, match="model_type: expected one of llama") as caught:
        load_model(str(tmp_path / "config.json"))
    assert "did you mean" not in str(caught.value)


def test_names_and_configs_of_phi_and_glm_agree():
    phi = {"model_type": "phi3", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
           "num_key_value_heads": 10, "intermediate_size": 17920, "vocab_size": 100352, "sliding_window": None,
           "max_position_embeddings": 16384, "tie_word_embeddings": False}
    ours = load_model("phi-4").model_dump(exclude={"name", "source", "top_p"})
    assert {key: ours[key] for key in from_hf_config(phi, "x") if key in ours} == {
        key: value for key, value in from_hf_config(phi, "x").items() if key in ours}
    glm = {"model_type": "glm4_moe", "hidden_size": 5120, "num_hidden_layers": 92, "num_attention_heads": 96,
           "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "moe_intermediate_size": 1536,
           "n_routed_experts": 160, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
           "vocab_size": 151552, "use_qk_norm": True, "max_position_embeddings": 131072, "tie_word_embeddings": False}
    ours = load_model("glm-4.5").model_dump(exclude={"name", "source", "top_p"})
    found = from_hf_config(glm, "x")
    assert {key: ours[key] for key in found if key in ours} == {key: found[key] for key in found if key in ours}
    assert found["qk_norm"]
    assert not from_hf_config(glm | {"use_qk_norm": False}, "x").get("qk_norm")


def test_a_card_without_bf16_takes_fp16():
    hardware = Roofline(model="llama-3.1-8b", device="t4").build()
    assert hardware.options.dtype == "fp16"
    prompt = StepStats(prefill_seqs=1, prefill_tokens=512, prefill_attn=512 * 513 // 2, sampled=1)
    peak = 2 * 6.98e9 * 512 / 65e12 * 1e9   # of the layers' matrices: no weights are widened
    assert peak < hardware.step_ns(prompt) < 3 * peak
    with pytest.raises(InputError, match="t4 has no bf16; write fp16"):
        Roofline(model="llama-3.1-8b", device="t4", dtype="bf16").build()


def test_a_run_says_what_was_taken_for_a_short_name(tmp_path, capsys):
    text = {"workload": {"requests": 2, "lengths": {"kind": "independent", "prompt": 100, "output": 3},
                         "arrivals": {"kind": "poisson", "rate": 1}},
            "clients": [{"model": "meta-llama/Llama-3.3-70B-Instruct", "device": "A100", "parallel": {"tp": 4}}]}
    assert build(scenario_of(as_node(text), tmp_path)).remarks == [
        "device A100 is a100-80gb; other cards: a100-40gb",
        "model meta-llama/Llama-3.3-70B-Instruct has the shape of llama-3.1-70b, whose description is used"]
    path = tmp_path / "scenario.yaml"
    path.write_text(json.dumps(text))
    assert main(["validate", str(path)]) == 0
    assert "device A100 is a100-80gb" in capsys.readouterr().out


@pytest.mark.parametrize(("change", "field"), [
    ({"device": "h20x"}, r"clients\.0\.device: no device"), ({"model": "llama-9b"}, r"clients\.0\.model: no model"),
    ({"device": "h200", "hardware": {"kind": "composed", "device": "h20x"}},
     r"clients\.0\.hardware\.device: no device"),
])
def test_an_unknown_name_is_reported_where_it_was_written(change, field, tmp_path):
    text = {"workload": {"requests": 2, "lengths": {"kind": "independent", "prompt": 100, "output": 3},
                         "arrivals": {"kind": "poisson", "rate": 1}},
            "clients": [{"model": "llama-3.1-8b", "device": "h200"} | change]}
    with pytest.raises(InputError, match=field):
        build(scenario_of(as_node(text), tmp_path))


@pytest.mark.parametrize(("name", "hub"), [
    ("Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct"), ("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct"),
    ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"), ("llama-3.3-70b", "llama-3.3-70b"),
])
def test_a_launch_command_starts_the_model_that_was_named(name, hub):
    assert hub_name(name) == hub


def test_every_type_by_name_is_spelled_as_in_a_config():
    assert {"llama", "qwen2", "qwen3", "qwen3_moe", "phi3", "glm4_moe", "deepseek_v3"} <= SUPPORTED.keys()
