"""Worker processes, seen from the process that runs a sweep (`hermes.explore.sweep.worker` is the other side)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from typing import IO, Any, cast

from hermes.errors import HermesError
from hermes.explore.sweep.jobs import Job, Outcome, as_dict

__all__ = ["Loaded", "Worker", "ending"]

FORKS = hasattr(os, "fork") and hasattr(socket, "send_fds")   # Windows has neither
STARTS = 3      # attempts to start a process
CLOSES_S = 5    # seconds that a process has to end its workers and itself
# each worker is one thread: numeric libraries must not start one per core in every process
_ONE_THREAD = dict.fromkeys((
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS",
    "BLIS_NUM_THREADS",
), "1")
# Ctrl-C reaches all processes of a terminal; the parent decides
_START = "import signal as s; s.signal(s.SIGINT, s.SIG_IGN); from hermes.explore.sweep.worker import main; main()"


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
        pair: tuple[socket.socket | None, ...] = socket.socketpair() if FORKS else (None, None)
        self._socket, other = pair
        with other or nullcontext():
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START],
                stdin=other.fileno() if other else subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                env=os.environ | _ONE_THREAD | {"PYTHONPATH": path},
            )
        # writers without buffers: what an ended process did not take would be written again when they are deleted
        requests = self._socket.makefile("wb", buffering=0) if self._socket else self.process.stdin
        assert requests is not None
        self._requests: RawIOBase | IO[bytes] = requests
        self._answers = BufferedReader(cast(RawIOBase, self.process.stdout))
        self._forks: bool | None = None   # None: not loaded yet
        self.can_start = True
        _send(self._requests, {"modules": list(modules)})

    def start_worker(self) -> Started:
        """Return a new worker. Raises `EndedError`."""
        if self._forks is None:
            self._forks = bool(self._answer()["forks"])
        if not self._forks:
            self.can_start = False
            return Started(self, self.process.pid, self._requests, self._answers)
        assert self._socket is not None
        ours, other = socket.socketpair()
        with ours:   # its two files keep it open
            with other, suppress(OSError):   # then there is no answer either
                socket.send_fds(self._socket, [b'{"start": true}'], [other.fileno()])
            return Started(self, int(self._answer()["pid"]), ours.makefile("wb", buffering=0), ours.makefile("rb"))

    def wait(self, pid: int) -> int:
        """Return the exit code of a worker that ends."""
        if pid == self.process.pid:
            return self.process.wait()
        _send(self._requests, {"wait": pid})
        try:
            return int(self._answer()["code"])
        except EndedError:
            return -signal.SIGKILL   # not known: this process, which started it, has ended before

    def kill(self, pid: int) -> None:
        """Kill a worker, in the middle of a job."""
        if pid == self.process.pid:
            self.process.kill()
        else:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _answer(self) -> Any:
        line = _line(self._answers)
        if not line:
            self.can_start = False
            raise EndedError(self.process.wait())
        return json.loads(line)

    def close(self) -> None:
        """End the process. Closing its socket ends it and the workers that it forked, once it has hermes loaded."""
        self.can_start = False
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(timeout=CLOSES_S if self._forks else 0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True, slots=True)
class Started:
    """A worker that runs: the process that started it, its own process's number, and its two streams of lines."""

    process: _Process
    pid: int
    jobs: RawIOBase | IO[bytes]
    outcomes: IO[bytes]


def _send(stream: RawIOBase | IO[bytes], message: dict[str, Any]) -> None:
    """Write a message. One that cannot be written is not answered either: the reader notices."""
    left = memoryview(json.dumps(message).encode() + b"\n")
    with suppress(OSError):
        while left:
            left = left[stream.write(left) or 0:]


def _line(stream: IO[bytes]) -> bytes:
    """Return the next line; b"" where the process at the other end has ended, even in the middle of one."""
    try:
        line = stream.readline()
    except OSError:
        return b""
    return line if line.endswith(b"\n") else b""


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

    def start_worker(self) -> Started:
        """Return a new worker.

        Raises `EndedError` if that process ends, and `HermesError` if another one would end in the same way.
        """
        with self._lock:
            process = self._process()
            try:
                return process.start_worker()
            except EndedError as error:
                if error.code >= 0 or self._closed:
                    raise HermesError(f"a worker process could not start: it {ending(error.code)}") from None
                raise

    def wait(self, worker: Started) -> int:
        """Return the exit code of a worker that ends."""
        with self._lock:
            return worker.process.wait(worker.pid)

    def close(self) -> None:
        self._closed = True
        for process in self._processes:   # without the lock: a thread that waits for a process may hold it
            process.close()


class Worker:
    """One worker process; started when first needed, and started again after it died."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._started: Started | None = None

    def perform(self, job: Job) -> Outcome:
        """Return the outcome of a job. Raises `HermesError` if no worker can be started."""
        starts = 0
        while self._started is None:
            starts += 1
            try:
                self._started = self._loaded.start_worker()
            except EndedError as error:
                if starts == STARTS:
                    said = f"the process {ending(error.code)}, {STARTS} times while it started"
                    return Outcome(job.key, "failed", said)
        worker = self._started
        _send(worker.jobs, as_dict(job))
        line = _line(worker.outcomes)
        if line:
            return Outcome(**json.loads(line))
        self._started = None
        return Outcome(job.key, "failed", f"the process {ending(self._loaded.wait(worker))}")

    def stop(self) -> None:
        """Kill the process, in the middle of a job."""
        worker = self._started
        if worker is not None:
            worker.process.kill(worker.pid)


def ending(code: int) -> str:
    """Return the words for an exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
