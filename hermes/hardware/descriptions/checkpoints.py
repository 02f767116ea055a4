"""Published checkpoints by their names at Hugging Face: the precision of their weights, and their longest sequence.

The end of a name (`-FP8`, `-AWQ`) does not decide how weights are stored: Qwen's FP8 has a scale for a block of
128 x 128 weights, NVIDIA's one for a tensor, Red Hat AI's one for a column. The publisher and the model decide, by the
table `RULES`. A checkpoint that no row covers, or that has a precision without a key, is an error that names it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.files import is_name, names_in
from hermes.hardware.descriptions.names import meant

__all__ = ["RULES", "Checkpoint", "Stored", "checkpoint", "split_name", "stored"]


class Stored(NamedTuple):
    """How a checkpoint stores its weights; empty fields are those of the model description."""

    dtype: str = ""
    """Precision of the layers' matrices."""
    methods: tuple[str, ...] = ()
    """Values of `--quantization` with which vLLM loads it: the `quant_method` of its config.json and its kernels."""
    expert_dtype: str | None = None
    """Precision of the routed experts; None: that of the description where `dtype` is empty, else `dtype`."""
    kv_dtype: str = ""
    """Precision of the KV cache that the checkpoint asks engines for."""


class Checkpoint(NamedTuple):
    """A published checkpoint of a shipped model description."""

    model: str
    """Name of the description."""
    stored: Stored
    max_context: int | None
    """Its longest sequence in tokens, if that is not the description's."""

    def changes(self) -> dict[str, str | int]:
        """Return the fields of the description that the checkpoint has in another way."""
        found: dict[str, str | int] = {}
        if self.stored.dtype:
            found |= {"dtype": self.stored.dtype, "expert_dtype": self.stored.expert_dtype or ""}
        return found if self.max_context is None else found | {"max_context": self.max_context}


_FORMAT = re.compile(
    r"[-_.](?P<format>(?:unsloth-)?(?:bnb|nf4|fp8|fp4|bf16|awq|gptq|nvfp4(?:a16)?|mxfp[468]|quantized\.w\d+a\d+|w\d+a\d+|int[48]|"
    r"[2-8]-?bits?|gguf|mlx|exl[23]|qat|autoround|hqq|marlin|ptpc)(?:[-_.].*)?)\Z", re.IGNORECASE)
_COMPRESSED, _MODELOPT = ("compressed-tensors",), ("modelopt", "modelopt_fp4", "modelopt_mixed")
_AWQ, _GPTQ = ("awq", "awq_marlin", "moe_wna16"), ("gptq", "gptq_marlin", "moe_wna16")
_REDHAT = r"redhatai|neuralmagic"
_TESTED = r"(code)?llama|qwen|qwq|mistral|mixtral|phi|gemma"   # families whose layers Red Hat AI quantises whole
_DENSE = r"llama|qwen|qwq|phi"
_CONFIG = "quantization_config of the config.json"

RULES: tuple[tuple[str, str, str, Stored, str], ...] = (
    ("qwen", r"fp8", r"qwen3", Stored("fp8-block", ("fp8",)),
     f"{_CONFIG} of Qwen3-32B-FP8, -30B-A3B-FP8 and -235B-A22B-FP8: weight_block_size 128, 128"),
    ("qwen", r"fp8-static-pertensor", r"qwen3", Stored("fp8", _MODELOPT, kv_dtype="fp8"),
     "hf_quant_config.json of Qwen3-32B-FP8-Static-PerTensor"),
    ("qwen", r"awq", r"qwen|qwq", Stored("int4-awq", _AWQ), "Qwen's pages on AWQ: groups of 128"),
    ("qwen", r"gptq-int4", r"qwen", Stored("int4-awq", _GPTQ), "Qwen's pages on GPTQ: groups of 128"),
    (r"zai-org|zhipuai", r"fp8", r"glm-4\.[567]", Stored("fp8", _COMPRESSED),
     "compressed-tensors, a scale per channel and token: kernels tuned for GLM-4.6-FP8 have no blocks (vLLM pull "
     "request 29182), layers of GLM-4.5-FP8 load as CompressedTensorsW8A8Fp8"),
    (_REDHAT, r"fp8|fp8-dynamic", _TESTED, Stored("fp8", ("compressed-tensors", "fp8")),
     "llm-compressor: FP8 is a scale per tensor, FP8_DYNAMIC one per channel and token; AutoFP8 before it"),
    (_REDHAT, r"fp8-block", _TESTED, Stored("fp8-block", _COMPRESSED), "llm-compressor: FP8_BLOCK is 128 x 128"),
    (_REDHAT, r"quantized\.w8a8", _TESTED, Stored("int8", _COMPRESSED), "llm-compressor: W8A8 is int8"),
    (_REDHAT, r"quantized\.w4a16", rf"(?!qwen3-(0\.6|4)b)({_TESTED})", Stored("int4-awq", _COMPRESSED),
     "llm-compressor: W4A16 has groups of 128; card of Qwen3-30B-A3B-quantized.w4a16"),
    (_REDHAT, r"nvfp4", _TESTED, Stored("nvfp4", _COMPRESSED), "llm-compressor: NVFP4 of weights and activations"),
    ("nvidia", r"fp8", _DENSE, Stored("fp8", (*_MODELOPT, "fp8"), kv_dtype="fp8"),
     "hf_quant_config.json of Llama-3.1-70B-Instruct-FP8: FP8 of weights and KV, lm_head left out"),
    ("nvidia", r"fp4|nvfp4", _DENSE, Stored("nvfp4", _MODELOPT, kv_dtype="fp8"),
     "hf_quant_config.json of Qwen3-235B-A22B-NVFP4: FP8 KV, lm_head and routers left out"),
    ("nvidia", r"nvfp4", r"minimax-m2", Stored("bf16", _MODELOPT, "nvfp4", "fp8"),
     "hf_quant_config.json of MiniMax-M2.5-NVFP4: attention, lm_head and routers left out, FP8 KV"),
    ("amd", r"fp8-kv", r"llama|mixtral|qwen", Stored("fp8", ("quark",)), "AMD's cards: Quark, a scale per tensor"),
    ("hugging-quants", r"(awq|gptq)-int4", r"llama", Stored("int4-awq", _AWQ + _GPTQ), "its cards: groups of 128"),
    (r".*", r"bf16", r".*", Stored("bf16"), "a copy in 16 bits"),
)
"""Publisher, end of the name, description (patterns that match from the start; the first two match whole), how the
weights are stored, and the source of the row. Rows whose source is a config.json were compared with it, the others rest
on the tool or the cards of the publisher."""

