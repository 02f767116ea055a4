"""Models of `vllm serve` commands: the description of a checkpoint's name, and the precision of its weights and KV."""

from __future__ import annotations

import re
from pathlib import Path

from hermes.errors import InputError, Verbatim, suggest
from hermes.hardware.descriptions.checkpoints import Stored, checkpoint, split_name, stored
from hermes.hardware.descriptions.files import names_in, shipped_name
from hermes.hardware.descriptions.hf_config import lacking
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.descriptions.names import type_of

__all__ = ["described", "hub_name", "precision_of", "quantization_flag", "simulated"]

_ENDINGS = re.compile(r"-(instruct|chat|hf|it|base|v\d+(\.\d+)?|\d{4})$")
_OLLAMA = re.compile(r"[a-z][\w.-]*:[\w.-]+")
_DTYPES = {"bfloat16": "bf16", "float16": "bf16", "half": "bf16"}   # both have 16 bits and the same speed
_ONLINE = {"fp8": "fp8", "fp8_per_tensor": "fp8", "fp8_per_channel": "fp8", "fp8_per_block": "fp8-block"}
"""Values of `--quantization` that quantise 16-bit weights when vLLM loads them, as precisions of `hardware.dtype`."""
_METHODS = {
    "fp8": ("fp8", "compressed-tensors", "modelopt"), "fp8-block": ("fp8", "compressed-tensors"),
    "int8": ("compressed-tensors",), "int4": ("compressed-tensors",), "mxfp4": ("mxfp4", "gpt_oss_mxfp4"),
    "int4-awq": ("awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "moe_wna16"),
    "mxfp4-w4a4": ("quark",), "nvfp4": ("modelopt", "modelopt_fp4", "compressed-tensors"),
}
"""Values with which vLLM loads a checkpoint of a precision whose file alone says how it is stored."""


def described(name: str) -> tuple[str, Stored]:
    """Return the description of a Hugging Face model by its name, and how the checkpoint of that name is stored.

    Raises `InputError` for a model without a description, whose config.json has to be saved and named, and for a
    precision that is not known or not modelled.
    """
    if Path(name).exists():
        return name, Stored()
    known, (_, base, _) = names_in("models"), split_name(name)
    short = base.lower().removeprefix("meta-")
    model = shipped_name("models", base)
    while model is None and _ENDINGS.search(short):
        short = _ENDINGS.sub("", short)
        model = shipped_name("models", short)
    if model is not None:
        try:
            return model, stored(name, model)
        except InputError as error:
            raise InputError(Verbatim(f"{error} (--model PATH, --model {model})"), field="command") from None
    kind = type_of(base)
    if kind is not None and (what := lacking(kind)):
        raise InputError(Verbatim(f"{name} is of the type {kind}, which is not modelled: {what}"), field="command")
    if _OLLAMA.fullmatch(name):
        raise InputError(Verbatim(f"{name} is a name of Ollama, whose weights are GGUF in a precision that it leaves "
                                  "open; write the model's name at Hugging Face"), field="command")
    known = [one for one in known if type_of(one) == kind]   # another family's is no help
    raise InputError(
        Verbatim(f"no description of {name}: save its config.json (from its page at Hugging Face), add --model PATH"),
        field="command", suggestion=suggest(short, known))


def simulated(name: str) -> tuple[str, Stored, str | None]:
    """Return a client's `model` for a checkpoint, how it is stored, and a note on the part of its name that is lost."""
    name = name.removeprefix("hf://")
    own, how = described(name)
    if name in (own, hub_name(own)):
        return own, how, None
    if checkpoint(name) is not None:
        return name, how, None   # the checkpoint stays named, such as "-Instruct", so that it can be launched again
    return own, how, f"model {name} is simulated as {own}; `hermes export` calls it {hub_name(own)}"


def precision_of(model: str, how: Stored, quantization: str | None, dtype: str | None, engine: str = "vLLM"
                 ) -> str | None:
    """Return the `hardware.dtype` of a client; None for that of its model's description.

    `--quantization` names the method of a checkpoint that is quantised: vLLM refuses any other one
    (`ModelConfig._verify_quantization`, read, not run). Weights in 16 bits it quantises as it loads them. `--dtype` is
    of activations, and of weights that are not quantised.

    Args:
        model: The client's model.
        how: How its checkpoint is stored, as far as its name tells it.
        quantization: Value of `--quantization`, None without the flag.
        dtype: Value of `--dtype`, None without the flag.
        engine: Its name in messages.

    Raises `InputError` for a value that vLLM refuses, and for one that is not modelled.
    """
    file = load_model(model)
    own = file.expert_dtype or file.dtype
    if dtype not in (None, "auto") and dtype not in _DTYPES:
        raise InputError(f"auto or one of {', '.join(_DTYPES)} (set the precision of other kinds in the scenario)",
                         dtype, field="--dtype")
    if own in ("", "bf16"):
        if quantization is None:
            return how.dtype or _DTYPES.get(dtype or "")
        if quantization not in _ONLINE:
            raise InputError(f"one of {', '.join(_ONLINE)}, because the weights of {model} have 16 bits (of another "
                             "checkpoint name the checkpoint; set other precisions in the scenario)", quantization,
                             field="--quantization")
        return _ONLINE[quantization]
    methods = how.methods or _METHODS[own]
    if quantization is not None and quantization not in methods:
        raise InputError(Verbatim(f"{quantization} is not how the weights of {model} are stored ({methods[0]}), so "
                                  f"that {engine} does not start; leave it out"), field="--quantization")
    return how.dtype or None


def quantization_flag(model: str, dtype: str, base_dir: Path | None) -> tuple[str | None, str | None]:
    """Return the value of `--quantization` for a `hardware.dtype`, and a line for one that no flag gives the model."""
    if dtype in ("auto", "bf16", "fp16") or dtype == (file := load_model(model, base_dir)).dtype:
        return None, None
    if dtype == "fp8" and (file.expert_dtype or file.dtype) in ("", "bf16"):
        return dtype, None
    return None, (f"no flag gives {hub_name(model)} the precision `dtype: {dtype}`; write the name of a checkpoint "
                  "that is stored so")


def hub_name(model: str) -> str:
    """Return the name of a model at Hugging Face, from the source of its description; else its path."""
    if model.lower() not in names_in("models"):   # a name that another model's description stands for is not its own
        return model
    found = re.match(r"https://huggingface\.co/(\S+/\S+)", load_model(model).source or "")
    return found[1] if found else model
