"""Simulation of a real engine's workload: one client with the engine's scheduler and memory."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes.api import simulate
from hermes.calibration.engine_validation.result import Times
from hermes.calibration.engine_validation.workload import OnlineWorkload

__all__ = ["Prediction", "predict", "scenario_of", "write_requests"]


@dataclass(frozen=True)
class Prediction:
    """Result of the simulation. `steps` and `out_of_range_steps` show how much of it lies in the profile's measured
    range."""

    times: Times
    steps: int
    out_of_range_steps: int


def scenario_of(
    workload: OnlineWorkload, scheduler: dict[str, Any], profile: Path, trace: Path,
) -> dict[str, Any]:
    """Return the scenario: the workload's requests from `trace`, times from `profile`, one client like the engine."""
    engine = workload.engine
    replay = {"kind": "trace", "path": str(trace)}
    return {
        "name": "engine-validation",
        "workload": {"requests": len(workload.requests), "arrivals": replay, "lengths": replay,
                     "ends": "max_new_tokens"},
        "clients": [{
            "name": "engine", "hardware": {"kind": "polynomial", "profile": str(profile)}, "scheduler": scheduler,
            "memory": {"block_size": engine.block_size, "num_blocks": engine.num_blocks, "prefix_caching": False},
        }],
    }


def write_requests(workload: OnlineWorkload, path: Path) -> None:
    """Write the requests as a trace file (CSV) that a scenario can replay."""
    lines = ["arrival_s,prompt_tokens,output_tokens"]
    lines += [f"{r.arrival_s!r},{r.prompt_tokens},{r.output_tokens}" for r in workload.requests]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def predict(workload: OnlineWorkload, scheduler: dict[str, Any], profile: Path) -> Prediction:
    """Simulate. Raises `InputError` for an invalid profile, or a workload that the engine could not serve."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "requests.csv"
        write_requests(workload, trace)
        results = simulate(scenario_of(workload, scheduler, profile.resolve(), trace))
    frame = results.requests
    output = [r.output_tokens for r in workload.requests]
    times = Times.of(
        frame["arrival_s"].tolist(), frame["first_token_s"].tolist(), frame["finish_s"].tolist(), output
    )
    record = results.record
    return Prediction(times, int(record.counters["steps"]), int(sum(record.out_of_range_steps)))
