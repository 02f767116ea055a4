"""Measure the steps of a real vLLM engine: `VLLM_PYTHON -m hermes.calibration.collect.vllm_llm PLAN.json
JOURNAL.jsonl [--budget SECONDS]`, in vLLM's own virtual environment (docs/how-to/calibrate.md says how to install it).

A point of the plan (`hermes.calibration.vllm_plan`) is a small workload and a pair of scheduler limits; each scheduler
step it makes becomes a row: batch statistics, `time_s` (the whole step on the wall: scheduling, execution, handing out
tokens), `cpu_time_s` (CPU time of the process), `overhead_s` (the part of time_s outside execution).

One engine is started, with the largest limits of the plan, and its scheduler is told the limits of each point: nothing
else in the engine depends on them while no request is in flight, except which CUDA graphs exist, and those of the
largest limits include the smaller ones. It has dummy weights made from a config.json, needs no tokenizer, and schedules
in this process, synchronously, so that each step can be seen: `Scheduler.schedule` (what was scheduled) and
`Scheduler.update_from_output` (the results are there) are wrapped; nothing the engine does is changed. Nothing here is
particular to a CPU but the environment variables that only its platform reads.

Imports: standard library, numpy, vLLM.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hermes.calibration.collect.session import Collector, CollectorError, Point, Row, machine, main

__all__ = ["VllmCollector", "VllmEngine", "measure_once", "prepare_environment"]

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""vLLM's names of precisions."""
MIN_TOKEN_ID = 3   # beyond padding, begin and end of text in the usual vocabularies


def prepare_environment(device: str, threads: int, kv_gib: int) -> None:
    """Set what vLLM and OpenMP read when they are imported; call before anything imports torch.

    threads: of OpenMP, on a CPU; kv_gib: memory of the KV cache, on a CPU (a GPU's is sized by the engine)
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    if device == "cpu":
        os.environ.update(OMP_NUM_THREADS=str(threads), VLLM_CPU_KVCACHE_SPACE=str(max(1, kv_gib)))


class VllmEngine:
    """An engine and its last step.

    config: `model` (content of a config.json), `max_num_batched_tokens`, `max_num_seqs`; optional `block_size`,
        `max_model_len`, `dtype` (bf16, fp16 or fp32), `device` ("cpu" or "cuda"; a build of vLLM serves one of them),
        `tensor_parallel`, `enforce_eager` (no CUDA graphs; by default only on a CPU), `seed`

    Raises ValueError if the engine runs with other settings than those asked for, or on another device.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        import vllm
        from vllm import EngineArgs, LLMEngine

        self.version: str = vllm.__version__
        self.config = config
        self.eager = bool(config.get("enforce_eager", config.get("device", "cpu") == "cpu"))
        dtype = config.get("dtype", "bf16")
        options = {name: config[name] for name in ("block_size", "max_model_len") if config.get(name)}
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(config["model"]), encoding="utf-8")
            self.engine: Any = LLMEngine.from_engine_args(EngineArgs(
                model=folder, load_format="dummy", skip_tokenizer_init=True, async_scheduling=False,
                disable_log_stats=True, enable_prefix_caching=False, seed=config.get("seed", 0),
                enforce_eager=self.eager, dtype=DTYPES.get(dtype, dtype),
                tensor_parallel_size=config.get("tensor_parallel", 1),
                max_num_batched_tokens=config["max_num_batched_tokens"], max_num_seqs=config["max_num_seqs"],
                **options,
            ))
        self.scheduler: Any = self.engine.engine_core.engine_core.scheduler
        # one text, drawn beforehand, of which every prompt is a piece: no time is spent on drawing while measuring
        draw = random.Random(config.get("seed", 0))
        longest = int(self.engine.model_config.max_model_len)
        self._text = draw.choices(range(MIN_TOKEN_ID, int(config["model"]["vocab_size"])), k=2 * longest)
        self._check()
        self.batch: dict[str, int] = {}
        """Statistics of the batch scheduled last (fields of `StepStats`), empty if the step computed nothing."""
        self.execution_s = 0.0
        """From the end of scheduling to the results of that step being there, wall seconds."""
        self._scheduled_at = 0.0
        self._schedule, self._update = self.scheduler.schedule, self.scheduler.update_from_output
        self.scheduler.schedule, self.scheduler.update_from_output = self._observe_schedule, self._observe_update

    def _check(self) -> None:
        config = self.config
        from vllm.platforms import current_platform

        wanted = {"max_num_batched_tokens": config["max_num_batched_tokens"], "max_num_seqs": config["max_num_seqs"]}
        actual: dict[str, Any] = {
            "max_num_batched_tokens": self.scheduler.max_num_scheduled_tokens,
            "max_num_seqs": self.scheduler.max_num_running_reqs,
            "block_size": self.scheduler.block_size, "device": current_platform.device_type,
        }
        wanted |= {name: config[name] for name in ("block_size", "device") if config.get(name)}
        for name, value in wanted.items():
            if actual[name] != value:
                raise ValueError(f"The engine runs with {name}={actual[name]!r}, not with {value!r}.")

    def limit(self, max_num_batched_tokens: int, max_num_seqs: int) -> None:
        """Schedule within these limits from the next step on, at most those the engine was started with."""
        started = self.config
        if max_num_batched_tokens > started["max_num_batched_tokens"] or max_num_seqs > started["max_num_seqs"]:
            raise ValueError("limits beyond those the engine was started with")
        self.scheduler.max_num_scheduled_tokens = max_num_batched_tokens
        self.scheduler.max_num_running_reqs = self.scheduler.max_num_active_reqs = max_num_seqs

    def _observe_schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = self._schedule(*args, **kwargs)
        self._scheduled_at = time.perf_counter()
        self.batch = self._statistics(output.num_scheduled_tokens)
        return output

    def _observe_update(self, *args: Any, **kwargs: Any) -> Any:
        self.execution_s = time.perf_counter() - self._scheduled_at
        return self._update(*args, **kwargs)

    def _statistics(self, scheduled: dict[str, int]) -> dict[str, int]:
        """Fields of `hermes.hardware.base.StepStats`. A sequence with one new token and a context is a decode."""
        row = dict.fromkeys((
            "decode_ctx", "decode_ctx_max", "decode_seqs", "prefill_attn", "prefill_past", "prefill_seqs",
            "prefill_tokens", "sampled",
        ), 0)
        for request_id, tokens in scheduled.items():
            request = self.scheduler.requests[request_id]
            past = request.num_computed_tokens - tokens   # the scheduler has counted this step already
            if tokens == 1 and past > 0:
                row["decode_seqs"] += 1
                row["decode_ctx"] += past
                row["decode_ctx_max"] = max(row["decode_ctx_max"], past)
            else:
                row["prefill_seqs"] += 1
                row["prefill_tokens"] += tokens
                row["prefill_past"] += past
                row["prefill_attn"] += tokens * past + tokens * (tokens + 1) // 2
            row["sampled"] += request.num_computed_tokens >= request.num_tokens
        return row if scheduled else {}

    def add(self, request: int, prompt_tokens: int, output_tokens: int) -> None:
        """Add a request of random tokens that gives exactly `output_tokens`."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=False)
        start = request * 61 % (len(self._text) // 2)
        prompt = self._text[start : start + prompt_tokens]
        self.engine.add_request(str(request), {"prompt_token_ids": prompt}, params)


def measure_once(engine: VllmEngine, point: Point, repetition: int) -> list[Row]:
    """Serve a point's requests; return one row per step that computed tokens. The engine must be idle."""
    engine.limit(point["max_num_batched_tokens"], point["max_num_seqs"])
    waiting = sorted(enumerate(point["requests"]), key=lambda item: item[1][0])[::-1]
    rows: list[Row] = []
    step = 0
    while waiting or engine.engine.has_unfinished_requests():
        while waiting and waiting[-1][1][0] <= step:
            number, (_, prompt_tokens, output_tokens) = waiting.pop()
            engine.add(number, prompt_tokens, output_tokens)
        if engine.engine.has_unfinished_requests():
            wall, cpu = time.perf_counter(), time.process_time()
            engine.engine.step()
            cpu = time.process_time() - cpu
            wall = time.perf_counter() - wall
            if engine.batch:
                rows.append(engine.batch | {
                    "time_s": wall, "cpu_time_s": cpu, "overhead_s": max(0.0, wall - engine.execution_s),
                    "configuration": point["configuration"], "repetition": repetition,
                })
        step += 1
    return rows


