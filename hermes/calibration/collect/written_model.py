"""A model folder of random weights, for starts of an engine: config.json, weights in safetensors, a tokenizer.

No hub is asked. The files have the sizes and the forms of a published model's, so that reading them takes as long:
weights of every tensor in its precision, a byte-level BPE with a merge for each word. numpy and the standard library.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["WRITTEN", "tensors", "weight_files", "write_model"]

WRITTEN = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Architectures whose weights can be written."""
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
_SAFETENSORS = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
TORCH = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_BLOCK = 1 << 22   # numbers that are drawn once, and written again and again


def tensors(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors of a config.json. Raises ValueError for another architecture than `WRITTEN`."""
    kind = (config.get("architectures") or [""])[0]
    if kind not in WRITTEN:
        raise ValueError(f"weights of {kind or 'an unnamed architecture'} cannot be written: give a folder that has "
                         f"them, or weights: dummy")
    hidden, heads, ffn = config["hidden_size"], config["num_attention_heads"], config["intermediate_size"]
    dim = config.get("head_dim") or hidden // heads
    queries, keys = heads * dim, (config.get("num_key_value_heads") or heads) * dim
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        out |= {f"{at}.{norm}_layernorm.weight": (hidden,) for norm in ("input", "post_attention")}
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            out[f"{at}.self_attn.{name}_proj.weight"] = (rows, hidden)
            if kind == "Qwen2ForCausalLM":
                out[f"{at}.self_attn.{name}_proj.bias"] = (rows,)
        if kind == "Qwen3ForCausalLM":
            out |= {f"{at}.self_attn.{name}_norm.weight": (dim,) for name in ("q", "k")}
        out[f"{at}.self_attn.o_proj.weight"] = (hidden, queries)
        out |= {f"{at}.mlp.{name}_proj.weight": (ffn, hidden) for name in ("gate", "up")}
        out[f"{at}.mlp.down_proj.weight"] = (hidden, ffn)
    out["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings"):
        out["lm_head.weight"] = (config["vocab_size"], hidden)
    return out


def weight_files(folder: Path) -> list[Path]:
    """Return the files of a model folder that hold weights."""
    return sorted(path for kind in ("safetensors", "bin", "pt") for path in folder.glob(f"*.{kind}"))


def write_model(folder: Path, config: dict[str, Any], dtype: str, *, weights: bool, seed: int = 0) -> None:
    """Write a model folder. Raises ValueError for an architecture whose weights cannot be written, or too small a disk.

    Args:
        dtype: bf16, fp16 or fp32.
        weights: Whether to write weights; without them the engine has to make its own.
    """
    folder.mkdir(parents=True)
    stated = {**config, "torch_dtype": TORCH[dtype]}
    (folder / "config.json").write_text(json.dumps(stated, indent=1), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(config["vocab_size"])), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config.get("max_position_embeddings", 4096),
        "clean_up_tokenization_spaces": False}), encoding="utf-8")
    if weights:
        _write_weights(folder / "model.safetensors", tensors(config), dtype, seed)


def _write_weights(path: Path, shapes: dict[str, tuple[int, ...]], dtype: str, seed: int) -> None:
    width, place, header = BYTES[dtype], 0, {}
    for name, shape in shapes.items():
        end = place + width * math.prod(shape)
        header[name] = {"dtype": _SAFETENSORS[dtype], "shape": list(shape), "data_offsets": [place, end]}
        place = end
    free = shutil.disk_usage(path.parent).free
    if place > 0.95 * free:
        raise ValueError(f"the weights ({place / 1e9:.1f} GB) do not fit on the disk of {path.parent} "
                         f"({free / 1e9:.1f} GB free): set `folder`, or weights: dummy")
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    numbers = np.random.default_rng(seed).normal(0, 0.02, _BLOCK).astype(np.float32)
    if dtype == "bf16":   # the upper half of a float32
        drawn = (numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    else:
        drawn = numbers.astype(np.float16 if dtype == "fp16" else np.float32).tobytes()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        left = place
        while left:
            left -= file.write(drawn[:left])


def _words() -> Iterator[tuple[str, str]]:
    """Yield the merges of a byte-level BPE, each from two earlier words."""
    letters = _letters()
    words = list(letters)
    while True:
        grown = []
        for word in words:
            for letter in letters:
                yield word, letter
                grown.append(word + letter)
        words = grown


def _letters() -> list[str]:
    """Return the characters by which byte-level BPEs write the 256 bytes: printable ones as they are."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(byte) for byte in shown] + [chr(256 + place) for place in range(256 - len(shown))]


def _tokenizer(size: int) -> dict[str, Any]:
    """Return a tokenizer.json of `size` words."""
    letters = _letters()
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    merges = [pair for pair, _ in zip(_words(), range(max(0, size - len(letters))), strict=False)]
    words = [*letters, *(first + second for first, second in merges)][:size]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": bytes_of, "post_processor": None, "decoder": bytes_of,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {word: place for place, word in enumerate(words)},
                  "merges": [f"{first} {second}" for first, second in merges]},
    }
