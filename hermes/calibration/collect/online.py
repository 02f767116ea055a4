"""Serving an online workload with a real engine, on the wall clock or on a clock of CPU time.

An engine is anything with `add`, `step` and `busy` (`OnlineEngine`); `serve_workload` feeds it the requests of a
workload file as they arrive, and writes when each of their tokens was there. Requests are handed over between steps
only, as an engine's own loop does.

On the clock `wall` a second is a second, and whatever else runs on the machine is in the result. On the clock `cpu`
time advances by the CPU time that the process spends in `step` and `add`, and jumps to the next arrival while the
engine is idle: a process that has to wait for a core loses nothing, so that other work disturbs the result less (it
still shares caches and memory with it).

Standard library only: this runs in the engine's own environment.

Workload file, JSON, `hermes-online/1`:

    {"format": "hermes-online/1", "clock": "wall" | "cpu", "warmup_s": 20.0,
     "engine": {"max_num_batched_tokens": 512, "max_num_seqs": 32, "block_size": 128, "num_blocks": 1360,
                "device": "cpu", "dtype": "bf16", "threads": 1, "seed": 0, "model": {... a config.json ...}},
     "requests": [{"arrival_s": 0.25, "prompt_tokens": 300, "output_tokens": 40}, ...]}

Result file, JSON, `hermes-online-result/1`, written whole or not at all:

    {"format": "hermes-online-result/1", "engine": "vllm", "engine_version": "...", "clock": "cpu",
     "requests": [{"added_s": 0.25, "first_token_s": 0.4, "finish_s": 1.9, "token_s": [0.4, ...]}, ...],
     "steps": {"end_s": [...], "wall_s": [...], "cpu_s": [...]},
     "adding": {"wall_s": [...], "cpu_s": [...]},
     "load": [[instant on the wall, CPU seconds of this process, busy CPU seconds of the machine], ...],
     "reference": {"before": {"wall_s": m, "cpu_s": m, "steps": n}, "after": {...}},
     "environment": {...}}

Requests are in the order of the workload. The reference is the median step of a small fixed batch, before and
after: it tells whether the machine was as fast as at other times.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

__all__ = ["RESULT_FORMAT", "WORKLOAD_FORMAT", "Clock", "OnlineEngine", "read_workload", "reference_steps",
           "serve", "serve_workload", "write_whole"]

WORKLOAD_FORMAT = "hermes-online/1"
RESULT_FORMAT = "hermes-online-result/1"

REFERENCE_SEQS, REFERENCE_PROMPT, REFERENCE_OUTPUT = 4, 64, 33
"""The reference batch: 4 prompts of 64 tokens, 32 decode steps each after the first token."""
LOAD_EVERY_S = 0.5
STARTER_PID = "HERMES_DRIVER_PID"   # as `hermes.calibration.collect.session.DRIVER_PID`, which needs numpy


class OnlineEngine(Protocol):
    """Interface of an engine to validate. All calls come from one thread."""

    name: str
    version: str

    def add(self, request: int, prompt_tokens: int, output_tokens: int) -> None:
        """Take a request that generates exactly `output_tokens` tokens. `request` is the caller's number for it."""
        ...

    def step(self) -> list[tuple[int, int]]:
        """Do one step; return (request, number of new tokens) for requests with any. Called only while `busy`."""
        ...

    def busy(self) -> bool:
        """Whether any request is unfinished."""
        ...


class Clock:
    """Time of a run in seconds, from 0: of the wall, or of the CPU time spent inside `measured`."""

    def __init__(self, kind: str) -> None:
        if kind not in ("wall", "cpu"):
            raise ValueError(f"The 'clock' of a workload must be 'wall' or 'cpu'. Got {kind!r} instead.")
        self.kind = kind
        self._elapsed = 0.0
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start if self.kind == "wall" else self._elapsed

    def wait_until(self, instant: float) -> None:
        """Let time pass to `instant` (none for a past one)."""
        if self.kind == "cpu":
            self._elapsed = max(self._elapsed, instant)
            return
        while (left := instant - self.now()) > 0:
            time.sleep(left)

    def measured(self, call: Callable[[], Any]) -> tuple[Any, float, float]:
        """Return (result of `call`, wall seconds, CPU seconds of the process)."""
        wall, cpu = time.perf_counter(), time.process_time()
        answer = call()
        cpu = time.process_time() - cpu
        wall = time.perf_counter() - wall
        self._elapsed += cpu
        return answer, wall, cpu


