"""Process that has hermes loaded, and the workers that are forked from it.

It gets lines of JSON on stdin and answers on stdout: first the modules to load. Where stdin is a Unix socket, it then
forks a worker per request, and the socket of the worker's jobs comes with the request. A process with threads cannot be
forked safely (nor one of macOS, whose libraries start threads), and Windows cannot fork: there the process says so and
is itself the worker of the jobs that follow on stdin, and `hermes.explore.sweep.worker_process` starts another process
for the next worker.

A worker answers each job, a line of JSON, with its outcome. It ends when its jobs' stream closes, even in the middle of
a job: the sweep's process has ended or wants it to stop. So does the process that forks. Output of a simulation goes to
stderr.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import queue
import signal
import socket
import stat
import threading
import traceback
import warnings
from typing import IO, Any

__all__ = ["main"]

MAX_MESSAGE = 4096   # bytes of a request


def main() -> None:
    """Load the modules that stdin names, then fork workers or work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)   # Ctrl-C reaches all processes of a terminal; the parent decides
    requests, answers = os.dup(0), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)   # simulations and their subprocesses read no job
    os.dup2(2, 1)
    from hermes.errors import show_warning

    warnings.showwarning = show_warning   # before modules are imported: they may warn, too
    lines = os.fdopen(requests, encoding="utf-8", closefd=False)
    first = lines.readline()
    for module in json.loads(first)["modules"] if first else ():
        importlib.import_module(module)
    import hermes.explore.sweep.jobs  # noqa: F401  (to have it loaded)

    forks = stat.S_ISSOCK(os.fstat(requests).st_mode) and _threads() == 1
    gc.collect()
    gc.freeze()   # collections do not visit, and so do not copy, what all workers share
    _answer(answers, {"forks": forks})
    if forks:
        _serve(socket.socket(fileno=requests), answers)
    else:
        _work(lines, answers)


def _threads() -> int | None:
    """Return the number of this process's threads, those of libraries included; None where it is not known."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return None


def _serve(requests: socket.socket, answers: IO[bytes]) -> None:
    """Perform requests until the socket closes: fork a worker for the socket that comes with the request, or `wait` for
    the end of one, and give its exit code."""
    workers: set[int] = set()
    try:
        while True:
            text, sockets, _, _ = socket.recv_fds(requests, MAX_MESSAGE, 1)
            if not text:
                return
            message = json.loads(text)
            if "wait" in message:
                _, status = os.waitpid(message["wait"], 0)
                workers.discard(message["wait"])
                _answer(answers, {"code": os.waitstatus_to_exitcode(status)})
            else:
                with socket.socket(fileno=sockets[0]) as jobs:
                    pid = _fork(requests, answers, jobs)
                workers.add(pid)
                _answer(answers, {"pid": pid})
    except OSError:   # the other end is gone
        pass
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        for pid in workers:
            os.waitpid(pid, 0)


def _answer(answers: IO[bytes], message: dict[str, Any]) -> None:
    try:
        answers.write(json.dumps(message).encode() + b"\n")
        answers.flush()
    except OSError:   # the sweep's process has ended: nobody reads this, nor a traceback
        os._exit(0)


def _fork(requests: socket.socket, answers: IO[bytes], jobs: socket.socket) -> int:
    """Fork a worker. Return its process's number in the process that forks; a worker does not return."""
    pid = os.fork()
    if pid:
        return pid
    try:
        requests.close()
        answers.close()
        _work(jobs.makefile(encoding="utf-8"), jobs.makefile("wb"))
    except BaseException:   # nothing of the process that was forked may go on here
        traceback.print_exc()
    finally:
        os._exit(1)


def _work(jobs: IO[str], outcomes: IO[bytes]) -> None:
    """Perform jobs until their stream closes, which ends the process."""
    from hermes.explore.sweep.built import Built
    from hermes.explore.sweep.jobs import Job, as_dict, perform

    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs, lines), daemon=True).start()
    built = Built()
    while True:
        _answer(outcomes, as_dict(perform(Job(**json.loads(lines.get())), built)))


def _listen(jobs: IO[str], lines: queue.SimpleQueue[str]) -> None:
    try:
        for line in jobs:
            lines.put(line)
    finally:
        os._exit(0)
