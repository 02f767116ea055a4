"""Precision of a checkpoint from the `quantization_config` of its Hugging Face `config.json`.

The precisions of `hermes.hardware.descriptions.models` cover weights and activations in FP8 (per tensor, channel or
block) or in 8-bit integers, in NVIDIA's FP4, weights alone in 4 bits by groups, and any of these (or MXFP4) for the
routed experts alone. Any other quantisation is an error that names its key. A scenario can still give a precision
(`hardware: {dtype: ...}`) with a copy of the file without `quantization_config`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

from hermes.errors import InputError, suggest

__all__ = ["stored_dtypes"]

METHODS = ("fp8", "fbgemm_fp8", "awq", "gptq", "compressed-tensors", "modelopt", "mxfp4")
_REMEDY = "(others are not modelled: remove quantization_config in a copy of the file, and set `dtype`)"
# parts that stay in 16 bits here too (embeddings, output head, norms, routers), and towers, which are not modelled
_KEPT = re.compile(r"lm_head|embed|norm|gate$|router|e_score_correction_bias|"
                   r"vision|visual|audio|projector|multi_modal", re.IGNORECASE)
_WHOLE = "only output head, embeddings, norms and routers left out, or all but the routed experts"
PARTS = {
    "attention": re.compile(r"self_attn(\.?\*)?$"), "shared experts": re.compile(r"shared_experts?(\.?\*)?$"),
    "dense layers": re.compile(r"mlp(\.?\*|\\\.\(gate\|up\|gate_up\|down\)_proj\.\*)?$"),
}
"""Whole parts of a mixture besides its routed experts, in the names of modules that a config leaves out."""
_IGNORES = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")


def stored_dtypes(config: object, others: Mapping[str, Set[int]]) -> tuple[str, str]:
    """Return the precisions of the layers' matrices and of the routed experts; "" for 16 bits, and for the same.

    Args:
        config: The `quantization_config`, or what an `hf_quant_config.json` has in its place.
        others: Layers of a mixture in which each of `PARTS` has matrices; empty for a dense model.

    Raises `InputError` with the wrong key as its field.
    """
    if not isinstance(config, dict):
        raise InputError("an object", config)
    method = config.get("quant_method")
    if method is None and isinstance(maker := config.get("producer"), dict) and maker.get("name") == "modelopt":
        method = "modelopt"
    if method not in METHODS:
        raise InputError(f"one of {', '.join(METHODS)} {_REMEDY}", method, field="quant_method",
                         suggestion=suggest(method, METHODS) if isinstance(method, str) else None)
    if method == "mxfp4":   # of the experts alone (gpt-oss): the rest is left out by name
        if not others:
            raise InputError("a mixture of experts, whose experts alone have this precision", method,
                             field="quant_method")
        return "", "mxfp4"
    alone = _experts_alone([(key, name) for key in _IGNORES for name in config.get(key) or ()], others)
    if method == "compressed-tensors":
        dtype = _compressed(config)
    elif method == "modelopt":
        _expect(config, "quant_algo", ("FP8", "NVFP4"))
        dtype = {"FP8": "fp8", "NVFP4": "nvfp4"}[config["quant_algo"]]
    elif method in ("awq", "gptq"):
        _expect(config, "bits", (4,))
        _expect(config, "group_size", (128,))
        dtype = "int4-awq"
    else:
        dtype = "fp8-block" if config.get("weight_block_size") is not None else "fp8"
    return ("", dtype) if alone else (dtype, "")


def _experts_alone(names: Sequence[tuple[str, object]], others: Mapping[str, Set[int]]) -> bool:
    """Return whether all matrices but those of routed experts are left out.

    Args:
        names: Each key and name of a module that is left out.
        others: As for `stored_dtypes`.

    Raises `InputError` where some others are left out, but not all of them.
    """
    left: dict[str, Set[int]] = dict(others)   # layers in which a part is quantised
    for key, name in names:
        text = name if isinstance(name, str) else ""
        if _KEPT.search(text):
            continue
        part = next((part for part in others if PARTS[part].search(text)), None)
        if part is None:
            raise InputError(f"{_WHOLE} {_REMEDY}", name, field=key)
        number = re.search(r"layers\.(\d+)\.", text)
        left[part] = left[part] - {int(number[1])} if number else set()
    if left == dict(others):
        return False
    if any(left.values()):
        raise InputError(f"{_WHOLE} {_REMEDY}", " and ".join(part for part, layers in left.items() if not layers) or
                         "some layers", field=names[0][0])
    return bool(others)


def _expect(data: dict[str, Any], key: str, allowed: tuple[object, ...], path: str = "") -> None:
    value = data.get(key)
    if value not in allowed or isinstance(value, bool) != any(isinstance(one, bool) for one in allowed):
        raise InputError(f"{' or '.join('null' if one is None else str(one) for one in allowed)} {_REMEDY}", value,
                         field=f"{path}{key}")


def _compressed(config: dict[str, Any]) -> str:
    """Return the precision of a compressed-tensors config: one scheme for all linear layers."""
    if config.get("kv_cache_scheme") is not None:
        raise InputError("null (set it to null in a copy, and `hardware: {kv_dtype: fp8}` in the scenario)",
                         config["kv_cache_scheme"], field="kv_cache_scheme")
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise InputError("at least one group", groups, field="config_groups")
    found: dict[str, str] = {}
    for name, group in groups.items():
        path = f"config_groups.{name}"
        if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
            raise InputError("a group with weights", group, field=path)
        found[path] = _scheme(group["weights"], group.get("input_activations"), path)
    if len(set(found.values())) > 1:
        raise InputError(f"the same precision in every group {_REMEDY}", ", ".join(found.values()),
                         field="config_groups")
    return next(iter(found.values()))


def _scheme(weights: dict[str, Any], inputs: object, path: str) -> str:
    kind, bits = weights.get("type"), weights.get("num_bits")
    if inputs is None:
        _expect(weights, "type", ("int",), f"{path}.weights.")
        _expect(weights, "num_bits", (4,), f"{path}.weights.")
        _expect(weights, "group_size", (128, 32), f"{path}.weights.")
        return "int4-awq" if weights["group_size"] == 128 else "int4"
    if not isinstance(inputs, dict):
        raise InputError("an object or null", inputs, field=f"{path}.input_activations")
    if kind not in ("float", "int"):
        raise InputError(f"float or int {_REMEDY}", kind, field=f"{path}.weights.type")
    _expect(weights, "num_bits", (8,), f"{path}.weights.")
    _expect(inputs, "type", (kind,), f"{path}.input_activations.")
    _expect(inputs, "num_bits", (bits,), f"{path}.input_activations.")
    if weights.get("strategy") == "block":
        _expect(weights, "block_structure", ([128, 128], "128x128"), f"{path}.weights.")
        return "fp8-block"
    return "fp8" if kind == "float" else "int8"
