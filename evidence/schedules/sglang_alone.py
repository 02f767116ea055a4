"""SGLang's own scheduler, alone: serve given requests and print every batch. Run by an interpreter that has SGLang.

    PYTHON sglang_alone.py < CASE.json > ANSWER.json

CASE holds `settings` (as in a recorded SGLang schedule, docs/background/sglang.md) and `requests`: id, arrival_step,
prompt_tokens, output_tokens, max_new_tokens, prefix_group, prefix_tokens. ANSWER holds `version` and `steps`.
`abort_step`, if given, counts the batches before its client gives it up. `arrival_step` counts the batches before an
arrival; with the setting `arrivals: plans` it counts the plans, also those
that found nothing to run. In place of a group a request may have `runs`: [text, end] for each part of its prompt and
answer, up to token `end`, that other requests with that text have at the same place. (Scenarios have them.)

No model, no worker, no GPU. The object is SGLang's `Scheduler` without its constructor: it has the attributes that its
own method for the next batch and its result processor read, and everything below them is SGLang's: policy, prefill
adder, radix cache, allocator, batches, requests, new-token ratio. What has no say in scheduling (metrics, streams,
grammars, LoRA) is a stand-in. The driver repeats these lines of the two event loops: get a batch, process its result
(with overlap, that of the batch before), keep it as the last batch, reset the new-token ratio when nothing runs. It
appends the arrivals to the queue, as the engine does, and answers each batch with made-up tokens.

Modules that SGLang imports and a CPU lacks are replaced by empty ones, and so are its kernels that write a table of
token places on a CPU. (Tried with SGLang 0.5.23.)
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types
from array import array
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

LONGEST = 2**16
EOS = 1
OWN = 10**6   # tokens from here on belong to one request
MISSING = ("IPython", "torchvision", "gguf", "sgl_kernel", "orjson", "triton")


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything(name)


def _anything(name: str) -> Any:
    return _Anything(name, (), {"__init__": lambda self, *given, **named: None,
                                "__class_getitem__": classmethod(lambda cls, item: cls)})


class _Empty(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _anything(name)
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module for the packages in `names`."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = _Empty(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def stand_in() -> None:
    """Replace packages that are not installed and have no part in scheduling."""
    import transformers.utils.import_utils as installed

    for name in ("is_torchvision_available", "is_torchvision_v2_available", "is_vision_available"):
        if hasattr(installed, name):
            getattr(installed, name)()   # keeps its answer: torchvision is not there
    sys.meta_path.append(_Finder({name for name in MISSING if importlib.util.find_spec(name) is None}))


def overlaps(settings: dict[str, Any]) -> bool:
    """Whether a batch is planned while the one before runs."""
    return not settings.get("disable_overlap_schedule", True)


def publish(settings: dict[str, Any]) -> Any:
    """Publish the server's arguments; return its context."""
    from sglang.srt.runtime_context import get_context

    context = get_context()
    size = settings["chunked_prefill_size"]
    context.override_server_args(
        device="cpu", page_size=settings["page_size"], schedule_policy=settings["schedule_policy"],
        chunked_prefill_size=-1 if size is None else size, max_prefill_tokens=settings["max_prefill_tokens"],
        schedule_conservativeness=settings["schedule_conservativeness"],
        enable_mixed_chunk=settings["enable_mixed_chunk"], disable_radix_cache=settings["disable_radix_cache"],
        max_running_requests=settings["max_running_requests"], disable_overlap_schedule=not overlaps(settings),
        attention_backend="torch_native", prefill_attention_backend="torch_native",
        decode_attention_backend="torch_native", prefill_max_requests=settings.get("prefill_max_requests"),
    ).install()
    context.parallel.override_permanently(
        pp_max_micro_batch_size=settings["max_running_requests"], pp_rank=0, attn_tp_rank=0, attn_cp_rank=0)
    return context


