"""Attempts of a folder at serving a workload: `attempt-CLOCK-N.json`, and `.log` beside it.

A log without a result is an attempt that failed or was interrupted; it stays and is reported. Numbers only rise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hermes.calibration.engine_validation.contention import Verdict, judge, reference_of
from hermes.calibration.engine_validation.result import EngineResult, Times, read_result
from hermes.calibration.engine_validation.workload import OnlineWorkload

__all__ = ["Attempt", "next_number", "read_attempts"]


@dataclass
class Attempt:
    """One attempt. Without a result it is neither accepted nor rejected, but lost."""

    clock: str
    number: int
    result: EngineResult | None = None
    times: Times | None = None
    verdict: Verdict = field(default_factory=lambda: Verdict(False, ["no result: failed or interrupted"]))

    @property
    def accepted(self) -> bool:
        return self.times is not None and self.verdict.accepted


def _numbers(folder: Path, clock: str) -> list[int]:
    pattern = re.compile(rf"attempt-{clock}-(\d+)\.log")
    return sorted(int(m[1]) for m in (pattern.fullmatch(path.name) for path in folder.iterdir()) if m)


def next_number(folder: Path, clock: str) -> int:
    """Return the number of the next attempt."""
    return max(_numbers(folder, clock), default=0) + 1


def read_attempts(
    folder: Path, clock: str, workload: OnlineWorkload, expected_reference_s: float | None,
) -> list[Attempt]:
    """Return all attempts at a workload, judged, in order. Raises `InputError` for results of another workload.

    Args:
        expected_reference_s: The reference step while calibrating; None: the median of the attempts.
    """
    attempts = []
    for number in _numbers(folder, clock):
        path = folder / f"attempt-{clock}-{number}.json"
        attempt = Attempt(clock, number)
        if path.is_file():
            attempt.result = read_result(path, workload.sha256)
            attempt.times = attempt.result.times(
                [r.arrival_s for r in workload.requests], [r.output_tokens for r in workload.requests])
        attempts.append(attempt)
    on_cpu = workload.engine.device == "cpu"
    done = [attempt for attempt in attempts if attempt.result is not None]
    if expected_reference_s is None and done:
        expected_reference_s = float(np.median([reference_of(a.result, on_cpu) for a in done if a.result]))
    for attempt in done:
        assert attempt.result is not None
        assert expected_reference_s is not None
        attempt.verdict = judge(attempt.result, expected_reference_s, on_cpu=on_cpu)
    return attempts
