"""What launch commands of SGLang and TensorRT-LLM have in common beside their flags."""

from __future__ import annotations

from hermes.deploy.vllm import Client, set_key
from hermes.deploy.vllm_flags import whole_number
from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.models import load_model

__all__ = ["not_modelled", "set_precision", "set_tokens", "share_experts"]


def not_modelled(why: str, flag: str) -> InputError:
    """Return the refusal of a flag that changes what fits into memory, or every step."""
    return InputError(Verbatim(f"not modelled: {why}; leave it out to simulate an engine without"), field=flag)


def set_precision(client: Client, dtype: str | None, kv_dtype: str | None) -> None:
    """Set the precision of weights and of KV; None or "" for the model's own."""
    for key, value in (("dtype", dtype), ("kv_dtype", kv_dtype)):
        if value:
            set_key(client, "hardware", {"kind": "composed", key: value})


def set_tokens(client: Client, tokens: str, flag: str, block_size: int) -> None:
    """Set the KV memory by its tokens, in place of a share of the device. block_size: The engine's default."""
    block = client.get("memory", {}).get("block_size", block_size)
    set_key(client, "memory.num_blocks", whole_number(flag, tokens) // block)
    client["memory"].pop("utilization", None)


def share_experts(client: Client, model: str, experts: int, flag: str) -> None:
    """Set over how many ranks a mixture's experts are shared: all or none. Raises `InputError`, by the flag."""
    parallel = {key: own for key, own in client.pop("parallel", {}).items() if own != 1}
    tp = parallel.get("tp", 1)
    if experts > 1 and load_model(model).num_experts:
        if experts != tp:
            raise InputError(f"1, or {tp} as for tensor parallelism: others are not modelled", experts, field=flag)
        parallel["ep"] = experts
    client |= {"parallel": parallel} if parallel else {}
