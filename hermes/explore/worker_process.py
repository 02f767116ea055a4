"""Worker processes, seen from the process that runs a sweep (`hermes.explore.worker` is the other side)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hermes.errors import HermesError
from hermes.explore.jobs import Job, Outcome, as_dict

__all__ = ["Loaded", "Worker", "ending"]

STARTS = 3      # attempts to start a process
CLOSES_S = 5    # seconds that a process has to end its workers and itself
# each worker is one thread: numeric libraries must not start one per core in every process
_ONE_THREAD = dict.fromkeys((
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS",
    "BLIS_NUM_THREADS",
), "1")


class EndedError(Exception):
    """A process ended by itself. Args: its exit code, or the negative number of a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Process:
    """A process that has hermes loaded, or is loading it, and starts workers: several, or only itself."""

    def __init__(self, modules: Sequence[str]) -> None:
        # the whole sys.path: workers can import all that this process can
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        self.requests, other = socket.socketpair()
        with other:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", "from hermes.explore.worker import main; main()", str(other.fileno())],
                pass_fds=[other.fileno()], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                env=os.environ | _ONE_THREAD | {"PYTHONPATH": path},
            )
        self._answers = self.requests.makefile("rb")
        self._loaded = False
        self.can_start = True
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as stdin:   # broken: the first request finds out
            stdin.write(json.dumps({"modules": list(modules)}).encode() + b"\n")

    def start_worker(self) -> tuple[int, socket.socket]:
        """Return the number of a new worker's process, and the socket of its jobs. Raises `EndedError`."""
        if not self._loaded:
            self._forks = self._answer()["forks"]
            self._loaded = True
        jobs, other = socket.socketpair()
        try:
            with other, suppress(OSError):   # then there is no answer either
                socket.send_fds(self.requests, [b'{"start": true}'], [other.fileno()])
            pid = int(self._answer()["pid"])
        except EndedError:
            jobs.close()
            raise
        self.can_start = self._forks
        return pid, jobs

    def wait(self, pid: int) -> int:
        """Return the exit code of a worker that ends."""
        if pid == self.process.pid:
            return self.process.wait()
        try:
            with suppress(OSError):
                self.requests.sendall(json.dumps({"wait": pid}).encode())
            return int(self._answer()["code"])
        except EndedError:
            return -signal.SIGKILL   # not known: this process, which started it, has ended before

    def _answer(self) -> Any:
        try:
            line = self._answers.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            self.can_start = False
            raise EndedError(self.process.wait())
        return json.loads(line)

    def close(self) -> None:
        """End the process. Closing its socket ends it and the workers that it forked, once it has hermes loaded."""
        self.can_start = False
        with suppress(OSError):
            self.requests.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(timeout=CLOSES_S if self._loaded else 0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Loaded:
    """Processes that have hermes loaded, and start workers: one, where processes can be forked. Used by threads."""

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self._modules = modules
        self._lock = threading.Lock()
        self._processes: list[_Process] = []
        self._closed = False

    def begin(self) -> None:
        """Begin to load hermes, without waiting for it."""
        with self._lock:
            self._process()

    def _process(self) -> _Process:
        """Return a process that can start a worker."""
        if self._closed:
            raise HermesError("the worker processes were closed")
        found = next((process for process in self._processes if process.can_start), None)
        if found is None:
            found = _Process(self._modules)
            self._processes.append(found)
        return found

    def start_worker(self) -> tuple[_Process, int, socket.socket]:
        """Return a new worker: the process that started it, its own process's number, and its socket.

        Raises `EndedError` if that process ends, and `HermesError` if another one would end in the same way.
        """
        with self._lock:
            process = self._process()
            try:
                return process, *process.start_worker()
            except EndedError as error:
                if error.code >= 0 or self._closed:
                    raise HermesError(f"a worker process could not start: it {ending(error.code)}") from None
                raise

    def wait(self, process: _Process, pid: int) -> int:
        """Return the exit code of a worker that ends."""
        with self._lock:
            return process.wait(pid)

    def close(self) -> None:
        self._closed = True
        for process in self._processes:   # without the lock: a thread that waits for a process may hold it
            process.close()


class Worker:
    """One worker process; started when first needed, and started again after it died."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._started: tuple[_Process, int, socket.socket] | None = None

    def perform(self, job: Job) -> Outcome:
        """Return the outcome of a job. Raises `HermesError` if no worker can be started."""
        starts = 0
        while self._started is None:
            starts += 1
            try:
                self._started = self._loaded.start_worker()
                self._answers = self._started[2].makefile("rb")
            except EndedError as error:
                if starts == STARTS:
                    said = f"the process {ending(error.code)}, {STARTS} times while it started"
                    return Outcome(job.key, "failed", said)
        process, pid, jobs = self._started
        with suppress(OSError):   # then there is no answer either
            jobs.sendall(json.dumps(as_dict(job)).encode() + b"\n")
        try:
            line = self._answers.readline()
        except OSError:
            line = b""
        if line.endswith(b"\n"):
            return Outcome(**json.loads(line))
        self._started = None
        jobs.close()
        return Outcome(job.key, "failed", f"the process {ending(self._loaded.wait(process, pid))}")

    def stop(self) -> None:
        """Kill the process, in the middle of a job."""
        if self._started is not None:
            with suppress(ProcessLookupError):
                os.kill(self._started[1], signal.SIGKILL)


def ending(code: int) -> str:
    """Return the words for an exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    memory = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{memory}"
