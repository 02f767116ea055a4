"""Measure the steps of a real vLLM engine: `VLLM_PYTHON -m hermes.calibration.collect.vllm_llm PLAN.json
JOURNAL.jsonl`.

The plan names the engine and the points (`hermes.calibration.collect.vllm_points`); every scheduler step of a point
becomes a row: batch statistics, `time_s` (the whole step on the wall: scheduling, execution, handing out tokens),
`cpu_time_s` (CPU time of the process), `overhead_s` (the part of time_s outside execution). A point is journalled when
all its repetitions are done; a collector that was killed continues with the next point.

    {"engine": "vllm", "model": {...config.json...}, "device": "cpu", "dtype": "bfloat16", "threads": 1,
     "max_model_len": 4096, "block_size": 128, "num_blocks": 1360, "warmup_s": 20, "repetitions": 1,
     "restart": false, "budget_s": 600, "points": [...]}

Scheduler limits are those of the point. With `restart` false one engine is started, with the largest limits of the
plan, and its scheduler is told the limits of each point: on a CPU, or wherever the engine runs eagerly, nothing else
depends on them. With `restart` true the engine is started anew for each pair (the process replaces itself), which is
right where CUDA graphs are captured for the limits. A reference batch is measured when the engine is warm and after
every few points; the journal notes it, so that drift is seen. With `budget_s` no point is begun later than that.

Imports: standard library, numpy, vLLM.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from hermes.calibration.collect.online import reference_steps
from hermes.calibration.collect.vllm_engine import VllmEngine, environment, prepare_environment
from hermes.calibration.journal import Journal, JournalError

__all__ = ["main", "measure_point"]

REFERENCE_EVERY = 8
"""Points between two measurements of the reference batch."""
_BEGAN = "HERMES_COLLECT_BEGAN"   # when the first of the processes that replace each other began
_SPARE = 10**6                    # numbers of requests that no point has


def measure_point(engine: VllmEngine, point: dict[str, Any], repetition: int) -> list[dict[str, Any]]:
    """Serve a point's requests; one row per step that computed something. The engine has to be idle."""
    engine.limit(point["max_num_batched_tokens"], point["max_num_seqs"])
    waiting = sorted(enumerate(point["requests"]), key=lambda item: item[1]["arrival_step"], reverse=True)
    rows: list[dict[str, Any]] = []
    step = 0
    while waiting or engine.busy():
        while waiting and waiting[-1][1]["arrival_step"] <= step:
            number, request = waiting.pop()
            engine.add(number, request["prompt_tokens"], request["output_tokens"])
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


def _start(plan: dict[str, Any], points: list[dict[str, Any]]) -> VllmEngine:
    config = {name: plan[name] for name in (
        "model", "device", "dtype", "max_model_len", "block_size", "num_blocks", "tensor_parallel", "enforce_eager",
    ) if plan.get(name) is not None}
    for name in ("max_num_batched_tokens", "max_num_seqs"):
        config[name] = max(point[name] for point in points)
    return VllmEngine(config)


def _limits(point: dict[str, Any]) -> tuple[int, int]:
    return point["max_num_batched_tokens"], point["max_num_seqs"]


def _measure(plan: dict[str, Any], journal: Journal, points: list[dict[str, Any]], deadline: float) -> bool:
    """Measure `points` on one engine; False if time ran out."""
    engine = _start(plan, points if plan.get("restart") else plan["points"])
    reference = reference_steps(engine, _SPARE)
    began = time.perf_counter()
    while time.perf_counter() - began < plan.get("warmup_s", 20.0):
        reference = reference_steps(engine, _SPARE)
    journal.write({"kind": "note", "text": "reference", **reference, "at": time.time()})
    for index, point in enumerate(points):
        if time.time() > deadline:
            journal.write({"kind": "note", "text": "budget used up", "at": time.time()})
            return False
        began = time.perf_counter()
        rows = [row for repetition in range(plan.get("repetitions", 1))
                for row in measure_point(engine, point, repetition)]
        journal.point(point["name"], rows, seconds=time.perf_counter() - began, at=time.time())
        if index % REFERENCE_EVERY == REFERENCE_EVERY - 1:
            engine.limit(engine.config["max_num_batched_tokens"], engine.config["max_num_seqs"])
            journal.write({"kind": "note", "text": "reference", **reference_steps(engine, _SPARE), "at": time.time()})
    engine.shutdown()
    return True


def main(arguments: list[str]) -> int:
    """Command line."""
    if len(arguments) != 2:
        print("usage: python -m hermes.calibration.collect.vllm_llm PLAN.json JOURNAL.jsonl", file=sys.stderr)
        return 2
    plan = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    began = float(os.environ.setdefault(_BEGAN, repr(time.time())))
    prepare_environment(int(plan.get("threads", 1)), float(plan.get("kv_gib", 2)))
    try:
        with Journal(Path(arguments[1]), plan, environment()) as journal:
            left = [point for point in plan["points"] if point["name"] not in journal.done]
            now = [point for point in left if not plan.get("restart") or _limits(point) == _limits(left[0])]
            deadline = began + plan["budget_s"] if plan.get("budget_s") else float("inf")
            in_time = not left or _measure(plan, journal, now, deadline)
    except (JournalError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if in_time and len(now) < len(left):
        os.execv(sys.executable, [sys.executable, "-m", "hermes.calibration.collect.vllm_llm", *arguments])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
