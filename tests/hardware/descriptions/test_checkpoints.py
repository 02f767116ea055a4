"""Precision, context and KV of published checkpoints by their names, each as its publisher's config.json says."""

import json
from pathlib import Path

import pytest
from each import each

from hermes.deploy.vllm import hub_name
from hermes.errors import InputError
from hermes.hardware.descriptions.checkpoints import RULES, checkpoint, stored
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.descriptions.hf_config import lacking
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.descriptions.names import remark

LONG = 262_144
KNOWN = {   # name: (description, dtype, experts' dtype, longest sequence or None for the description's)
    **{f"Qwen/Qwen3-{size}-FP8": (f"qwen3-{size.lower()}", "fp8-block", "", None)
       for size in ("0.6B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")},
    **{f"Qwen/Qwen3-{size}-{kind}-2507{end}": (f"qwen3-{size.lower()}", "fp8-block" if end else "", "", LONG)
       for size in ("4B", "30B-A3B", "235B-A22B") for kind in ("Instruct", "Thinking") for end in ("", "-FP8")},
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": ("qwen3-30b-a3b", "", "", LONG),
    "Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8": ("qwen3-30b-a3b", "fp8-block", "", LONG),
    "Qwen/Qwen3-32B-FP8-Static-PerTensor": ("qwen3-32b", "fp8", "", None),
    **{f"Qwen/Qwen3-{size}-AWQ": (f"qwen3-{size.lower()}", "int4-awq", "", None)
       for size in ("4B", "8B", "14B", "32B")},
    "Qwen/Qwen3-30B-A3B-GPTQ-Int4": ("qwen3-30b-a3b", "int4-awq", "", None),
    "Qwen/Qwen2.5-72B-Instruct-AWQ": ("qwen2.5-72b", "int4-awq", "", None),
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4": ("qwen2.5-7b", "int4-awq", "", None),
    "Qwen/QwQ-32B": ("qwq-32b", "", "", None), "Qwen/QwQ-32B-AWQ": ("qwq-32b", "int4-awq", "", None),
    "deepseek-ai/DeepSeek-V3": ("deepseek-v3", "fp8-block", "", None),
    "deepseek-ai/DeepSeek-R1-0528": ("deepseek-v3", "fp8-block", "", None),
    "deepseek-ai/DeepSeek-V3.1-Terminus": ("deepseek-v3.1", "fp8-block", "", None),
    "zai-org/GLM-4.5-FP8": ("glm-4.5", "fp8", "", None), "zai-org/GLM-4.5-Air-FP8": ("glm-4.5-air", "fp8", "", None),
    "zai-org/GLM-4.6-FP8": ("glm-4.6", "fp8", "", None), "zai-org/GLM-4.7-FP8": ("glm-4.7", "fp8", "", None),
    "zai-org/GLM-4.7": ("glm-4.7", "", "", None),
    "MiniMaxAI/MiniMax-M2": ("minimax-m2.5", "fp8-block", "", None),
    "MiniMaxAI/MiniMax-M2.5": ("minimax-m2.5", "fp8-block", "", None),
    "MiniMaxAI/MiniMax-M2.7": ("minimax-m2.5", "fp8-block", "", 204_800),
    "nvidia/MiniMax-M2.5-NVFP4": ("minimax-m2.5", "bf16", "nvfp4", None),
    "moonshotai/Kimi-K2-Instruct": ("kimi-k2", "fp8-block", "", None),
    "moonshotai/Kimi-K2-Instruct-0905": ("kimi-k2", "fp8-block", "", LONG),
    "moonshotai/Kimi-K2-Thinking": ("kimi-k2-thinking", "", "int4", LONG),
    "openai/gpt-oss-120b": ("gpt-oss-120b", "", "mxfp4", None),
    "unsloth/gpt-oss-20b-BF16": ("gpt-oss-20b", "bf16", "", None),
    "RedHatAI/Qwen3-30B-A3B-FP8-dynamic": ("qwen3-30b-a3b", "fp8", "", None),
    "RedHatAI/Qwen3-30B-A3B-FP8-block": ("qwen3-30b-a3b", "fp8-block", "", None),
    "neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8": ("llama-3.1-8b", "fp8", "", None),
    "RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8": ("llama-3.1-70b", "int8", "", None),
    "RedHatAI/Qwen3-30B-A3B-quantized.w4a16": ("qwen3-30b-a3b", "int4-awq", "", None),
    "RedHatAI/Qwen3-32B-NVFP4": ("qwen3-32b", "nvfp4", "", None),
    "nvidia/Llama-3.1-70B-Instruct-FP8": ("llama-3.1-70b", "fp8", "", None),
    "nvidia/Llama-3.3-70B-Instruct-FP4": ("llama-3.1-70b", "nvfp4", "", None),
    "nvidia/Qwen3-235B-A22B-NVFP4": ("qwen3-235b-a22b", "nvfp4", "", None),
    "amd/Llama-3.1-8B-Instruct-FP8-KV": ("llama-3.1-8b", "fp8", "", None),
    "hugging-quants/Meta-Llama-3.1-405B-Instruct-AWQ-INT4": ("llama-3.1-405b", "int4-awq", "", None),
}
NAMED = {   # names whose precision is not modelled or not known, and what their message says
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8": "8-bit weights with 16-bit activations",
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a16": "8-bit weights with 16-bit activations",
    "RedHatAI/Qwen3-8B-NVFP4A16": "16-bit activations", "amd/Llama-3.3-70B-Instruct-MXFP4-Preview": "MXFP4",
    "nvidia/DeepSeek-V3.1-NVFP4": "attention in 16 bits", "nvidia/Kimi-K2-Thinking-NVFP4": "attention in 16 bits",
    "meta-llama/Llama-3.1-405B-Instruct-FP8": "FBGEMM", "TheBloke/Llama-2-7B-Chat-GGUF": "other engines",
    "unsloth/Qwen3-30B-A3B-GGUF": "other engines", "unsloth/Qwen3-8B-unsloth-bnb-4bit": "bitsandbytes",
    "TheBloke/Llama-2-7B-Chat-AWQ": "not known for checkpoints of thebloke",
    "unsloth/Qwen3-30B-A3B-FP8": "not known for checkpoints of unsloth",
    "RedHatAI/Qwen3-0.6B-quantized.w4a16": "not known", "qwen3-30b-a3b-fp8": "its publisher is not in the name",
}


