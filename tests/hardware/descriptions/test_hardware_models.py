"""Model and device descriptions: published parameter counts, Hugging Face configs, bytes."""

import json

import pytest
from each import each

from hermes.clients.memory import MemoryConfig
from hermes.errors import InputError
from hermes.hardware import HARDWARE, load_device, load_model
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.descriptions.hf_config import SUPPORTED, from_hf_config
from hermes.hardware.info import hardware_info
from hermes.schedulers.config import SchedulerOptions

# parameter counts of the published checkpoints (sum of the tensors on Hugging Face)


def _glm(hidden, layers, dense, dense_inner, experts, inner, *, qk_norm=False):
    """Parameters of GLM-4.5's architecture: 96 query and 8 key-value heads of 128 with biases, one shared expert."""
    attention = hidden * (96 + 2 * 8) * 128 + (96 + 2 * 8) * 128 + 96 * 128 * hidden
    attention += 2 * hidden + (2 * 128 if qk_norm else 0)
    sparse = 3 * hidden * inner * (experts + 1) + hidden * experts
    return (layers * attention + dense * 3 * hidden * dense_inner + (layers - dense) * sparse
            + 2 * 151_552 * hidden + hidden)


PUBLISHED = {
    # less what the descriptions leave out: biases that correct the routers, of the experts, of o_proj, sinks
    "deepseek-v3": 671_026_419_200 - 58 * 256, "kimi-k2": 1_026_408_232_448 - 60 * 384,
    "gpt-oss-120b": 116_829_156_672 - 36 * (128 * (3 * 2880 + 1) + 2880 + 64),
    "gpt-oss-20b": 20_914_757_184 - 24 * (32 * (3 * 2880 + 1) + 2880 + 64),
    "qwen3-235b-a22b": 235_093_634_560, "llama-3.1-405b": 405_853_388_800,
    "gemma-3-27b": 27_432_406_640 - 423_060_336,   # the vision tower and its projection
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768, "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512, "qwen2.5-14b": 14_770_033_664, "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "phi-4": 14_659_507_200, "phi-4-mini": 3_836_021_760, "phi-3.5-mini": 3_821_079_552,
    "phi-3-mini-4k": 3_821_079_552, "phi-3-medium": 13_960_238_080,
    # by hand: attention, dense and sparse layers, norms, embedding and head; "355B, 32B active" and "106B, 12B active"
    "glm-4.5": _glm(5120, 92, 3, 12288, 160, 1536, qk_norm=True),
    "glm-4.6": _glm(5120, 92, 3, 12288, 160, 1536, qk_norm=True),
    "glm-4.5-air": _glm(4096, 46, 1, 10944, 128, 1408),
    "deepseek-r1-nvfp4": 671_026_419_200 - 58 * 256, "deepseek-r1-mxfp4": 671_026_419_200 - 58 * 256,   # as deepseek-v3
    # by hand: attention, experts, router, norms, embedding and head ("229B, 10B active"); less what its wider norms of
    # queries and keys have over one head's
    "minimax-m2.5": 62 * (3072 * 64 * 128 + 48 * 128 * 3072 + 256 * (3 * 3072 * 1536 + 3072) + 2 * 3072 + 2 * 128)
                    + (2 * 200_064 + 1) * 3072,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-8b": 8_190_735_360, "qwen3-4b": 4_022_468_096, "qwen3-0.6b": 596_049_920, "qwq-32b": 32_763_876_352,
    "glm-4.7": _glm(5120, 92, 3, 12288, 160, 1536, qk_norm=True),
    "deepseek-v3.1": 671_026_419_200 - 58 * 256, "kimi-k2-thinking": 1_026_408_232_448 - 60 * 384,
    "qwen2-7b": 7_615_616_512,
    "qwen3-32b": 32_762_123_264,
    "qwen3-14b": 14_768_307_200,
    "codellama-34b": 33_743_970_304,
    "gemma-2b": 2_506_172_416,
    "gemma-2-2b": 2_614_341_888,
    "bloom-176b": 176_247_271_424,
    "e5-base": 109_482_240,
    "contriever": 109_482_240,
}