_REFUSED = (
    (r".*", r".*(gguf|mlx|exl[23]|hqq)(\W.*)?", r".*", "a format of other engines than vLLM and SGLang"),
    (r"mlx-community|lmstudio-community|ollama", r".*", r".*", "a format of other engines than vLLM and SGLang"),
    (r".*", r".*(bnb|nf4)(\W.*)?", r".*", "bitsandbytes"),
    (r".*", r"(gptq-int8|.*w8a16)", r".*", "8-bit weights with 16-bit activations"),
    (r".*", r"nvfp4a16", r".*", "NVFP4 weights with 16-bit activations"),
    (r"amd", r"mxfp4.*", r".*", "MXFP4 of weights and activations (Quark), of layers that are not known"),
    (r".*", r"mxfp[68].*", r".*", "MXFP6 and MXFP8"),
    (r"meta-llama", r"fp8.*", r".*", "FP8 of the feed-forward networks of all layers but two (FBGEMM)"),
    ("nvidia", r"(nv)?fp4.*", r"deepseek|kimi|glm", "NVFP4, but for some matrices of attention in 16 bits"),
)
"""Precisions without a key, in the same order, and what they are."""

_CONTEXTS = (
    (r".*/qwen3-(30b-a3b|235b-a22b|4b)-(instruct|thinking)-2507", 262_144),
    (r".*/qwen3-coder-30b-a3b(-instruct)?", 262_144), (r".*/kimi-k2-instruct-0905", 262_144),
    (r"(minimaxai)?/minimax-m2\.7", 204_800),
    (r"deepseek-ai/deepseek-r1-(distill-qwen-(7b|14b|32b)|0528-qwen3-8b)", 131_072),
)
"""`max_position_embeddings` of checkpoints that share the description of another one, by PUBLISHER/NAME."""


def split_name(text: str) -> tuple[str, str, str]:
    """Return publisher, name without the precision, and what the name says of the precision ("" for nothing).

    Publisher and precision are in lower case; a path gives its last two parts.
    """
    above, _, name = text.rpartition("/")
    found = _FORMAT.search(name)
    owner = above.rpartition("/")[2].lower()
    if found is None:
        return owner, name, ""
    return owner, name[:found.start()], found["format"].lower().replace("_", "-")


def stored(text: str, model: str) -> Stored:
    """Return how the checkpoint `text` of the description `model` stores its weights.

    Raises `InputError` for a precision that is not modelled or not known.
    """
    owner, _, form = split_name(text)
    if not form:
        return Stored()
    remedy = f"write the model {model} and the precision that stands for it (`hardware: {{dtype: ...}}`)"
    for owners, forms, models, what in _REFUSED:
        if re.fullmatch(owners, owner) and re.fullmatch(forms, form) and re.match(models, model):
            raise InputError(Verbatim(f"the precision of {text} is not modelled: {what}; {remedy}"))
    for owners, forms, models, found, _ in RULES:
        if re.fullmatch(owners, owner) and re.fullmatch(forms, form) and re.match(models, model):
            return found
    whose = "its publisher is not in the name" if not owner else f"it is not known for checkpoints of {owner}"
    raise InputError(Verbatim(f"{form} of {text} does not say how its weights are stored, and {whose}; give the path "
                              f"of its config.json, or {remedy}"))


def checkpoint(text: str, base_dir: Path | None = None) -> Checkpoint | None:
    """Return the checkpoint of a name at Hugging Face.

    None for one whose model does not ship, for the name of a description, and for a path (relative to `base_dir`).
    Raises `InputError` for a precision that is not modelled or not known.
    """
    names = names_in("models")
    if text in names or not is_name(text, base_dir, "models"):
        return None
    owner, base, _ = split_name(text)
    model = meant("models", base, names)
    if model is None:
        return None
    longest = next((tokens for pattern, tokens in _CONTEXTS if re.fullmatch(pattern, f"{owner}/{base.lower()}")), None)
    return Checkpoint(model, stored(text, model), longest)