class VllmCollector(Collector):
    """The engine behind the session's interface."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__(plan)
        options = plan["options"]
        self.repetitions = int(plan["repetitions"])
        points = [*plan["points"], *([plan["reference"]] if plan.get("reference") else [])]
        config = {
            "model": plan["config_json"], "device": plan["device"], "dtype": plan["dtype"],
            "tensor_parallel": plan.get("tensor_parallel", 1), "seed": options.get("seed", 0),
            **{name: options[name] for name in ("max_model_len", "block_size") if options.get(name)},
            **{name: max(point[name] for point in points) for name in ("max_num_batched_tokens", "max_num_seqs")},
        }
        prepare_environment(plan["device"], int(options.get("threads", 1)), int(options.get("kv_gib", 1)))
        try:
            self.engine = VllmEngine(config)
        except ImportError as error:
            raise CollectorError(f"vLLM cannot be imported by {sys.executable}: {error}") from None
        except ValueError as error:
            raise CollectorError(f"vLLM refused: {error}") from None

    def environment(self) -> dict[str, Any]:
        """Return versions, device and settings."""
        import torch
        import vllm

        found = machine() | {"torch": torch.__version__, "vllm": vllm.__version__}
        found["device"] = f"{found['cpu']}, {torch.get_num_threads()} of {os.cpu_count()} cores"
        if torch.cuda.is_available():
            found["device"] = torch.cuda.get_device_name(0)
            found["cuda"] = torch.version.cuda
        return found | {
            "engine_version": self.engine.version, "date": time.strftime("%Y-%m-%d"),
            "options": {"enforce_eager": self.engine.eager, "block_size": self.engine.scheduler.block_size,
                        "async_scheduling": False, "prefix_caching": False, "weights": "dummy"},
            "notes": ["contexts and prompts are of random tokens; the weights are dummies"],
        }

    def measure(self, point: Point) -> tuple[list[Row], dict[str, Any]]:
        """Measure all repetitions of a point, one after the other."""
        return [row for k in range(self.repetitions) for row in measure_once(self.engine, point, k)], {}

    def close(self) -> None:
        """Release the device and worker processes."""
        self.engine.engine.engine_core.shutdown()


if __name__ == "__main__":
    sys.exit(main(VllmCollector))