@each("name", KNOWN)
def test_a_name_gives_the_precision_and_the_context_of_its_config(name):
    model, dtype, experts, longest = KNOWN[name]
    found, own = load_model(name), load_model(model)
    assert (found.name, found.dtype, found.expert_dtype) == (model, dtype, experts)
    assert found.max_context == (own.max_context if longest is None else longest)
    same = {"dtype", "expert_dtype", "max_context"}
    assert found.model_dump(exclude=same) == own.model_dump(exclude=same)


@each("name", NAMED)
def test_a_precision_that_is_not_known_is_named_in_one_line(name):
    with pytest.raises(InputError) as caught:
        load_model(name)
    text = str(caught.value)
    assert NAMED[name] in text
    assert "hardware: {dtype: ...}" in text
    assert "\n" not in text


@each("name", names_in("models"))
def test_the_name_of_each_description_at_the_hub_is_its_own(name):
    hub = hub_name(name)
    found = checkpoint(hub) if "/" in hub else None
    if found is not None:
        assert (found.model, found.max_context, found.changes()) == (name, None, {})


def test_every_row_is_the_row_of_a_known_name_and_states_its_source():
    used = {id(stored(name, model)) for name, (model, *_) in KNOWN.items()}
    assert {id(row[3]) for row in RULES} <= used
    assert all(row[4] for row in RULES)


def test_a_path_is_not_a_name(tmp_path):
    """A folder of the user is described by its config.json, whatever it is called."""
    folder = tmp_path / "nvidia" / "DeepSeek-V3.1-NVFP4"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
        "intermediate_size": 128}))
    assert load_model("nvidia/DeepSeek-V3.1-NVFP4", tmp_path).num_layers == 2
    assert checkpoint("nvidia/DeepSeek-V3.1-NVFP4", tmp_path) is None


def test_weights_of_a_checkpoint_whose_experts_alone_have_four_bits():
    """The files of Kimi-K2-Thinking at Hugging Face have 594 GB."""
    thinking = load_model("moonshotai/Kimi-K2-Thinking")
    assert thinking.weight_bytes(thinking.dtype or "bf16") == pytest.approx(594e9, rel=0.001)


@pytest.mark.parametrize(("name", "line"), [
    ("nvidia/Llama-3.3-70B-Instruct-FP8", "model nvidia/Llama-3.3-70B-Instruct-FP8 has the shape of llama-3.1-70b, "
     "whose description is used; asks for a KV cache in FP8: `hardware: {kv_dtype: fp8}`"),
    ("nvidia/Qwen3-32B-NVFP4", "model nvidia/Qwen3-32B-NVFP4 asks for a KV cache in FP8: `hardware: {kv_dtype: fp8}`"),
    ("Qwen/Qwen3-30B-A3B-FP8", None), ("Qwen/Qwen3-1.7B-FP8", None),
])
def test_what_a_run_says_of_a_checkpoint(name, line):
    assert remark("models", name, names_in("models")) == line


def test_the_page_lists_the_types_that_no_description_covers():
    page = (Path(__file__).parents[3] / "docs/background/not-modelled.md").read_text()
    for kind in ("llama4", "qwen3_next", "qwen3_5", "deepseek_v32", "glm_moe_dsa"):
        assert lacking(kind) in page
        assert f"`{kind}`" in page
