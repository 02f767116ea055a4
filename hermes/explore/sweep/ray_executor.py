"""Executor of jobs on a Ray cluster: one core for each job, on whichever node is free.

Jobs are plain data and outcomes go to the driver, which alone writes the folder of a sweep: its results have the same
bytes as those of one machine. A node may die: Ray performs its jobs again elsewhere. The nodes need the same version of
HERMES, and see the files that scenarios name under the same paths, as does the folder of a sweep that keeps requests.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hermes.errors import InputError, Verbatim
from hermes.explore.sweep.executor import Executor
from hermes.explore.sweep.jobs import Job, Outcome, perform

__all__ = ["OnRay", "check_address"]

AHEAD = 2        # jobs under way for each core, so that none waits for the driver
TRIES = 4        # of a job whose node or process died
ANSWERS_S = 5.0  # in which a cluster takes a connection
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")


def _perform(job: Job, modules: Sequence[str]) -> Outcome:
    """Perform a job in a process of a node. modules: imported first, for the plug-ins that they register."""
    import importlib

    for module in modules:
        importlib.import_module(module)
    return perform(job)


def check_address(address: str) -> None:
    """Raise `InputError` for a HOST:PORT where nothing listens. Ray itself would try for minutes.

    address: HOST:PORT, ray://HOST:PORT, or a word such as auto, which is not checked.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    problems = [f"no answer in {ANSWERS_S:g} s"]

    def connect() -> None:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS_S).close()
            problems.clear()
        except (OSError, OverflowError, UnicodeError) as error:
            problems[:] = [str(error)]

    thread = threading.Thread(target=connect, daemon=True)   # looking up a name has no time limit of its own
    thread.start()
    thread.join(ANSWERS_S)
    if problems:
        raise InputError("the address of a Ray cluster, HOST:PORT or auto",
                         Verbatim(f"{address}, where nothing listens ({problems[0]})"[:200]), field="--address")


class OnRay(Executor):
    """Performs jobs on the cluster at `address`; on the cluster that `ray start` or the environment names, or on a new
    one of this machine, where that is left out."""

    def __init__(self, address: str = "", modules: Sequence[str] = ()) -> None:
        """Raises `InputError` if Ray is missing, or no cluster answers at `address`."""
        try:
            import ray
        except ImportError:
            raise InputError("the package ray (pip install 'hermes-sim[ray]')", None, field="--executor") from None
        self._ray: Any = ray   # Any: the package is optional
        self._modules = tuple(modules)
        self._mine = not ray.is_initialized()
        if self._mine:
            # the folders that Python searches here: a checkout, the folder of a plug-in
            paths = os.pathsep.join(path for path in sys.path if path and os.path.isdir(path))
            options: dict[str, Any] = {"runtime_env": {"env_vars": {**ONE_THREAD, "PYTHONPATH": paths}},
                                       "log_to_driver": False, "logging_level": "ERROR"}
            check_address(address or os.environ.get("RAY_ADDRESS", ""))
            try:
                if address:
                    ray.init(address=address, **options)
                elif os.environ.get("RAY_ADDRESS"):
                    ray.init(**options)
                else:
                    ray.init(include_dashboard=False, **options)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise InputError("the address of a Ray cluster, HOST:PORT or auto",
                                 Verbatim(f"{address or 'none'}: {error}"[:200]), field="--address") from None
        self._task: Any = ray.remote(num_cpus=1, max_retries=TRIES - 1)(_perform)
        self._under_way: dict[Any, Job] = {}

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        ray, waiting = self._ray, iter(jobs)
        job = next(waiting, None)
        while job is not None or self._under_way:
            while job is not None and len(self._under_way) < AHEAD * self._cores():
                self._under_way[self._task.remote(job, self._modules)] = job
                job = next(waiting, None)
            ready, _ = ray.wait(list(self._under_way), num_returns=1)
            for reference in ready:
                yield self._outcome(reference, self._under_way.pop(reference))

    def _cores(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def _outcome(self, reference: Any, job: Job) -> Outcome:
        errors = self._ray.exceptions
        try:
            found: Outcome = self._ray.get(reference)
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError, errors.ObjectLostError,
                errors.RaySystemError) as error:
            said = str(error).splitlines()[0]
            return Outcome(job.key, "failed", reason=f"its process or node died {TRIES} times: {said}"[:300])
        return found

    def close(self) -> None:
        for reference in self._under_way:
            self._ray.cancel(reference, force=True)
        self._under_way.clear()
        if self._mine and self._ray.is_initialized():
            self._ray.shutdown()