def make(settings: dict[str, Any]) -> Any:
    """Return a scheduler with these settings."""
    import torch
    from sglang.srt.disaggregation.utils import DisaggregationMode
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext, default_radix_cache_factory
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    publish(settings)
    longest = settings.get("longest", LONGEST)
    page, tokens, most = settings["page_size"], settings["max_total_num_tokens"], settings["max_running_requests"]
    rows = ReqToTokenPool(most, longest, "cpu", False)
    kv = SimpleNamespace(device="cpu")
    pool = (TokenToKVPoolAllocator(tokens, torch.bfloat16, "cpu", kv, False) if page == 1
            else PagedTokenToKVPoolAllocator(tokens, page, torch.bfloat16, "cpu", kv, False))
    params = CacheInitParams(
        disable=settings["disable_radix_cache"], req_to_token_pool=rows, token_to_kv_pool_allocator=pool,
        page_size=page, chunked_prefill_size=settings["chunked_prefill_size"])
    tree = default_radix_cache_factory(TreeCacheBuildContext(
        server_args=None, params=params, is_hybrid_swa=False, is_hybrid_ssm=False, enable_hierarchical_cache=False,
        disable_radix_cache=settings["disable_radix_cache"], tp_worker=None, model_config=None, tp_size=1, tp_rank=0,
        tp_group=None))
    model = SimpleNamespace(vocab_size=2**40, is_encoder_decoder=False, is_multimodal=False, context_len=longest,
                            self_opened_think_start_ids=None, think_end_id=None)

    scheduler = object.__new__(Scheduler)
    held = scheduler.__dict__
    held.update(
        req_to_token_pool=rows, token_to_kv_pool_allocator=pool, tree_cache=tree, page_size=page, model_config=model,
        max_prefill_tokens=settings["max_prefill_tokens"], max_running_requests=most, max_total_num_tokens=tokens,
        schedule_policy=settings["schedule_policy"], chunked_prefill_size=settings["chunked_prefill_size"],
        is_mixed_chunk=settings["chunked_prefill_size"] is not None and settings["enable_mixed_chunk"],
        waiting_queue=[], running_batch=ScheduleBatch(reqs=[], batch_is_full=False), last_batch=None, chunked_req=None,
        scheduler_stage_metrics=None, _pending_chunked_abort_req=None, disaggregation_mode=DisaggregationMode.NULL,
        dllm_config=None,
        enable_hisparse=False, hisparse_coordinator=None, prefill_decode_interval=0,
        _prefill_decode_interval_remaining=0, require_mlp_sync=False, spec_algorithm=SpeculativeAlgorithm.NONE,
        mm_receiver=None, send_abort_output=lambda message, req: None, enable_continuous_input_polling=False,
        grammar_manager=SimpleNamespace(has_waiting_grammars=lambda: False, abort_requests=lambda message: None),
        is_hybrid_swa=False, is_hybrid_ssm=False,
        enable_priority_scheduling=False, abort_on_priority_when_disabled=False, min_free_slots_delayer=None,
        schedule_low_priority_values_first=False, priority_scheduling_preemption_threshold=0,
        enable_hierarchical_cache=False, enable_hicache_storage=False, enable_lmcache=False, enable_lora=False,
        enable_unified_cache_external_linker=False, lora_drainer=None, truncation_align_size=None,
        enable_overlap=overlaps(settings),
        dynamic_chunk_sizer=None, processed_tokens_counter=0, forward_ct=0, decode_offload_manager=None,
        enable_skip_finishing_decode=overlaps(settings), result_queue=deque(), max_queued_requests=None,
        metrics_collector=None,
        tp_worker=SimpleNamespace(model_runner=SimpleNamespace(attn_backend=None, prefill_aware_swa=False)),
        beam_coordinator=SimpleNamespace(pending_member_rows=lambda batch: 0, commit_decode=lambda batch: set(),
                                         retire_group=lambda req: None),
        load_inquirer=SimpleNamespace(_get_num_pending_tokens=lambda **named: 0),
        dp_attn_adapter=SimpleNamespace(maybe_prepare_mlp_sync_batch=lambda batch, need_sync=None: batch,
                                        maybe_convert_decode_to_extend=lambda batch: batch),
        ngram_embedding_manager=SimpleNamespace(prepare_for_forward=lambda batch, chunked_req=None: batch),
        metrics_reporter=MagicMock(enable_metrics=False, num_generated_tokens=0, forward_ct_decode=0),
        device="cpu", max_new_tokens_limit=None, max_req_len=longest, kv_shard_widening=1, sliding_window_size=None)
    Scheduler.init_schedule_policy(scheduler)
    nothing = MagicMock()
    held["batch_result_processor"] = SchedulerBatchResultProcessor(
        is_generation=True, disaggregation_mode=DisaggregationMode.NULL, enable_overlap=overlaps(settings),
        enable_overlap_mlx=False,
        model_config=model, token_to_kv_pool_allocator=pool, tree_cache=tree, hisparse_coordinator=None,
        req_to_token_pool=rows, decode_offload_manager=None, metrics_collector=nothing,
        metrics_reporter=held["metrics_reporter"], draft_worker=None, model_worker=None,
        logprob_result_processor=nothing, output_streamer=nothing, beam_coordinator=held["beam_coordinator"],
        abort_request=nothing)
    return scheduler


