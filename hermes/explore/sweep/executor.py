"""Executors of jobs: in this process, or in worker processes on this machine. Subclass `Executor` for others."""

from __future__ import annotations

import gc
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Protocol

from hermes.explore.sweep.built import Built
from hermes.explore.sweep.jobs import Job, Outcome, perform
from hermes.explore.sweep.worker_process import Loaded, Worker

__all__ = ["Executor", "InProcess", "Processes", "of_workers", "opened"]

CTRL_C_S = 0.5   # Windows notices Ctrl-C only between two waits
AHEAD = 64   # jobs to set aside for a worker that has built their simulations


class Executor(Protocol):
    """Performs jobs. A job that fails does not affect the others: its outcome reports the failure."""

    def begin(self) -> None:
        """Prepare for jobs that will follow soon, without waiting. Nothing by default."""
        return

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield one outcome per job, in order of completion. Jobs should be taken as they are needed: a sweep makes
        them one by one, in whichever thread asks, and none after an outcome that ends it."""
        ...

    def close(self) -> None:
        """Stop at once and cancel running jobs. Nothing may be run afterwards."""
        ...


def of_workers(workers: int, modules: Sequence[str] = ()) -> Executor:
    """Return an executor with `workers` processes, or this process for 0. modules: each worker imports them first."""
    return Processes(workers, modules) if workers else InProcess()


def opened(executor: Executor | None, workers: int, modules: Sequence[str] = ()) -> AbstractContextManager[Executor]:
    """Return an executor for a `with` block: the given one, which stays open, or `of_workers`, closed at its end."""
    return closing(of_workers(workers, modules)) if executor is None else nullcontext(executor)


class InProcess(Executor):
    """Performs jobs one after the other in this process, for plug-ins in a notebook or `__main__`, and for
    debugging. It keeps what checks build until it is run."""

    def __init__(self) -> None:
        self._built = Built()

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        return (perform(job, self._built) for job in jobs)

    def close(self) -> None:
        self._built = Built()
        gc.unfreeze()


class Processes(Executor):
    """Worker processes (`hermes.explore.sweep.worker`), each led by a thread of this one; they end with it."""

    def __init__(self, workers: int, modules: Sequence[str] = ()) -> None:
        self._loaded = Loaded(modules)
        self._workers = [Worker(self._loaded) for _ in range(workers)]
        self._keepers: dict[str, Worker] = {}   # of what checks built, by the key of the check
        self._closed = False

    def begin(self) -> None:
        self._loaded.begin()

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        waiting, done = _Waiting(jobs, self._keepers), queue.SimpleQueue[Outcome | Exception | None]()
        leading = 0
        for worker in self._workers:
            first = waiting.take(worker)   # here: a process is started only if there is a job for it
            if first is None:
                break
            threading.Thread(target=self._lead, args=(worker, first, waiting, done), daemon=True).start()
            leading += 1
        while leading:
            try:
                outcome = done.get(timeout=CTRL_C_S)
            except queue.Empty:
                continue
            if isinstance(outcome, Exception):
                raise outcome
            if outcome is None:
                leading -= 1
            else:
                yield outcome

    def _lead(
        self, worker: Worker, first: Job, waiting: _Waiting, done: queue.SimpleQueue[Outcome | Exception | None],
    ) -> None:
        try:
            job: Job | None = first
            while job is not None and not self._closed:
                outcome = worker.perform(job)
                if outcome.kept:
                    self._keepers[job.key] = worker
                done.put(outcome)
                job = waiting.take(worker)
            done.put(None)
        except Exception as error:
            done.put(error)

    def close(self) -> None:
        self._closed = True
        for worker in self._workers:
            worker.stop()
        self._loaded.close()


class _Waiting:
    """Jobs that no worker has taken yet. A worker that has built a job's simulation has the first claim on it."""

    def __init__(self, jobs: Iterable[Job], keepers: dict[str, Worker]) -> None:
        self._jobs, self._keepers = iter(jobs), keepers
        self._aside: dict[Worker, deque[Job]] = {}
        self._lock = threading.Lock()

    def take(self, worker: Worker) -> Job | None:
        """Return a worker's next job, or None if none is left."""
        with self._lock:
            mine = self._aside.get(worker)
            if mine:
                return mine.popleft()
            for job in self._jobs:
                keeper = self._keepers.pop(job.check, worker)
                if keeper is worker:
                    return job
                others = self._aside.setdefault(keeper, deque())
                others.append(job)
                if len(others) > AHEAD:   # built anew: better than to wait
                    return others.popleft()
            most = max(self._aside.values(), key=len, default=None)
            return most.popleft() if most else None