@each("name", names_in("models"))
def test_parameter_counts_are_the_published_ones(name):
    assert load_model(name).num_params() == PUBLISHED[name]


def test_every_shipped_model_states_its_longest_context():
    stated = {name: load_model(name).max_context for name in names_in("models")}
    assert stated["llama-3.1-8b"] == 131_072
    assert stated["qwen3-32b"] == 40_960
    assert all(stated.values()), stated


def test_names_in_the_files_are_the_file_names():
    for name in names_in("models"):
        assert load_model(name).name == name
    for name in names_in("devices"):
        assert load_device(name).name == name


def test_active_parameters():
    assert load_model("mixtral-8x7b").active_params() == 12_879_925_248  # "13B active"
    assert load_model("llama-2-7b").active_params() == PUBLISHED["llama-2-7b"]


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [("llama-2-70b", 327_680), ("llama-2-7b", 524_288), ("llama-3.1-8b", 131_072), ("bloom-176b", 4_014_080)],
)
def test_kv_bytes_per_token(name, kv_bytes):
    model = load_model(name)
    assert model.kv_bytes_per_token() == kv_bytes
    assert model.kv_bytes_per_token(1) == kv_bytes // 2
    if model.num_kv_heads == 8:
        assert model.kv_bytes_per_token(2, tp=8) == kv_bytes
        assert model.kv_bytes_per_token(2, tp=16) == 2 * kv_bytes  # every device keeps a whole head


def test_weight_bytes():
    model = load_model("llama-3.1-70b")
    assert model.weight_bytes("bf16") == 2 * PUBLISHED["llama-3.1-70b"]
    assert model.weight_bytes("fp16", tp=8) == PUBLISHED["llama-3.1-70b"] // 4
    assert model.weight_bytes("fp32") == 4 * PUBLISHED["llama-3.1-70b"]
    embeddings = 2 * 128_256 * 8192
    assert model.weight_bytes("fp8") == pytest.approx(PUBLISHED["llama-3.1-70b"] + embeddings, rel=1e-4)
    # the published AWQ checkpoint of this model has 39.8 GB
    assert model.weight_bytes("int4-awq") == pytest.approx(39.8e9, rel=0.01)
    copied = 80 * 8 * 2 * 8192 * 128 * 2  # eight key and eight value heads twice, bf16
    assert model.weight_bytes("bf16", tp=16) == pytest.approx((2 * PUBLISHED["llama-3.1-70b"] + copied) / 16, rel=1e-9)


