"""The `quantization_config` of a Hugging Face `config.json`: which of our precisions a checkpoint is stored in.

Only what a precision of `hermes.hardware.models` stands for is accepted: weights and activations in FP8 (per tensor,
channel or block) or in 8-bit integers, and weights alone in 4 bits by groups of 128. Everything else is refused with
the key that says so; a scenario can still name a precision itself (`hardware: {dtype: ...}`) over a copy of the file
without `quantization_config`.
"""

from __future__ import annotations

import re
from typing import Any

from hermes.errors import InputError, suggest

__all__ = ["stored_dtype"]

METHODS = ("fp8", "fbgemm_fp8", "awq", "gptq", "compressed-tensors", "modelopt")
_SAYS = "(quantisations that are not modelled: remove quantization_config in a copy and choose `dtype` yourself)"
# parts that are kept in 16 bits here too: embeddings, output head, norms, routers; and towers, which are not modelled
_KEPT = re.compile(r"lm_head|embed|norm|gate$|router|vision|visual|audio|projector|multi_modal", re.IGNORECASE)
_IGNORES = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")


def stored_dtype(config: object) -> str:
    """A precision by name. Raises `InputError` with the offending key as its field."""
    if not isinstance(config, dict):
        raise InputError("an object", config)
    method = config.get("quant_method")
    if method not in METHODS:
        raise InputError(f"one of {', '.join(METHODS)} {_SAYS}", method, field="quant_method",
                         suggestion=suggest(method, METHODS) if isinstance(method, str) else None)
    for key in _IGNORES:
        for name in config.get(key) or ():
            if not (isinstance(name, str) and _KEPT.search(name)):
                raise InputError(f"only output head, embeddings, norms and routers left out {_SAYS}", name, field=key)
    if method == "compressed-tensors":
        return _compressed(config)
    if method == "modelopt":
        _expect(config, "quant_algo", ("FP8",))
        return "fp8"
    if method in ("awq", "gptq"):
        _expect(config, "bits", (4,))
        _expect(config, "group_size", (128,))
        return "int4-awq"
    return "fp8"


def _expect(data: dict[str, Any], key: str, allowed: tuple[object, ...], way: str = "") -> None:
    value = data.get(key)
    if value not in allowed or isinstance(value, bool) != any(isinstance(one, bool) for one in allowed):
        raise InputError(f"{' or '.join('null' if one is None else str(one) for one in allowed)} {_SAYS}", value,
                         field=f"{way}{key}")


def _compressed(config: dict[str, Any]) -> str:
    """compressed-tensors: one scheme for all linear layers."""
    if config.get("kv_cache_scheme") is not None:
        raise InputError("null (set it to null in a copy, and `hardware: {kv_dtype: fp8}` in the scenario)",
                         config["kv_cache_scheme"], field="kv_cache_scheme")
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise InputError("at least one group", groups, field="config_groups")
    found: dict[str, str] = {}
    for name, group in groups.items():
        way = f"config_groups.{name}"
        if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
            raise InputError("a group with weights", group, field=way)
        found[way] = _scheme(group["weights"], group.get("input_activations"), way)
    if len(set(found.values())) > 1:
        raise InputError(f"the same precision in every group {_SAYS}", ", ".join(found.values()), field="config_groups")
    return next(iter(found.values()))


def _scheme(weights: dict[str, Any], inputs: object, way: str) -> str:
    kind, bits = weights.get("type"), weights.get("num_bits")
    if inputs is None:
        _expect(weights, "type", ("int",), f"{way}.weights.")
        _expect(weights, "num_bits", (4,), f"{way}.weights.")
        _expect(weights, "group_size", (128,), f"{way}.weights.")
        return "int4-awq"
    if not isinstance(inputs, dict):
        raise InputError("an object or null", inputs, field=f"{way}.input_activations")
    if kind not in ("float", "int"):
        raise InputError(f"float or int {_SAYS}", kind, field=f"{way}.weights.type")
    _expect(weights, "num_bits", (8,), f"{way}.weights.")
    _expect(inputs, "type", (kind,), f"{way}.input_activations.")
    _expect(inputs, "num_bits", (bits,), f"{way}.input_activations.")
    return "fp8" if kind == "float" else "int8"