def read_workload(path: Path) -> dict[str, Any]:
    """Read a workload file. Raises ValueError for an invalid one."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if data.get("format") != WORKLOAD_FORMAT:
        raise ValueError(f"{path}: expected format {WORKLOAD_FORMAT}, found {data.get('format')!r}")
    arrivals = [request["arrival_s"] for request in data["requests"]]
    if arrivals != sorted(arrivals):
        raise ValueError(f"{path}: the requests must be in order of arrival")
    return data


def write_whole(path: Path, data: dict[str, Any]) -> None:
    """Write JSON so that the file appears whole or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(data, file, separators=(",", ":"))
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def machine_busy_s() -> float | None:
    """Return CPU seconds that all cores of the machine have been busy since it started (Linux), else None."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _idle, _iowait, irq, softirq, steal = (int(v) for v in file.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / float(os.sysconf("SC_CLK_TCK"))


def reference_steps(engine: OnlineEngine, first_id: int) -> dict[str, float]:
    """Return median wall and CPU seconds of the steps of the reference batch, nearly all of them decodes, and their
    number.

    Numbers from `first_id` on must be free for its requests. The engine must be idle.
    """
    clock = Clock("cpu")
    for index in range(REFERENCE_SEQS):
        engine.add(first_id + index, REFERENCE_PROMPT, REFERENCE_OUTPUT)
    walls, cpus = [], []
    while engine.busy():
        _, wall, cpu = clock.measured(engine.step)
        walls.append(wall)
        cpus.append(cpu)
    return {"wall_s": statistics.median(walls), "cpu_s": statistics.median(cpus), "steps": len(walls)}


def _stop_if_orphaned() -> None:
    """Stop if the starting process was killed: its run is of no use, and would disturb the next one."""
    starter = int(os.environ.get(STARTER_PID, "0"))
    if starter and os.getppid() != starter:
        raise SystemExit("the process that started this run is gone")


def serve(engine: OnlineEngine, requests: Sequence[dict[str, Any]], clock_kind: str) -> dict[str, Any]:
    """Serve requests as they arrive; return the measured part of a result (see the module). The engine must be idle."""
    done: list[dict[str, Any]] = [{"added_s": -1.0, "token_s": []} for _ in requests]
    steps: dict[str, list[float]] = {"end_s": [], "wall_s": [], "cpu_s": []}
    adding: dict[str, list[float]] = {"wall_s": [], "cpu_s": []}
    load: list[list[float]] = []
    upcoming, sampled = 0, -LOAD_EVERY_S
    clock = Clock(clock_kind)
    while upcoming < len(requests) or engine.busy():
        while upcoming < len(requests) and requests[upcoming]["arrival_s"] <= clock.now():
            request, number = requests[upcoming], upcoming
            done[number]["added_s"] = clock.now()
            _, wall, cpu = clock.measured(
                lambda: engine.add(number, request["prompt_tokens"], request["output_tokens"])  # noqa: B023
            )
            adding["wall_s"].append(wall)
            adding["cpu_s"].append(cpu)
            upcoming += 1
        if time.perf_counter() - sampled >= LOAD_EVERY_S:
            sampled = time.perf_counter()
            _stop_if_orphaned()
            busy = machine_busy_s()
            if busy is not None:
                load.append([sampled, time.process_time(), busy])
        if not engine.busy():
            clock.wait_until(requests[upcoming]["arrival_s"])
            continue
        emitted, wall, cpu = clock.measured(engine.step)
        now = clock.now()
        steps["end_s"].append(now)
        steps["wall_s"].append(wall)
        steps["cpu_s"].append(cpu)
        for number, tokens in emitted:
            done[number]["token_s"] += [now] * tokens
    for number, (request, row) in enumerate(zip(requests, done, strict=True)):
        if len(row["token_s"]) != request["output_tokens"]:
            raise RuntimeError(f"request {number} gave {len(row['token_s'])} of {request['output_tokens']} tokens")
        row["first_token_s"], row["finish_s"] = row["token_s"][0], row["token_s"][-1]
    return {"requests": done, "steps": steps, "adding": adding, "load": load}


def serve_workload(
    workload_path: Path, result_path: Path, start: Callable[[dict[str, Any]], OnlineEngine],
    environment: Callable[[], dict[str, Any]] = dict,
) -> None:
    """Read a workload, start the engine, warm it up, serve, and write the result.

    Args:
        start: Makes the engine from the workload's `engine` section.
        environment: Description of the machine.
    """
    workload = read_workload(workload_path)
    requests = workload["requests"]
    began = time.perf_counter()
    engine = start(workload["engine"])
    print(f"engine started in {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    spare = len(requests)   # numbers of requests that are not in the workload
    began = time.perf_counter()
    before = None
    while before is None or time.perf_counter() - began < workload.get("warmup_s", 0.0):
        before = reference_steps(engine, spare)
        spare += REFERENCE_SEQS
    print(f"warmed up, serving {len(requests)} requests", file=sys.stderr, flush=True)
    measured = serve(engine, requests, workload["clock"])
    after = reference_steps(engine, spare)
    write_whole(result_path, {
        "format": RESULT_FORMAT, "engine": engine.name, "engine_version": engine.version, "clock": workload["clock"],
        "workload_sha256": hashlib.sha256(workload_path.read_bytes()).hexdigest(), **measured,
        "reference": {"before": before, "after": after}, "environment": environment(),
    })