@pytest.mark.parametrize(("dtype", "tp", "field"), [("int3", 1, "dtype"), ("bf16", 3, "tp"), ("bf16", 0, "tp")])
def test_weight_bytes_refuses(dtype, tp, field):
    with pytest.raises(InputError, match=f"^{field}: expected"):
        load_model("llama-3.1-70b").weight_bytes(dtype, tp)


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128_256, "tie_word_embeddings": False,
    "max_position_embeddings": 131_072, "torch_dtype": "bfloat16", "rope_scaling": {"factor": 8.0},
}
BERT = {
    "model_type": "bert", "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
    "num_hidden_layers": 12, "vocab_size": 30_522, "max_position_embeddings": 512, "type_vocab_size": 2,
}
CONFIGS = {
    "llama-3.1-8b": LLAMA,
    "llama-3.2-3b": LLAMA | {
        "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 24, "num_hidden_layers": 28,
        "head_dim": 128, "tie_word_embeddings": True,
    },
    "llama-2-7b": {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
        "num_hidden_layers": 32, "vocab_size": 32000,
    },
    "mistral-7b": LLAMA | {"model_type": "mistral", "vocab_size": 32000, "head_dim": None},
    "mixtral-8x7b": LLAMA | {
        "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    "qwen2-7b": LLAMA | {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152_064,
    },
    "qwen3-32b": LLAMA | {
        "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600, "num_attention_heads": 64,
        "num_hidden_layers": 64, "vocab_size": 151_936, "head_dim": 128,
    },
    "gemma-2b": LLAMA | {
        "model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8,
        "num_hidden_layers": 18, "num_key_value_heads": 1, "vocab_size": 256_000, "head_dim": 256,
        "tie_word_embeddings": True,
    },
    "deepseek-v3": LLAMA | {
        "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61, "vocab_size": 129_280,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
        "moe_layer_freq": 1, "num_nextn_predict_layers": 1,
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    },
    "kimi-k2": LLAMA | {
        "model_type": "kimi_k2", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_attention_heads": 64, "num_key_value_heads": 64, "num_hidden_layers": 61, "vocab_size": 163_840,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    },
    "minimax-m2.5": LLAMA | {
        "model_type": "minimax_m2", "hidden_size": 3072, "intermediate_size": 1536, "num_attention_heads": 48,
        "num_hidden_layers": 62, "head_dim": 128, "vocab_size": 200_064, "num_local_experts": 256,
        "num_experts_per_tok": 8, "shared_intermediate_size": 0,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": [
            "gate", "e_score_correction_bias", "lm_head"]},
    },
    "gpt-oss-120b": LLAMA | {
        "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 36, "vocab_size": 201_088,
        "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128, "attention_bias": True,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
    },
    "qwen3-0.6b": LLAMA | {
        "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
        "num_hidden_layers": 28, "head_dim": 128, "vocab_size": 151_936, "tie_word_embeddings": True},
    "gemma-3-27b": {"model_type": "gemma3", "mm_tokens_per_image": 256, "vision_config": {
        "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "num_hidden_layers": 27, "patch_size": 14},
        "text_config": LLAMA | {
        "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504, "num_attention_heads": 32,
        "num_key_value_heads": 16, "head_dim": 128, "num_hidden_layers": 62, "vocab_size": 262_208,
        "sliding_window": 1024, "sliding_window_pattern": 6, "tie_word_embeddings": True}},
    "qwen3-235b-a22b": LLAMA | {
        "model_type": "qwen3_moe", "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536,
        "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 94,
        "vocab_size": 151_936, "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1},
    "llama-3.1-405b": LLAMA | {
        "hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128, "num_hidden_layers": 126},
    "gemma-2-2b": LLAMA | {
        "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8,
        "num_hidden_layers": 26, "num_key_value_heads": 4, "vocab_size": 256_000, "head_dim": 256,
        "tie_word_embeddings": True,
    },
    "bloom-176b": {
        "model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250_880,
    },
    "e5-base": BERT,
}


CONFIGS["kimi-k2-thinking"] = CONFIGS["kimi-k2"] | {"quantization_config": {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "kv_cache_scheme": None,
    "config_groups": {"group_0": {"input_activations": None, "targets": ["Linear"], "weights": {
        "group_size": 32, "num_bits": 4, "strategy": "group", "symmetric": True, "type": "int"}}},
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]}}


@pytest.mark.parametrize("name", CONFIGS)
def test_hugging_face_configs_give_the_shipped_description(name, tmp_path):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    loaded, shipped = load_model(name + "/config.json", tmp_path), load_model(name)
    ignored = {"source", "max_context", "top_p"}   # the last is in generation_config.json
    assert loaded.model_dump(exclude=ignored) == shipped.model_dump(exclude=ignored)
    assert load_model(folder) == loaded


def test_a_mixture_with_its_own_expert_width():
    config = LLAMA | {
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_attention_heads": 32, "num_key_value_heads": 4, "num_hidden_layers": 48, "head_dim": 128,
        "vocab_size": 151_936, "num_experts": 128, "num_experts_per_tok": 8,
    }
    fields = from_hf_config(config, "qwen3-30b-a3b")
    model = type(load_model("llama-2-7b")).model_validate(fields)
    assert model.num_params() == 30_532_122_624
    assert model.active_params() == pytest.approx(3.3e9, rel=0.02)


def test_attention_bias_of_a_llama_config_counts():
    fields = from_hf_config(LLAMA | {"attention_bias": True}, "x")
    assert fields["qkv_bias"] is True


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "modules_to_not_convert": ["lm_head"]}


