"""Measure the steps of a real vLLM engine: `VLLM_PYTHON -m hermes.calibration.collect.vllm_llm PLAN.json
JOURNAL.jsonl [--budget SECONDS]`.

A point of the plan (`hermes.calibration.vllm_plan`) is a small workload and a pair of scheduler limits; each scheduler
step it makes becomes a row: batch statistics, `time_s` (the whole step on the wall: scheduling, execution, handing out
tokens), `cpu_time_s` (CPU time of the process), `overhead_s` (the part of time_s outside execution).

One engine is started, with the largest limits of the plan, and its scheduler is told the limits of each point: nothing
else in the engine depends on them while no request is in flight, except which CUDA graphs exist, and those of the
largest limits include the smaller ones.

Imports: standard library, numpy, vLLM.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from hermes.calibration.collect.session import CollectorError, Point, Row, main
from hermes.calibration.collect.vllm_engine import VllmEngine, environment, prepare_environment

__all__ = ["VllmCollector", "measure_once"]


def measure_once(engine: VllmEngine, point: Point, repetition: int) -> list[Row]:
    """Serve a point's requests; return one row per step that computed tokens. The engine must be idle."""
    engine.limit(point["max_num_batched_tokens"], point["max_num_seqs"])
    waiting = sorted(enumerate(point["requests"]), key=lambda item: item[1][0])[::-1]
    rows: list[Row] = []
    step = 0
    while waiting or engine.busy():
        while waiting and waiting[-1][1][0] <= step:
            number, (_, prompt_tokens, output_tokens) = waiting.pop()
            engine.add(number, prompt_tokens, output_tokens)
        if engine.busy():
            wall, cpu = time.perf_counter(), time.process_time()
            engine.step()
            cpu = time.process_time() - cpu
            wall = time.perf_counter() - wall
            if engine.batch:
                rows.append(engine.batch | {
                    "time_s": wall, "cpu_time_s": cpu, "overhead_s": max(0.0, wall - engine.execution_s),
                    "configuration": point["configuration"], "repetition": repetition,
                })
        step += 1
    return rows


class VllmCollector:
    """The engine behind the session's interface."""

    def __init__(self, plan: dict[str, Any]) -> None:
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
        return environment() | {
            "engine_version": self.engine.version, "date": time.strftime("%Y-%m-%d"),
            "options": {"enforce_eager": self.engine.eager, "block_size": self.engine.scheduler.block_size,
                        "async_scheduling": False, "prefix_caching": False, "weights": "dummy"},
            "notes": ["contexts and prompts are of random tokens; the weights are dummies"],
        }

    def measure(self, point: Point) -> tuple[list[Row], dict[str, Any]]:
        """Measure all repetitions of a point, one after the other."""
        return [row for k in range(self.repetitions) for row in measure_once(self.engine, point, k)], {}

    def close(self) -> None:
        """Release the device."""
        self.engine.shutdown()


if __name__ == "__main__":
    sys.exit(main(VllmCollector))