def text(request: dict[str, Any]) -> list[int]:
    """Return the tokens of a prompt: those of its group, or of its runs, then its own."""
    if "runs" in request:
        tokens: list[int] = []
        for name, end in [*request["runs"], (None, request["prompt_tokens"])]:
            tokens += [_base(request, name) + i for i in range(len(tokens), min(end, request["prompt_tokens"]))]
        return tokens
    shared = int(request.get("prefix_tokens") or 0)
    group, own = int(request.get("prefix_group") or 0), OWN * (2 * int(request["id"]) + 1)
    return [OWN * (2 * group + 2) + i for i in range(shared)] + [
        own + i for i in range(request["prompt_tokens"] - shared)]


def token(request: dict[str, Any], place: int) -> int:
    """Return the token at a place of prompt and answer, of a request with `runs`."""
    name = next((name for name, end in request["runs"] if place < end), None)
    return _base(request, name) + place


def _base(request: dict[str, Any], name: int | None) -> int:
    return OWN * (2 * request["id"] + 1 if name is None else 2 * name + 2)


def _rid(request: dict[str, Any]) -> str:
    """Return SGLang's name of a request. An abort names all that begin alike: none does."""
    return f"{request['id']:09d}"


def ending(request: dict[str, Any]) -> int:
    """Return the token that ends an answer."""
    return token(request, request["prompt_tokens"] + request["output_tokens"] - 1) if "runs" in request else EOS


def request_of(one: dict[str, Any], settings: dict[str, Any]) -> Any:
    """Return SGLang's request. It stops at its last token, or where `max_new_tokens` ends it."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    most = one.get("max_new_tokens") or one["output_tokens"]
    sampling = SamplingParams(max_new_tokens=most, ignore_eos=settings["ignore_eos"], stop_token_ids=None)
    sampling.normalize(None)
    req = Req(_rid(one), "", array("q", text(one)), sampling, eos_token_ids={ending(one)}, vocab_size=2**40)
    req.tokenizer = None
    return req


def steps_of(settings: dict[str, Any], requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Serve the requests; return the batches in order."""
    from sglang.srt.managers.io_struct import AbortReq
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler

    scheduler = make(settings)
    asked = {_rid(one): one for one in requests}
    leaving = sorted((one for one in requests if one.get("abort_step") is not None),
                     key=lambda one: (one["abort_step"], one["id"]), reverse=True)
    counts_plans = settings.get("arrivals") == "plans"
    retracted: list[int] = []
    reset = Req.reset_for_retract

    def noted(req: Any) -> None:
        retracted.append(int(req.rid))
        reset(req)

    Req.reset_for_retract = noted
    waiting = sorted(requests, key=lambda one: (one["arrival_step"], one["id"]))
    step = arrived = idle = 0
    out: list[dict[str, Any]] = []
    try:
        while arrived < len(waiting) or scheduler.waiting_queue or scheduler.chunked_req is not None or (
                scheduler.last_batch is not None) or scheduler.running_batch.reqs:
            while arrived < len(waiting) and waiting[arrived]["arrival_step"] <= step:
                req = request_of(waiting[arrived], settings)
                Scheduler.init_req_max_new_tokens(scheduler, req)
                scheduler.waiting_queue.append(req)
                req.arrival_processed_tokens = scheduler.processed_tokens_counter
                arrived += 1
            while leaving and leaving[-1]["abort_step"] <= step:
                Scheduler.abort_request(scheduler, AbortReq(rid=_rid(leaving.pop())))
            retracted.clear()
            plan = Scheduler.get_next_batch_to_run(
                scheduler, running_batch=scheduler.running_batch, last_batch=scheduler.last_batch)
            scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
            if batch is None and scheduler.result_queue:
                _process(scheduler, scheduler.result_queue.popleft()[0], asked)
                scheduler.last_batch = None
                step += counts_plans
                continue
            if batch is None:
                scheduler.new_token_ratio_tracker.reset()   # on_idle
                scheduler.last_batch = None
                if not scheduler.waiting_queue and not scheduler.running_batch.reqs:
                    if arrived < len(waiting):
                        step = max(step, waiting[arrived]["arrival_step"])
                        continue
                    break
                idle += 1
                if idle > 3:
                    if arrived < len(waiting):
                        step = max(step, waiting[arrived]["arrival_step"])
                        continue
                    raise RuntimeError(f"nothing can run after {len(out)} batches")
                continue
            idle = 0
            out.append(_row(scheduler, batch, retracted))
            scheduler.result_queue.append((batch.copy() if overlaps(settings) else batch, None))
            if not overlaps(settings) or scheduler.last_batch is not None:
                _process(scheduler, scheduler.result_queue.popleft()[0], asked)
            scheduler.last_batch = batch
            scheduler.forward_ct += 1
            step += 1
    finally:
        Req.reset_for_retract = reset
    return out