def compressed(weights, inputs, **more):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]} | more


FLOAT8, INT8 = {"type": "float", "num_bits": 8}, {"type": "int", "num_bits": 8}
INT4 = {"type": "int", "num_bits": 4, "group_size": 128}


@pytest.mark.parametrize(
    ("quantization", "dtype", "weights_gb"),
    [
        (None, "", 16.06), (FP8, "fp8-block", 9.08), (AWQ, "int4-awq", 5.73),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, "int4-awq", 5.73),
        (compressed(FLOAT8, FLOAT8), "fp8", 9.08), (compressed(INT8, INT8), "int8", 9.08),
        (compressed(INT4, None), "int4-awq", 5.73), ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", 9.08),
        (FP8 | {"modules_to_not_convert": ["model.layers.0.mlp.gate", "visual", "lm_head"]}, "fp8-block", 9.08),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 6.03),
        ({"producer": {"name": "modelopt"}, "quant_algo": "FP8", "ignore": ["lm_head"]}, "fp8", 9.08),
        (compressed(FLOAT8 | {"strategy": "block", "block_structure": [128, 128]}, FLOAT8), "fp8-block", 9.08),
        (compressed(FLOAT8 | {"strategy": "channel"}, FLOAT8 | {"strategy": "token"}), "fp8", 9.08),
    ],
)
def test_quantization_of_a_config_is_the_default_precision(quantization, dtype, weights_gb, tmp_path):
    """A checkpoint in FP8 was priced, and its weights were sized, as if it were in 16 bits."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"quantization_config": quantization}))
    model = load_model(tmp_path / "config.json")
    assert model.dtype == dtype
    options = {"kind": "roofline", "model": str(tmp_path / "config.json"), "device": "h100-sxm"}
    built = HARDWARE.get("roofline").model_validate(options).build()
    assert built.options.dtype == dtype or (built.options.dtype == "bf16" and not dtype)
    info = hardware_info(built)
    memory = MemoryConfig().budget(str(tmp_path / "config.json"), 1, info, info.device, SchedulerOptions(), None)
    assert memory.weights.bytes / 1e9 == pytest.approx(weights_gb, abs=0.005)
    given = HARDWARE.get("roofline").model_validate(options | {"dtype": "bf16"}).build()
    assert given.options.dtype == "bf16"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantization_config": {"quant_method": "mxfp4"}}, "quantization_config.quant_method: expected a mixture"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "quant_method: expected one"),
        ({"quantization_config": "fp8"}, "quantization_config: expected an object, found 'fp8'"),
        ({"quantization_config": AWQ | {"bits": 8}}, "quantization_config.bits: expected 4"),
        ({"quantization_config": AWQ | {"group_size": 32}}, "quantization_config.group_size: expected 128"),
        ({"quantization_config": FP8 | {"ignored_layers": ["layers.0.mlp.down_proj"]}}, "ignored_layers: expected"),
        ({"quantization_config": compressed(FLOAT8, None)}, "config_groups.group_0.weights.type: expected int"),
        ({"quantization_config": compressed(INT4, INT8)}, "config_groups.group_0.weights.num_bits: expected 8"),
        ({"quantization_config": compressed(FLOAT8, FLOAT8, kv_cache_scheme=FLOAT8)}, "kv_cache_scheme: expected null"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A8"}}, "quant_algo: expected FP8 or"),
        ({"model_type": "qwen3_moe", "moe_intermediate_size": 100, "num_experts": 8, "num_experts_per_tok": 2,
          "decoder_sparse_step": 2}, "decoder_sparse_step: expected 1"),
        ({"quantization_config": compressed(FLOAT8 | {"strategy": "block", "block_structure": [64, 64]}, FLOAT8)},
         "weights.block_structure: expected [128, 128]"),
        ({"text_config": [1]}, "text_config: expected an object"),
        ({"text_config": {"model_type": "llama4_text"}}, "xlm-roberta; not modelled: chunked attention in"),
        ({"text_config": {"model_type": "llama", "hidden_size": 64}}, "text_config.num_attention_heads: missing"),
    ],
)
def test_what_a_description_cannot_say_is_refused(change, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"max_position_embeddings": 32_768} | change))
    with pytest.raises(InputError) as caught:
        load_model(tmp_path / "config.json")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


MIXTURE = CONFIGS["kimi-k2"] | {"num_hidden_layers": 3}
EACH = [f"model.layers.{layer}.{part}" for layer in range(3) for part in ("self_attn*", "mlp.shared_experts*")]


def test_layers_that_are_left_out_one_by_one_leave_the_experts_alone():
    """Checkpoints of ModelOpt list each layer; one that leaves out part of them is refused, not rounded."""
    quantised = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": [*EACH, "model.layers.0.mlp*"]}
    fields = from_hf_config(MIXTURE | {"quantization_config": quantised}, "m")
    assert (fields.get("dtype"), fields["expert_dtype"]) == (None, "nvfp4")
    some = (EACH[:-1], EACH, ["model.layers.*.self_attn"], [*EACH, "model.layers.0.mlp*", "model.layers.1.mlp.up_proj"])
    for names in some:
        with pytest.raises(InputError, match="left out, or all but the routed experts") as caught:
            from_hf_config(MIXTURE | {"quantization_config": quantised | {"exclude_modules": names}}, "m")
        assert caught.value.field == "quantization_config.exclude_modules"


def test_the_file_that_modelopt_writes_beside_a_config_is_read(tmp_path):
    """Such a checkpoint was taken for one of 16 bits."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    quantised = {"producer": {"name": "modelopt"}, "quantization": {
        "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quantised))
    assert load_model(tmp_path / "config.json").dtype == "fp8"
    (tmp_path / "hf_quant_config.json").write_text("[]")
    with pytest.raises(InputError, match=r"hf_quant_config.json: expected an object with"):
        load_model(tmp_path / "config.json")


