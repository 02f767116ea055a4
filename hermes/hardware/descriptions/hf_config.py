"""Convert a Hugging Face `config.json` to the fields of a `ModelDescription`.

A config whose model would behave differently from its description is an error that names the key and a remedy, such as
quantisations without a precision here (`hermes.hardware.descriptions.hf_quantization`). Of a multimodal model only the
text model (`text_config`) is described, and `source` says so: the tower for pictures or sound is not modelled.

Each supported `model_type` differs in the keys that it uses and in what its architecture implies (biases, norms, tied
embeddings by default). Tests compare the table with the parameter counts of published models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes.errors import InputError, Verbatim, inside
from hermes.hardware.descriptions.hf_quantization import stored_dtypes

__all__ = ["SUPPORTED", "from_hf_config", "lacking"]

_DECODER: dict[str, Any] = {"gated_ffn": True, "output_head": "separate"}
_BERT: dict[str, Any] = {
    "gated_ffn": False, "output_head": "none", "causal": False, "norm": "layer", "linear_bias": True,
    "embedding_norm": True, "final_norm": False, "pooler": True,
}
SUPPORTED: dict[str, dict[str, Any]] = {
    "llama": _DECODER,
    "mistral": _DECODER,
    "mixtral": _DECODER,
    "qwen2": _DECODER | {"qkv_bias": True},
    "qwen3": _DECODER | {"qk_norm": True},
    "qwen3_moe": _DECODER | {"qk_norm": True},
    "phi3": _DECODER,
    "glm4_moe": _DECODER | {"qkv_bias": True},
    "minimax_m2": _DECODER | {"qk_norm": True},
    "gpt_oss": _DECODER | {"qkv_bias": True},
    "deepseek_v2": _DECODER,
    "deepseek_v3": _DECODER,
    "kimi_k2": _DECODER,
    "gemma": _DECODER | {"output_head": "tied"},
    "gemma2": _DECODER | {"output_head": "tied", "norms_per_layer": 4},
    "gemma3_text": _DECODER | {"output_head": "tied", "norms_per_layer": 4, "qk_norm": True},
    "bloom": {
        "gated_ffn": False, "output_head": "tied", "norm": "layer", "linear_bias": True, "embedding_norm": True,
    },
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
}
"""Fields that each `model_type` implies."""

_LACKING = {
    "llama4": "chunked attention in three of four layers, and in Maverick a mixture of experts in every other layer",
    "qwen3_next": "linear attention in three of four layers", "qwen3_5": "linear attention in three of four layers",
    "deepseek_v32": "an indexer that selects the tokens that attention reads",
    "glm_moe_dsa": "an indexer that selects the tokens that attention reads",
}

_EXPERTS = {
    "mixtral": "num_local_experts", "gpt_oss": "num_local_experts", "minimax_m2": "num_local_experts",
    "qwen3_moe": "num_experts", "glm4_moe": "n_routed_experts", "deepseek_v2": "n_routed_experts",
    "deepseek_v3": "n_routed_experts", "kimi_k2": "n_routed_experts",
}
"""Key of the number of experts, by `model_type`."""
_OWN_WIDTH = ("qwen3_moe", "glm4_moe", "deepseek_v2", "deepseek_v3", "kimi_k2")   # `moe_intermediate_size`

MOST_WIDE = 2**20
PICTURE, MERGED = 1024, 4   # pixels of a side, and patches that become a token, where a config says neither
_ALIASES = {
    "hidden_size": ("hidden_size", "n_embed", "n_embd"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
}


def lacking(kind: str) -> str:
    """Return what no description can say of a `model_type`, "" where that is not known."""
    return _LACKING.get(kind.removesuffix("_text").removesuffix("_moe"), "")


class _Config:
    """Typed access to the keys of a config; every error names its key."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def size(self, key: str, default: int | None = None) -> int:
        """Return a positive integer under `key` or one of its aliases. Null counts as absent, as in transformers."""
        for name in _ALIASES.get(key, (key,)):
            value = self.data.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**31:
                raise InputError("a positive integer", value, field=name)
            return value
        if default is None:
            raise InputError(Verbatim("missing: every config.json of this kind has it"), field=key)
        return default

    def flag(self, key: str, default: bool) -> bool:
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            raise InputError("true or false", value, field=key)
        return value


def from_hf_config(data: object, name: str) -> dict[str, Any]:
    """Return the fields of a `ModelDescription` called `name`. Raises `InputError` with the wrong key as its field."""
    if not isinstance(data, dict):
        raise InputError("a Hugging Face config.json (an object)", data)
    text = data.get("text_config")
    if text is None:
        fields = _from_text(data, name)
    else:
        if not isinstance(text, dict):
            raise InputError("an object", text, field="text_config")
        outer = {key: data[key] for key in ("quantization_config", "tie_word_embeddings") if key in data}
        with inside("text_config"):
            fields = _from_text(outer | text, name)
    towers = [key for key in ("vision_config", "audio_config") if data.get(key) is not None]
    if text is not None or towers:
        fields["source"] += f", the text model of model_type {data.get('model_type')}"
    if towers:
        fields["source"] += f"; not modelled: {', '.join(towers)}"
    return fields | _vision(data)