def _row(scheduler: Any, batch: Any, retracted: list[int]) -> dict[str, Any]:
    """Return a batch: its kind, [[id, new tokens, tokens in the cache before], ...] and what is left."""
    mode = batch.forward_mode
    kind = "mixed" if mode.is_mixed() else "decode" if mode.is_decode() else "extend"
    if kind == "decode":
        rows = [[int(req.rid), 1, n - 1] for req, n in zip(batch.reqs, batch.seq_lens_cpu.tolist(), strict=True)]
    else:
        rows = [[int(req.rid), n, past] for req, n, past in zip(
            batch.reqs, batch.extend_lens, batch.prefix_lens, strict=True)]
    return {
        "kind": kind, "scheduled": rows, "retracted": list(retracted),
        "free_tokens": int(scheduler.token_to_kv_pool_allocator.available_size()),
        "cached_tokens": int(scheduler.tree_cache.evictable_size()),
        "ratio": round(scheduler.new_token_ratio_tracker.current, 9)}


def _process(scheduler: Any, batch: Any, asked: dict[str, dict[str, Any]]) -> None:
    """Hand a batch's tokens back, and process them. asked: The requests by id; the last token of each ends it."""
    import torch
    from sglang.srt.managers.utils import GenerationBatchResult

    answers = []
    for req in batch.reqs:
        text_so_far = len(req.origin_input_ids) + len(req.output_ids)
        one = asked[req.rid]
        if len(req.output_ids) + 1 >= one["output_tokens"]:
            answers.append(ending(one))
        else:
            answers.append(token(one, text_so_far) if "runs" in one else OWN * (2 * int(req.rid) + 1) + text_so_far)
    tokens = torch.tensor(answers, dtype=torch.int64)
    result = GenerationBatchResult(next_token_ids=tokens, logits_output=None, can_run_cuda_graph=False)
    processor = scheduler.batch_result_processor
    if batch.forward_mode.is_decode():
        processor.process_batch_result_decode(batch, result)
    else:
        processor.process_batch_result_prefill(batch, result)
    scheduler.tree_cache.flush_pending_backups()


def main() -> None:
    folder = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != folder]
    stand_in()
    import logging

    import sglang

    logging.disable(logging.WARNING)
    case = json.load(sys.stdin)
    if isinstance(case, list):
        for one in case:
            print(json.dumps({"version": sglang.__version__, "steps": steps_of(one["settings"], one["requests"])}))
        return
    print(json.dumps({"version": sglang.__version__, "steps": steps_of(case["settings"], case["requests"])}))


if __name__ == "__main__":
    main()