@pytest.mark.parametrize("change", [
    {"sliding_window": None}, {"sliding_window": 4096, "use_sliding_window": False}, {"sliding_window": 32_768},
    {"sliding_window": 4096, "layer_types": ["full_attention"] * 32},
    {"sliding_window": 4096, "max_position_embeddings": 4096},
])
def test_a_sliding_window_that_cannot_matter_is_accepted(change):
    fields = from_hf_config(LLAMA | {"max_position_embeddings": 32_768} | change, "m")
    assert fields["max_context"] in (4096, 32_768)
    assert "window" not in fields


@pytest.mark.parametrize(("change", "layers"), [
    ({}, 32), ({"use_sliding_window": True}, 32), ({"layer_types": ["sliding_attention", "full_attention"] * 16}, 16),
    ({"sliding_window_pattern": 6}, 27),
])
def test_layers_with_a_sliding_window_are_counted(change, layers):
    fields = from_hf_config(LLAMA | {"sliding_window": 4096} | change, "m")
    assert (fields["window"], fields["window_layers"]) == (4096, layers)


def test_the_text_model_of_a_multimodal_config_is_described():
    vision = {"hidden_size": 1024, "model_type": "pixtral"}
    config = {"model_type": "mistral3", "text_config": LLAMA | {"model_type": "mistral"}, "vision_config": vision,
              "quantization_config": FP8}
    fields = from_hf_config(config, "m")
    plain = from_hf_config(LLAMA | {"model_type": "mistral"}, "m")
    source = fields.pop("source")
    assert {key: fields[key] for key in plain if key != "source"} == {k: v for k, v in plain.items() if k != "source"}
    assert fields["dtype"] == "fp8-block"
    assert source.endswith("the text model of model_type mistral3; not modelled: vision_config")
    assert "not modelled: vision_config" in from_hf_config(LLAMA | {"vision_config": vision}, "m")["source"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n "hidden_size": 4096,\n "model_type": "llama",\n "hidden_size": 2048\n}',
         "config.json:4: hidden_size: expected each key once, found 'hidden_size' again"),
        ('{"text_config": {"a": 1,\n"b": [{"c": 1}, {"c": 2}],\n "a": "x, \\"b\\": {"}}',
         "config.json:3: text_config.a: "),
        ('{"a": [{"b": 1,\n\n "b": 2}]}', "config.json:3: a.b: "),
    ],
)
def test_a_key_that_comes_twice_is_refused_with_its_line(text, message, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError) as caught:
        load_model(tmp_path / "config.json")
    assert message in str(caught.value)


