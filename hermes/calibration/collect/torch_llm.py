"""Collector of the torch engine: `python -m hermes.calibration.collect.torch_llm PLAN.json JOURNAL.jsonl [--budget S]`.

Needs numpy, torch and the files of this package, nothing else. Times are CUDA events on a GPU, and on a CPU the wall
clock and the process's CPU time side by side.
"""

from __future__ import annotations

import datetime
import gc
import os
import platform
import sys
import time
from typing import Any

import torch

from hermes.calibration.collect.nvml import PowerMeter
from hermes.calibration.collect.session import CollectorError, PointFailed, main
from hermes.calibration.collect.torch_engine import ALIGNMENT, DTYPES, Step, TorchEngine, statistics_of
from hermes.calibration.collect.torch_model import Shape

__all__ = ["TorchCollector", "device_name", "step_of"]

IDLE_S = 2.0
NOTES = (
    "a plain torch model: norms, rotary embedding and activations are kernels of their own, not fused as serving "
    "engines fuse them",
)


def step_of(point: dict[str, Any]) -> Step:
    """Convert a plan's point to a step: regions of the KV pool one after the other. (Format:
    `hermes.calibration.torch_plan`.)"""
    step, begin = Step(), ALIGNMENT
    for context, count in point.get("decodes", ()):
        for _ in range(count):
            step.decodes.append((begin, context))
            begin += -(-(context + 1) // ALIGNMENT) * ALIGNMENT
    for new, past, count, sampled in point.get("prefills", ()):
        for _ in range(count):
            step.prefills.append((begin, past, new, bool(sampled)))
            begin += -(-(past + new) // ALIGNMENT) * ALIGNMENT
    return step


def _pool_tokens(step: Step) -> int:
    """Return KV tokens of a step, including the alignment of its regions."""
    return sum(-(-(c + 1) // ALIGNMENT) * ALIGNMENT for _, c in step.decodes) + sum(
        -(-(p + n) // ALIGNMENT) * ALIGNMENT for _, p, n, _ in step.prefills)


def device_name(device: str) -> str:
    """Return the hardware's name for itself."""
    if device == "cuda":
        return str(torch.cuda.get_device_name(0))
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        name = ""
    return f"{name or platform.processor() or platform.machine()}, {torch.get_num_threads()} of {os.cpu_count()} cores"


class TorchCollector:
    """Measures points of a plan (the `Engine` of a session)."""

    def __init__(self, plan: dict[str, Any]) -> None:
        """Open the engine. Raises `CollectorError` for a plan this machine cannot serve."""
        self.plan, self.options = plan, plan.get("options", {})
        self.cuda = plan["device"] == "cuda"
        if self.cuda and not torch.cuda.is_available():
            raise CollectorError("the plan is for a CUDA device, and torch sees none")
        try:
            shape = Shape.of(plan["config_json"], plan["tensor_parallel"])
        except (KeyError, ValueError) as error:
            raise CollectorError(f"config_json: {error}") from None
        points = [*plan["points"], *([plan["reference"]] if plan.get("reference") else [])]
        steps = [step_of(point) for point in points]
        longest = max(self._longest(step) for step in steps)
        self.meter = self._open_meter()
        self.idle_w = self._idle_w()
        before = torch.cuda.memory_allocated() if self.cuda else 0
        try:
            self.engine = TorchEngine(
                shape, device=plan["device"], dtype=plan["dtype"], longest=longest,
                pool_tokens=max(_pool_tokens(step) for step in steps), threads=int(self.options.get("threads", 1)),
                seed=int(self.options.get("seed", 0)), cuda_graphs=bool(self.options.get("cuda_graphs", True)),
                max_num_seqs=max(len(step.decodes) for step in steps) or 1,
            )
        except torch.OutOfMemoryError as error:
            raise CollectorError(f"weights and KV cache do not fit: {' '.join(str(error).split())[:300]}") from None
        self.memory = self._memory(shape, before, max(steps, key=lambda step: step.num_tokens)) if self.cuda else None

    @staticmethod
    def _longest(step: Step) -> int:
        return max([c + 1 for _, c in step.decodes] + [p + n for _, p, n, _ in step.prefills])

    def _open_meter(self) -> PowerMeter | None:
        if not self.cuda:
            return None
        uuid = getattr(torch.cuda.get_device_properties(0), "uuid", "")
        return PowerMeter.open(0, f"GPU-{uuid}" if uuid else "")

    def _idle_w(self) -> float | None:
        if self.meter is None:
            return None
        torch.cuda.synchronize()
        with self.meter.over() as load:
            time.sleep(IDLE_S)
        return load.mean_w

    def _memory(self, shape: Shape, before: int, biggest: Step) -> dict[str, Any]:
        """Return the weights' bytes, and the activations' peak over the step with most tokens; the pool does not
        count."""
        width = DTYPES[self.plan["dtype"]].itemsize
        per_token = shape.kv_bytes_per_token(width)
        allocated = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self.engine.step(biggest)
        torch.cuda.synchronize()
        return {
            "capacity_bytes": int(torch.cuda.get_device_properties(0).total_memory),
            "weights_bytes": int(allocated - before - (self.engine.pool_tokens + ALIGNMENT) * per_token),
            "activation_bytes": int(torch.cuda.max_memory_allocated() - allocated),
            "kv_bytes_per_token": float(per_token),
            "source": f"measured: torch allocator, activations over a step of {biggest.num_tokens} tokens",
        }

    def environment(self) -> dict[str, Any]:
        """Return versions, device and chosen settings."""
        engine = self.engine
        found: dict[str, Any] = {
            "device": device_name(self.plan["device"]), "date": datetime.date.today().isoformat(),
            "engine_version": torch.__version__, "python": platform.python_version(), "platform": platform.platform(),
            "notes": [*NOTES, *engine.notes],
            "options": {"attention": engine.attention.name, "threads": torch.get_num_threads(),
                        "decode_graphs": engine.graphs is not None},
        }
        if self.cuda:
            properties = torch.cuda.get_device_properties(0)
            found |= {"cuda": torch.version.cuda, "compute_capability": f"{properties.major}.{properties.minor}",
                      "memory": self.memory}
            if self.idle_w is not None:
                found["idle_w"] = self.idle_w
        return found

    def measure(self, point: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Measure repetitions of one step, after one that does not count."""
        step = step_of(point)
        row = statistics_of(step) | {"configuration": point["name"]}
        time_step = self._time_cuda if self.cuda else self._time_cpu
        gc.collect()
        gc.disable()
        try:
            time_step(step)
            rows = [row | time_step(step) | {"repetition": index} for index in range(self.plan["repetitions"])]
            more = self._power(step, rows)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            raise PointFailed("out of memory") from None
        finally:
            gc.enable()
        return rows, more

    def _time_cpu(self, step: Step) -> dict[str, float]:
        """Return wall and CPU seconds of a step; its inputs are made anew, as an engine does."""
        cpu, wall = time.process_time(), time.perf_counter()
        with torch.inference_mode():
            prepared = self.engine.prepare(step)
            ready = time.perf_counter()
            self.engine.run(prepared).tolist()
        end = time.perf_counter()
        return {"time_s": end - wall, "cpu_time_s": time.process_time() - cpu, "overhead_s": ready - wall}

    def _time_cuda(self, step: Step) -> dict[str, float]:
        """Return seconds between two CUDA events, including the host's preparation in between."""
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        cpu, wall = time.process_time(), time.perf_counter()
        first.record()
        with torch.inference_mode():
            prepared = self.engine.prepare(step)
            ready = time.perf_counter()
            self.engine.run(prepared).tolist()
        last.record()
        last.synchronize()
        return {"time_s": first.elapsed_time(last) / 1e3, "cpu_time_s": time.process_time() - cpu,
                "overhead_s": ready - wall}

    def _power(self, step: Step, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Hold the load for a while and read its power; every row gets it."""
        seconds = float(self.options.get("power_s", 0.0))
        if self.meter is None or seconds <= 0:
            return {}
        until, steps = time.perf_counter() + seconds, 0
        with self.meter.over() as load:
            while time.perf_counter() < until:
                self.engine.step(step).tolist()
                steps += 1
        if load.mean_w is not None:
            for row in rows:
                row["power_w"] = load.mean_w
        return {"power_method": load.method, "power_steps": steps}

    def close(self) -> None:
        """Do nothing: no resource outlives the process."""


if __name__ == "__main__":
    sys.exit(main(TorchCollector))
