"""A launch command of SGLang as an LLM client of a scenario."""

from __future__ import annotations

import math
from typing import get_args

from hermes.deploy.engine_words import EngineWords
from hermes.deploy.flags import Parser, settings_of
from hermes.deploy.other_engines import not_modelled, set_precision, set_tokens, share_experts
from hermes.deploy.sglang_flags import ALIASES, BESIDE, FLAGS, KINDS, OTHERS, READ, REFUSED
from hermes.deploy.vllm import Client, Read, checkpoint_of, set_flag, set_key
from hermes.deploy.vllm_features import Told
from hermes.deploy.vllm_flags import whole_number
from hermes.deploy.vllm_models import precision_of
from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.checkpoints import Stored
from hermes.hardware.descriptions.devices import DeviceDescription
from hermes.hardware.descriptions.models import load_model
from hermes.schedulers.sglang_config import SglangConfig

__all__ = ["PARSER", "set_chunk", "sglang_client"]

PARSER = Parser("SGLang", KINDS, OTHERS, canonical=lambda name: ALIASES.get(name, name))
POLICIES = get_args(SglangConfig.model_fields["schedule_policy"].annotation)
CHUNKS = ((35, 2048), (60, 4096), (160, 8192), (math.inf, 16384))   # GiB of a device below which it is so
_KV = {"fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "bf16": "bf16", "bfloat16": "bf16"}
_DYNAMO = ("endpoint", "migration-limit", "namespace", "custom-jinja-template", "dyn-tool-call-parser",
           "dyn-reasoning-parser", "use-sglang-tokenizer", "store-kv", "request-plane", "discovery-backend")


def sglang_client(engine: EngineWords, model: str | None, told: Told) -> Read:
    """Read what follows `python -m sglang.launch_server`; its scheduler is `kind: sglang`.

    Args:
        model: A model description, or the path of a config.json, instead of the one that the command names.
        told: What the user states, for engines with drafts: SGLang's are not modelled.

    Raises `InputError` for a flag that changes what fits into memory and is not modelled, and for a model without a
    description.
    """
    words, said = settings_of(engine, PARSER)
    read = Read({"scheduler": {"kind": "sglang"}}, engine=engine, not_modelled=said)
    named: list[str] = []
    given: dict[str, str | None] = {}
    for option in PARSER.read(words, named):
        given[option.name] = option.value
    for name, value in given.items():
        read.given[name] = name
        if name in REFUSED:
            usual, why = REFUSED[name]   # the value that changes nothing
            if not usual or value != usual:
                raise not_modelled(why, f"--{name}")
        elif name in FLAGS:
            _apply(read.client, name, value)
        elif name in BESIDE or name in _DYNAMO:
            read.beside.append(f"--{name}")
        elif name not in READ:
            (read.not_modelled if name in KINDS or name in OTHERS else read.unknown).append(f"--{name}")
    read.unknown += [f"the value of {word}" if word.startswith("$") else "a value without its flag" for word in named]
    path = given.get("model-path")
    if path is None and model is None:
        raise InputError(Verbatim("the command names no model: --model-path MODEL"), field="command")
    own, how = (model, Stored()) if model is not None else checkpoint_of(str(path), read)
    read.client = {"model": own, **read.client}
    if _one_pool(load_model(own).name, given):
        set_key(read.client, "memory.hybrid", False)
    _precision(read.client, own, how, given)
    _ranks(read.client, own, given)
    if (tokens := given.get("max-total-tokens")) is not None:
        set_tokens(read.client, tokens, "max-total-tokens", 1)
    read.flags = {flag.path: f"--{name}" for name, flag in FLAGS.items() if name in given} | {
        path: f"--{name}" for path, name in (
            ("memory.num_blocks", "max-total-tokens"), ("hardware.kv_dtype", "kv-cache-dtype"), ("model", "model-path"),
            ("hardware.dtype", "quantization"), ("parallel.ep", "ep-size")) if name in given}
    return read


def _apply(client: Client, name: str, value: str | None) -> None:
    if name == "schedule-policy" and value is not None and value not in POLICIES:
        raise InputError(f"a policy that is modelled: {', '.join(POLICIES)}", value, field=f"--{name}")
    set_flag(client, FLAGS[name], name, value, on=True)
    if name == "chunked-prefill-size" and value == "-1":   # the whole prompt at once
        set_key(client, FLAGS[name].path, -1)


def set_chunk(client: Client, device: DeviceDescription) -> list[str]:
    """Set the chunk of prompts that SGLang chooses by the device's memory, if the command names none and it is not the
    scheduler's own default (`_handle_gpu_memory_settings` of 0.5.14, read, not run); return a note on it."""
    scheduler = client["scheduler"]
    chunk = next(tokens for below, tokens in CHUNKS if device.memory < below * 2**30)
    if "chunked_prefill_size" in scheduler or chunk == SglangConfig.model_fields["chunked_prefill_size"].default:
        return []
    scheduler["chunked_prefill_size"] = chunk
    return [f"--chunked-prefill-size: left out; SGLang takes {chunk} on {device.name}"]


def _one_pool(model: str, given: dict[str, str | None]) -> bool:
    """Whether SGLang itself keeps the KV of layers with a window in the pool of the others: Gemma 2 and 3, and gpt-oss
    with TensorRT-LLM's attention (server_args.py of 0.5, read, not run)."""
    backends = {given.get(name) for name in ("attention-backend", "prefill-attention-backend",
                                             "decode-attention-backend")}
    return model.startswith(("gemma-2-", "gemma-3")) or (model.startswith("gpt-oss") and "trtllm_mha" in backends)


def _precision(client: Client, model: str, how: Stored, given: dict[str, str | None]) -> None:
    kv = given.get("kv-cache-dtype") or "auto"
    if kv != "auto" and kv not in _KV:
        raise InputError(f"auto or one of {', '.join(_KV)}", kv, field="--kv-cache-dtype")
    dtype = precision_of(model, how, given.get("quantization"), given.get("dtype"), "SGLang")
    set_precision(client, dtype, _KV.get(kv) or how.kv_dtype)


def _ranks(client: Client, model: str, given: dict[str, str | None]) -> None:
    """Set experts over the ranks of a mixture; data-parallel ranks are engines of their own."""
    copies, experts = (whole_number(name, given.get(name) or "1") for name in ("dp-size", "ep-size"))
    if copies > 1:
        client["count"] = copies
    share_experts(client, model, experts, "--ep-size")