@each("kind", SUPPORTED)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None, "n_embed": None}, "hidden_size: missing"),
        ({"hidden_size": "4096"}, "hidden_size: expected a positive integer, found '4096'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected a positive integer, found 0"),
        ({"vocab_size": True}, "vocab_size: expected a positive integer, found true"),
        ({"vocab_size": 10**30}, "vocab_size: expected a positive integer, found 1"),
        ({"num_attention_heads": 7}, "hidden_size: expected a multiple of the 7 attention heads, found 4096"),
        ({"num_attention_heads": 3.5}, "num_attention_heads: expected a positive integer, found 3.5"),
    ],
)
def test_bad_configs_name_the_key(kind, change, message, tmp_path):
    config = LLAMA | {
        "type_vocab_size": 2, "num_experts": 8, "n_routed_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 100, "model_type": kind,
    }
    (tmp_path / "ok.json").write_text(json.dumps(config))
    assert load_model("ok.json", tmp_path).name == "ok"
    (tmp_path / "bad.json").write_text(json.dumps(config | change))
    with pytest.raises(InputError) as caught:
        load_model("bad.json", tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'bad.json'}: {message}")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([], r"expected a Hugging Face config\.json"),
        ({}, "model_type: expected one of"),
        ({"model_type": "lama"}, r"model_type: expected one of llama, .*, found 'lama'$"),
        ({"model_type": ["llama"]}, "model_type: expected one of"),
        (LLAMA | {"num_key_value_heads": 5}, r"num_kv_heads: expected a divisor of num_heads \(32\), found 5"),
        (LLAMA | {"tie_word_embeddings": "no"}, "tie_word_embeddings: expected true or false, found 'no'"),
        (LLAMA | {"model_type": "mixtral"}, "num_local_experts: missing"),
        (
            LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5},
            r"experts_per_token: expected 1 to num_experts \(4\)",
        ),
    ],
)
def test_other_configs_are_refused(config, message, tmp_path):
    (tmp_path / "c.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=message):
        load_model("c.json", tmp_path)


@each("name", sorted(set(names_in("devices")) - {"cpu-core"}))  # round figures, for plans only
def test_devices_are_plausible(name):
    device = load_device(name)
    assert 1e12 < device.peak("bf16") < 1e16
    assert 2e11 < device.memory_bandwidth < 1e13
    assert 15e9 < device.memory < 5e12
    assert device.host_bandwidth <= device.link_bandwidth < device.memory_bandwidth
    assert device.sources
    if device.tdp_w is not None:
        assert device.idle_w < device.tdp_w / (3 if name.startswith("cpu") else 4)    # whole servers idle higher


def test_devices_by_name():
    assert 79 * 2**30 < load_device("h100-sxm").memory < 80 * 2**30
    assert load_device("a100-80gb").peak("fp8") == load_device("a100-80gb").peak("bf16") == 312e12
    assert load_device("cpu-large").peak("bf16") == 14.2e12
    with pytest.raises(InputError, match=r"nearest: h100-sxm \(3,350 GB/s\)"):
        load_device("h100-smx")


@pytest.mark.parametrize(("settings", "keeps"), [
    (None, False), ({"top_p": 0.9}, True), ({"top_p": 1.0}, False), ({}, False)])
def test_top_p_of_a_folder_is_that_of_its_generation_settings(tmp_path, settings, keeps):
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 500, "max_position_embeddings": 64}))
    if settings is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    assert load_model(tmp_path / "config.json").top_p is keeps
