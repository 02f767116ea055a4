"""Contract suite for executors of a sweep's jobs.

Inherit it in a test module and give `make()`:

    class TestMyExecutor(ExecutorContract):
        def make(self):
            return MyExecutor()
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hermes.explore.sweep.executor import Executor
from hermes.explore.sweep.jobs import Job
from hermes.explore.sweep.runner import run_sweep

__all__ = ["ExecutorContract"]


def _document(requests: int, **more: Any) -> str:
    return json.dumps({
        "workload": {"requests": requests, "arrivals": {"kind": "poisson", "rate": 5},
                     "lengths": {"kind": "fixed", "prompt": 50, "output": 5}},
        "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm"}], **more})


class ExecutorContract(ABC):
    """Contract of an executor: the properties that a sweep relies on."""

    @abstractmethod
    def make(self) -> Executor:
        """Return a new executor. It is closed afterwards."""

    def test_one_outcome_for_each_job(self) -> None:
        jobs = [Job(f"job {n}", "run", _document(n), ".") for n in range(1, 8)]
        with closing(self.make()) as executor:
            executor.begin()
            found = {outcome.key: outcome for outcome in executor.run(jobs)}
        assert found.keys() == {job.key for job in jobs}
        assert [found[f"job {n}"].figures["requests.completed"] for n in range(1, 8)] == list(range(1, 8))

    def test_a_failure_is_an_outcome_and_stops_nothing(self) -> None:
        jobs = [Job("good", "run", _document(2), "."), Job("wrong", "run", _document(2, sead=1), "."),
                Job("later", "run", _document(3), ".")]
        with closing(self.make()) as executor:
            found = {outcome.key: outcome for outcome in executor.run(jobs)}
        assert {key: outcome.status for key, outcome in found.items()} == {
            "good": "ok", "wrong": "failed", "later": "ok"}
        assert "sead" in str(found["wrong"].reason)

    def test_no_jobs(self) -> None:
        with closing(self.make()) as executor:
            assert list(executor.run([])) == []

    def test_jobs_are_taken_as_they_are_needed(self) -> None:
        taken: list[int] = []

        def jobs() -> Any:   # a generator of jobs
            for number in range(1000):
                taken.append(number)
                yield Job(f"job {number}", "run", _document(1), ".")

        with closing(self.make()) as executor:
            next(iter(executor.run(jobs())))
            assert len(taken) < 500, "an executor must not take all jobs at once"

    def test_a_sweep_has_the_same_bytes(self) -> None:
        sweep = {"name": "same", "scenario": json.loads(_document(5)), "grid": {
            "workload.arrivals.rate": [2, 4, 8], "workload.lengths.output": [2, 6]}}
        with TemporaryDirectory() as folder:
            run_sweep(sweep, Path(folder) / "here", workers=0)
            with closing(self.make()) as executor:
                run_sweep(sweep, Path(folder) / "there", executor=executor)
            same = [(Path(folder) / place / "results.parquet").read_bytes() for place in ("here", "there")]
        assert same[0] == same[1]
