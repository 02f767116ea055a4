"""Executors of jobs: in this process, or in worker processes on this machine. Subclass `Executor` for another
engine."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from hermes.errors import HermesError
from hermes.explore.jobs import Job, Outcome, perform

__all__ = ["Executor", "InProcess", "Processes", "executor"]

STARTS = 3   # attempts to start a worker process
# each worker is one thread: numeric libraries must not start one per core in every process
_ONE_THREAD = dict.fromkeys((
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS",
    "BLIS_NUM_THREADS",
), "1")


class Executor(Protocol):
    """Performs jobs. A job that fails does not affect the others: its outcome reports the failure."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Yield one outcome per job, in order of completion."""
        ...

    def close(self) -> None:
        """Stop at once and cancel running jobs. Nothing may be run afterwards."""
        ...


def executor(workers: int, modules: Sequence[str] = ()) -> Executor:
    """Return an executor with `workers` processes, or this process for 0. modules: each worker imports them first."""
    return Processes(workers, modules) if workers else InProcess()


class InProcess:
    """Performs jobs one after the other in this process, for plug-ins in a notebook or `__main__`, and for
    debugging."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        return map(perform, jobs)

    def close(self) -> None:
        pass


class Processes:
    """Worker processes (`hermes.explore.worker`), each led by a thread of this one. They end with this process."""

    def __init__(self, workers: int, modules: Sequence[str] = ()) -> None:
        self.workers, self.modules = workers, list(modules)
        self._started: list[_Worker] = []
        self._closed = False

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        done: queue.SimpleQueue[Outcome | Exception] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        while len(self._started) < min(self.workers, len(jobs)):
            self._started.append(_Worker(self.modules))
        for worker in self._started:
            threading.Thread(target=self._lead, args=(worker, waiting, done), daemon=True).start()
        for _ in jobs:
            outcome = done.get()
            if isinstance(outcome, Exception):
                raise outcome
            yield outcome

    def _lead(self, worker: _Worker, waiting: queue.SimpleQueue[Job], done: queue.SimpleQueue[Any]) -> None:
        try:
            while not self._closed:
                done.put(worker.perform(waiting.get_nowait()))
        except queue.Empty:
            pass
        except Exception as error:
            done.put(error)

    def close(self) -> None:
        self._closed = True
        for worker in self._started:
            worker.stop()
        self._started.clear()


class _Worker:
    """One worker process; started when first needed, and restarted after it died."""

    def __init__(self, modules: list[str]) -> None:
        self.modules = modules
        self.process: subprocess.Popen[str] | None = None
        self._stopped = False

    def perform(self, job: Job) -> Outcome:
        starts = 0
        while self.process is None or self.process.poll() is not None:
            starts += 1
            code = self._start()
            if code is not None and (code >= 0 or self._stopped):   # another attempt would end in the same way
                raise HermesError(f"a worker process could not start: it {_ending(code)}")
            if code is not None and starts == STARTS:
                return Outcome(job.key, "failed", f"the process {_ending(code)}, {STARTS} times while it started")
        answer = self._ask(self.process, asdict(job))
        if answer is None:
            return Outcome(job.key, "failed", f"the process {_ending(self.process.wait())}")
        return Outcome(**answer)

    def _start(self) -> int | None:
        """Start the process. Return None if it is ready, else its exit code (the negative number of a signal)."""
        # the whole sys.path: workers can import all that this process can
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from hermes.explore.worker import main; main()"], text=True, encoding="utf-8",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | _ONE_THREAD | {"PYTHONPATH": path},
        )
        return None if self._ask(self.process, {"modules": self.modules}) is not None else self.process.wait()

    @staticmethod
    def _ask(process: subprocess.Popen[str], message: dict[str, Any]) -> Any:
        """Return the answer to a line, or None if the process died."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except (BrokenPipeError, ValueError):   # ValueError: closed by `stop`
            return None
        return json.loads(line) if line.endswith("\n") else None

    def stop(self) -> None:
        self._stopped = True
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    memory = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{memory}"
