"""Fields of vLLM's SchedulerConfig, CacheConfig and LoRAConfig: the key that honours each, or why none does.

the site's page of fields is written from them and from the fields that the engine's own classes have
(tests/data/vllm-config-fields.json). A scenario with a field that no key honours is refused with the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from hermes.errors import InputError, Verbatim

__all__ = ["ANSWERS", "BESIDE", "Answer", "refuse_fields_of_vllm"]


@dataclass(frozen=True)
class Answer:
    """The treatment of a field.

    Args:
        how: "key": a key of the client honours it. "none": it changes nothing that is simulated, or the engine sets it
            by itself. "refused": it would change something, and is not modelled.
        text: The key by its dotted path, or why there is none.
        note: For a key: what differs.
    """

    how: Literal["key", "none", "refused"]
    text: str
    note: str = ""


def _key(path: str, note: str = "") -> Answer:
    return Answer("key", path, note)


def _none(why: str) -> Answer:
    return Answer("none", why)


def _refused(why: str) -> Answer:
    return Answer("refused", why)


_STATE_SPACE = "layers with a state (Mamba) are not modelled"
_ENCODER = "encoder inputs of multimodal prompts are not modelled: a prompt is its tokens"
_DERIVED = "set by the engine from other values"
_ADAPTER_WORK = "the work of adapters is priced as without it"

_SCHEDULER = {
    "async_scheduling": _key("scheduler.async_scheduling"),
    "disable_chunked_mm_input": _refused(_ENCODER),
    "disable_hybrid_kv_cache_manager": _key("memory.hybrid", "the opposite"),
    "enable_chunked_prefill": _key("scheduler.enable_chunked_prefill"),
    "encoder_cache_size": _refused(_ENCODER),
    "is_encoder_decoder": _refused("models with an encoder are not modelled"),
    "is_multimodal_model": _refused(_ENCODER),
    "long_prefill_token_threshold": _key("scheduler.long_prefill_token_threshold"),
    "long_prefill_token_threshold_adaptive": _key("scheduler.adaptive_long_prefill_threshold"),
    "max_long_partial_prefills": _none("the engine's V1 scheduler does not read it; `vllm serve` accepts 1 only"),
    "max_model_len": _key("max_model_len", "of the client"),
    "max_num_active_seqs": _key("scheduler.max_num_active_seqs"),
    "max_num_batched_tokens": _key("scheduler.max_num_batched_tokens"),
    "max_num_encoder_input_tokens": _refused(_ENCODER),
    "max_num_partial_prefills": _none("the engine's V1 scheduler does not read it; `vllm serve` accepts 1 only"),
    "max_num_queued_reqs": _key("scheduler.max_num_queued_reqs", "of one engine, its ranks and batches together"),
    "max_num_queued_tokens": _key("scheduler.max_num_queued_tokens", "of one engine, its ranks and batches together"),
    "max_num_scheduled_tokens": _key("scheduler.max_num_scheduled_tokens"),
    "max_num_seqs": _key("scheduler.max_num_seqs"),
    "policy": _key("scheduler.policy"),
    "prefill_schedule_interval": _key(
        "scheduler.prefill_schedule_interval",
        "before 0.33 with `parallel.dp` only; before 0.25 it also deferred prompts found whole"),
    "runner_type": _none("stages of other kinds than generations have services of their own"),
    "scheduler_cls": _refused("write a scheduler as a plug-in instead, by `kind`"),
    "scheduler_reserve_full_isl": _key("scheduler.reserve_full_isl"),
    "stream_interval": _key(
        "api_servers.stream_interval", "what the servers do; tokens keep their own times"),
    "watermark": _key("scheduler.watermark"),
}
_CACHE = {
    "block_size": _key("memory.block_size"),
    "cache_dtype": _key("hardware.kv_dtype", "of `composed`; `memory.kv_bits` for the size alone"),
    "cache_hit_alignment_tokens": _none(_DERIVED),
    "calculate_kv_scales": _none("it scales values"),
    "cpu_kvcache_space_bytes": _key("memory.num_blocks", "on CPUs: this size over the bytes of a block"),
    "cpu_offload_gb": _refused("weights are on the device"),
    "cpu_offload_params": _refused("weights are on the device"),
    "effective_attention_block_size": _none(_DERIVED),
    "enable_mamba_fine_grained_prefix_cache": _refused(_STATE_SPACE),
    "enable_mamba_shared_prefix_checkpoint": _refused(_STATE_SPACE),
    "enable_prefix_caching": _key("memory.prefix_caching"),
    "gpu_memory_utilization": _key("memory.utilization"),
    "hash_block_size": _none(_DERIVED),
    "is_attention_free": _refused("models without attention are not modelled"),
    "kv_cache_dtype_skip_layers": _refused("all layers keep KV alike; give the mean as `memory.kv_bits`"),
    "kv_cache_layout": _none("where values lie in memory"),
    "kv_cache_max_concurrency": _none(_DERIVED),
    "kv_cache_memory_bytes": _refused("give `memory.num_blocks`: this size over the bytes of a block"),
    "kv_cache_size_tokens": _none(_DERIVED),
    "kv_offloading_backend": _key("memory.kv_offload", "of `native`; `lmcache` is not modelled"),
    "kv_offloading_size": _key("memory.kv_offload", "its `cpu_bytes_to_use`, in bytes"),
    "kv_sharing_fast_prefill": _refused("all layers compute all tokens"),
    "mamba_block_size": _refused(_STATE_SPACE),
    "mamba_cache_dtype": _refused(_STATE_SPACE),
    "mamba_cache_mode": _refused(_STATE_SPACE),
    "mamba_page_size_padded": _refused(_STATE_SPACE),
    "mamba_ssm_cache_dtype": _refused(_STATE_SPACE),
    "num_cpu_blocks": _none(_DERIVED),
    "num_gpu_blocks": _none(_DERIVED),
    "num_gpu_blocks_override": _key("memory.num_blocks", "vLLM's counts the block that it reserves"),
    "prefix_cache_retention_interval": _refused("of layers with windows or states; blocks are found at its default, 0"),
    "prefix_caching_hash_algo": _none("hashing takes no time"),
    "prefix_match_unit": _refused("prefixes are found by whole blocks"),
    "replayssm_buffer_len": _refused(_STATE_SPACE),
    "simple_cpu_offload_num_blocks": _none(_DERIVED),
    "skip_page_size_padded": _refused("all layers keep KV alike"),
    "sliding_window": _key("model", "set from the model's description, here as there; see `memory.hybrid`"),
    "swa_bounded_replay": _refused("prefixes of layers with windows are found, never computed again"),
    "swap_space": _none("the V1 scheduler recomputes what it preempts"),
    "use_kda_recoverssm": _refused(_STATE_SPACE),
    "use_replayssm": _refused(_STATE_SPACE),
    "user_specified_block_size": _none(_DERIVED),
    "user_specified_mamba_block_size": _none(_DERIVED),
}
_LORA = {
    "default_mm_loras": _refused(_ENCODER),
    "enable_mixed_moe_lora_format": _none("how adapters are stored"),
    "enable_moe_shared_loras": _refused(_ADAPTER_WORK),
    "enable_tower_connector_lora": _refused(_ENCODER),
    "fully_sharded_loras": _refused(_ADAPTER_WORK),
    "lora_dtype": _key("adapter_bytes", "the size that follows from it"),
    "max_cpu_loras": _refused("all adapters are in the host's memory"),
    "max_lora_cls_labels": _refused("classification is not modelled"),
    "max_lora_rank": _key("hardware.lora.rank", "and `adapter_bytes`, the size that follows from it"),
    "max_loras": _key("scheduler.max_loras", "from 0.31 on; before, those passed over wait in a queue of their own"),
    "specialize_active_lora": _refused(_ADAPTER_WORK),
    "target_modules": _key("hardware.lora.modules", "and `adapter_bytes`, the size that follows from them"),
}
ANSWERS: dict[str, dict[str, Answer]] = {"SchedulerConfig": _SCHEDULER, "CacheConfig": _CACHE, "LoRAConfig": _LORA}
BESIDE = {
    "dp_sync_interval": _refused("ranks know at once that all is done"),
    "num_lookahead_slots": _refused("`speculative` sets it, by its method"),
    "num_lookahead_tokens": _refused("`speculative` sets it, by its method"),
}
"""Names that are looked for in these classes, and are elsewhere in vLLM."""


def refuse_fields_of_vllm(model: type[BaseModel], part: str, data: Mapping[str, Any]) -> None:
    """Raise `InputError` for a field of vLLM that is no key of a component.

    Args:
        model: The component.
        part: Its key of the client.
        data: What the user wrote.
    """
    for name in data:
        for fields in (*ANSWERS.values(), BESIDE):
            if name in fields and name not in model.model_fields:
                raise InputError(Verbatim(_message(fields[name], part)), field=name)


def _message(answer: Answer, part: str) -> str:
    if answer.how == "key":
        path = answer.text.removeprefix(f"{part}.")
        place = "" if path != answer.text else " of the client"
        return f"here vLLM's field is the key `{path}`{place}" + (f" ({answer.note})" if answer.note else "")
    if answer.how == "none":
        return f"leave out this field of vLLM; it changes nothing here: {answer.text}"
    return f"leave out this field of vLLM; it is not modelled: {answer.text}"