def _vision(data: Mapping[str, object]) -> dict[str, object]:
    """Return the vision tower, for memory alone; nothing where its shape has other keys."""
    tower, merged = data.get("vision_config"), data.get("mm_tokens_per_image")
    if not isinstance(tower, dict):
        return {}

    def size(value: object, default: int = 0) -> int:
        return value if isinstance(value, int) and 1 <= value <= MOST_WIDE else default

    shape = {"num_layers": size(tower.get("num_hidden_layers", tower.get("depth"))),
             "hidden_size": size(tower.get("hidden_size")), "intermediate_size": size(tower.get("intermediate_size"))}
    patch = size(tower.get("patch_size"))
    if not all([*shape.values(), patch]):
        return {}
    patches = max(1, size(tower.get("image_size"), PICTURE) // patch) ** 2
    return {"vision": {**shape, "patches": patches, "tokens": size(merged, max(1, patches // MERGED))}}


def _from_text(data: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of a language model without towers."""
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in SUPPORTED:
        what = lacking(kind) if isinstance(kind, str) else ""
        raise InputError(f"one of {', '.join(SUPPORTED)}" + (f"; not modelled: {what}" if what else ""), kind,
                         field="model_type")
    config = _Config(data)
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    if data.get("head_dim") is None and hidden % heads:
        raise InputError(f"a multiple of the {heads} attention heads", hidden, field="hidden_size")
    fields = dict(SUPPORTED[kind])
    fields |= {
        "name": name,
        "hidden_size": hidden,
        "num_layers": config.size("num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": config.size("num_key_value_heads", heads),
        "head_dim": config.size("head_dim", max(1, hidden // heads)),
        "vocab_size": config.size("vocab_size"),
        "source": f"config.json, model_type {kind}",
    }
    if kind == "bloom":
        fields["intermediate_size"] = config.size("intermediate_size", 4 * hidden)
    elif kind in _OWN_WIDTH:
        fields["intermediate_size"] = config.size("moe_intermediate_size")
    else:
        fields["intermediate_size"] = config.size("intermediate_size")
    if fields["output_head"] != "none":
        if config.flag("tie_word_embeddings", fields["output_head"] == "tied"):
            fields["output_head"] = "tied"
        else:
            fields["output_head"] = "separate"
    if kind == "llama" and config.flag("attention_bias", False):
        fields["qkv_bias"] = True
    if kind == "glm4_moe" and config.flag("use_qk_norm", False):
        fields["qk_norm"] = True
    if kind in _EXPERTS:
        fields |= _mixture(kind, config, fields)
    if data.get("kv_lora_rank") is not None:
        fields |= _latent(config)
    if not fields.get("causal", True):
        fields["learned_positions"] = config.size("max_position_embeddings")
        fields["token_types"] = config.size("type_vocab_size")
    if data.get("max_position_embeddings") is not None:
        fields["max_context"] = config.size("max_position_embeddings")
    fields |= _windows(kind, data, config, fields)
    if data.get("quantization_config") is not None:
        with inside("quantization_config"):
            dtype, expert_dtype = stored_dtypes(data["quantization_config"], _beside_experts(
                fields["num_layers"] if fields.get("num_experts") else 0, fields.get("dense_layers", 0),
                bool(fields.get("shared_intermediate_size"))))
        fields |= {key: value for key, value in (("dtype", dtype), ("expert_dtype", expert_dtype)) if value}
    return fields


def _beside_experts(layers: int, dense: int, shared: bool) -> dict[str, set[int]]:
    """Return the layers of a mixture that have matrices besides those of routed experts, by part; none of no layers."""
    if not layers:
        return {}
    found = {"attention": set(range(layers)), "dense layers": set(range(dense))}
    return found | {"shared experts": set(range(dense, layers))} if shared else found


def _mixture(kind: str, config: _Config, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a mixture of experts."""
    found: dict[str, Any] = {"num_experts": config.size(_EXPERTS[kind]),
                             "experts_per_token": config.size("num_experts_per_tok")}
    if config.data.get("n_shared_experts"):
        found["shared_intermediate_size"] = config.size("n_shared_experts") * fields["intermediate_size"]
    if config.data.get("first_k_dense_replace"):
        found["dense_layers"] = config.size("first_k_dense_replace")
        found["dense_intermediate_size"] = config.size("intermediate_size")
    for key, every in (("moe_layer_freq", 1), ("decoder_sparse_step", 1)):
        if config.size(key, every) != every:
            raise InputError("1: mixtures of experts in some layers only are not modelled, but for the first ones",
                             config.data[key], field=key)
    return found


def _latent(config: _Config) -> dict[str, Any]:
    """Return the fields of latent attention."""
    mla = {key: config.size(key) for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
    if config.data.get("q_lora_rank") is not None:
        mla["q_lora_rank"] = config.size("q_lora_rank")
    return {"mla": mla, "head_dim": mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"],
            "num_kv_heads": config.size("num_attention_heads")}


def _windows(kind: str, data: dict[str, Any], config: _Config, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of sliding windows; none where no layer has one shorter than the longest sequence.

    Raises `InputError` for a window without a word on which layers have it.
    """
    if data.get("sliding_window") is None or not config.flag("use_sliding_window", True):
        return {}
    window, layers, longest = config.size("sliding_window"), fields["num_layers"], fields.get("max_context")
    if longest is not None and window >= longest:
        return {}
    types = data.get("layer_types")
    if isinstance(types, list) and len(types) >= layers:
        count = sum(1 for one in types[:layers] if one == "sliding_attention")
    elif data.get("sliding_window_pattern") is not None or kind == "gemma3_text":   # the last of each has none
        every = config.size("sliding_window_pattern", 6)
        count = layers - layers // every
    elif kind == "gemma2":
        count = (layers + 1) // 2
    else:
        count = layers
    return {"window": window, "window_layers": count} if count else {}
