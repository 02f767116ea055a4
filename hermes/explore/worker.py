"""Worker process: jobs as lines of JSON on stdin, outcomes as lines of JSON on stdout.

It ends when its stdin closes, even in the middle of a job: the parent process has ended or wants it to stop. Output of
a simulation goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import sys
import threading
from dataclasses import asdict
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Read, perform and answer jobs. The first line on stdin names modules to import, the first on stdout is a
    greeting."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)   # Ctrl-C reaches all processes of a terminal; the parent decides
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for module in json.loads(sys.stdin.readline())["modules"]:
        importlib.import_module(module)
    from hermes.explore.jobs import Job, perform

    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    _say(answers, {"ready": os.getpid()})
    while True:
        _say(answers, asdict(perform(Job(**json.loads(lines.get())))))


def _listen(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


def _say(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()
