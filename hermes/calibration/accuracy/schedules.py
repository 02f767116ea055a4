"""Reference set of engine schedules (`data/vllm-schedules`): the share of steps that the schedulers decide alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hermes.calibration.accuracy.row import Case, Row
from hermes.clients.schedule_replay import conform_file, find_files

__all__ = ["schedules"]


def schedules(data: Path) -> Iterator[Row]:
    """Recorded schedules of vLLM 0.32.0, step by step."""
    for path in find_files([data / "vllm-schedules"]):
        result = conform_file(path, every_step=False)
        case = Case("vLLM schedules", path.stem, "vllm-0.32", "-", "-")
        yield Row(case, "identical steps", "count", float(result.steps), float(result.identical))
