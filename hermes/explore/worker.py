"""Process that has hermes loaded, and the workers that are forked from it.

It loads hermes and plug-ins once, and then forks a worker per request. A worker gets jobs as lines of JSON on a socket,
and answers with outcomes. It ends when its socket closes, even in the middle of a job: the sweep's process has ended or
wants it to stop. So does the process that forks. Output of a simulation goes to stderr.

A process with threads cannot be forked safely (nor one of macOS, whose libraries start threads). It then turns into a
worker itself at the first request, and `hermes.explore.executor` starts another process for the next worker.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["main"]

MAX_MESSAGE = 4096   # bytes of a request


def main() -> None:
    """Load modules and answer requests. stdin names the modules; the argument is the number of the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)   # Ctrl-C reaches all processes of a terminal; the parent decides
    os.dup2(2, 1)
    from hermes.errors import show_warning

    warnings.showwarning = show_warning   # before modules are imported: they may warn, too
    for module in json.loads(sys.stdin.readline())["modules"]:
        importlib.import_module(module)
    import hermes.explore.jobs  # noqa: F401  (to have it loaded)

    requests = socket.socket(fileno=int(sys.argv[1]))
    forks = _threads() == 1
    gc.collect()
    gc.freeze()   # collections do not visit, and so do not copy, what all workers share
    _answer(requests, {"forks": forks})
    _serve(requests, _fork if forks else _become)


def _threads() -> int | None:
    """Return the number of this process's threads, those of libraries included; None where it is not known."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return None


def _serve(requests: socket.socket, start: Callable[[socket.socket, socket.socket], int]) -> None:
    """Answer requests until the socket closes: `start` a worker on the socket that comes with the request, or `wait`
    for the end of one, and give its exit code."""
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
                _answer(requests, {"code": os.waitstatus_to_exitcode(status)})
            else:
                with socket.socket(fileno=sockets[0]) as jobs:
                    pid = start(requests, jobs)
                workers.add(pid)
                _answer(requests, {"pid": pid})
    except OSError:   # the other end is gone
        pass
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        for pid in workers:
            os.waitpid(pid, 0)


def _answer(requests: socket.socket, message: dict[str, Any]) -> None:
    requests.sendall(json.dumps(message).encode() + b"\n")


def _fork(requests: socket.socket, jobs: socket.socket) -> int:
    """Fork a worker. Return its process's number in the process that forks; a worker does not return."""
    pid = os.fork()
    if pid:
        return pid
    try:
        requests.close()
        _work(jobs)
    except BaseException:   # nothing of the process that was forked may go on here
        traceback.print_exc()
    finally:
        os._exit(1)


def _become(requests: socket.socket, jobs: socket.socket) -> int:
    """Turn into a worker. Does not return."""
    _answer(requests, {"pid": os.getpid()})
    _work(jobs)
    os._exit(1)


def _work(socket_of_jobs: socket.socket) -> None:
    """Perform jobs until the socket closes, which ends the process."""
    from hermes.explore.built import Built
    from hermes.explore.jobs import Job, as_dict, perform

    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(socket_of_jobs.makefile(encoding="utf-8"), lines), daemon=True).start()
    built = Built()
    while True:
        outcome = perform(Job(**json.loads(lines.get())), built)
        _answer(socket_of_jobs, as_dict(outcome))


def _listen(jobs: Any, lines: queue.SimpleQueue[str]) -> None:
    try:
        for line in jobs:
            lines.put(line)
    finally:
        os._exit(0)
