"""A made-up engine with vLLM's scheduling and exact step times, on a clock that it moves itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hermes.calibration.collect import online
from hermes.calibration.vllm_plan import _schedule
from hermes.hardware.base import StepStats


class FakeTime:
    """Stands in for `time`: CPU time passes when the engine computes, wall time then and while asleep."""

    def __init__(self, lost: float = 0.0, add_s: float = 0.0) -> None:
        self.wall, self.cpu, self.lost, self.add_s = 100.0, 5.0, lost, add_s

    def compute(self, seconds: float) -> None:
        self.cpu += seconds
        self.wall += seconds / (1 - self.lost)

    def sleep(self, seconds: float) -> None:
        self.wall += max(seconds, 1e-9)

    def perf_counter(self) -> float:
        return self.wall

    def process_time(self) -> float:
        return self.cpu

    time = staticmethod(time.time)


class FakeEngine:
    """Rules 1 to 6 and 15 of docs/background/vllm.md; memory never binds."""

    name, version = "fake", "1"

    def __init__(self, clock: FakeTime, step_s: Callable[[StepStats], float], budget: int, seats: int) -> None:
        self.clock, self.step_s, self.budget, self.seats = clock, step_s, budget, seats
        self.waiting: list[tuple[int, int, int]] = []
        self.running: list[tuple[int, list[int]]] = []

    def add(self, request: int, prompt_tokens: int, output_tokens: int) -> None:
        self.clock.compute(self.clock.add_s)
        self.waiting.append((request, prompt_tokens, output_tokens))

    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> list[tuple[int, int]]:
        def free() -> int:
            return self.budget - sum(there - computed for _, (computed, there, _) in self.running)

        while self.waiting and len(self.running) < self.seats and free() > 0:
            request, prompt, output = self.waiting.pop(0)
            self.running.append((request, [0, prompt, output]))
        stats, left, emitted = StepStats(), self.budget, []
        for request, sequence in self.running:
            before = sequence[2]
            left -= _schedule(sequence, left, stats)
            if sequence[2] < before:
                emitted.append((request, 1))
        self.running = [(r, s) for r, s in self.running if s[2] > 0]
        self.clock.compute(self.step_s(stats))
        return emitted


def serve_fake(
    monkeypatch: Any, requests: list[dict[str, Any]], clock: str, step_s: Callable[[StepStats], float], *,
    budget: int = 512, seats: int = 32, **time_options: float,
) -> dict[str, Any]:
    """What `online.serve` makes of the fake engine."""
    fake = FakeTime(**time_options)
    monkeypatch.setattr(online, "time", fake)
    return online.serve(FakeEngine(fake, step_s, budget, seats), requests, clock)
