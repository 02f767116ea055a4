"""Measure the start of a serving engine: `python -m hermes.calibration.collect.start_up PLAN.json JOURNAL.jsonl`.

A point is one start of one model, cold or warm. The server is started by the plan's command, its log is read line by
line (`vllm_log`), its health is asked every 50 ms, and its first requests are timed; then it is stopped.

- cold: an empty compile cache (the plan's cache variables name a new folder), and weights that are not in the page
  cache, as far as the system drops them when it is asked to (`posix_fadvise`).
- warm: the compile cache that an earlier start of this model has filled, and weights in the page cache. In a session
  that has none yet, one start fills it, which is not recorded.

A row has the seconds until the server was ready, those of each phase, the CPU time of the server's processes, and that
of all others on the machine meanwhile. numpy and the standard library, in the interpreter that `{python}` means.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermes.calibration.collect.session import (
    DRIVER_PID,
    Collector,
    CollectorError,
    Point,
    PointFailed,
    Row,
    machine,
    need_unix,
)
from hermes.calibration.collect.session import main as run
from hermes.calibration.collect.vllm_log import StartLog
from hermes.calibration.collect.written_model import weight_files, write_model

__all__ = ["StartUpCollector"]

POLL_S = 0.05
STOP_S = 30.0          # until a server that was asked to stop is killed
HURRY_S = 2.0          # the same, when the collector has to end
REQUEST_S = 120.0
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]   # token ids of the first requests
OWN = ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE", DRIVER_PID)
"""Variables of the collector's own interpreter, which a server must not have."""
_PR_SET_PDEATHSIG = 1


class StartUpCollector(Collector):
    """One server at a time; folders of models and of compile caches for a session."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__(plan)
        need_unix("the start of an engine")
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="hermes-start-up-", dir=plan["folder"] or None))
        except OSError as error:
            raise CollectorError(f"folder: {plan['folder'] or tempfile.gettempdir()}: {error.strerror}") from None
        self._models: dict[str, Path] = {}
        self._filled: dict[str, Path] = {}
        self._caches = 0
        self._stopped = False

    def environment(self) -> dict[str, Any]:
        """Machine and date."""
        return super().environment() | machine()

    def close(self) -> None:
        """Remove the folders."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def measure(self, point: Point) -> tuple[list[Row], dict[str, Any]]:
        """Start the point's model once. A start does not go on when the collector is told to end."""
        before = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_stopped", True))
        try:
            return self._measure(point)
        finally:
            signal.signal(signal.SIGTERM, before)

    def _measure(self, point: Point) -> tuple[list[Row], dict[str, Any]]:
        name = point["model"]
        folder = self._model(name)
        if point["cache"] == "cold":
            cache = self._new_cache()
            _drop(weight_files(folder))
        else:
            cache = self._filled.get(name) or self._fill(name, folder)
            _read(weight_files(folder))
        row, more = self._start(folder, cache)
        self._keep(name, cache)
        return [{"repetition": point["repetition"], **row}], more

    def _fill(self, name: str, folder: Path) -> Path:
        """Start a model for nothing but its compile cache."""
        cache = self._new_cache()
        self._start(folder, cache)
        self._keep(name, cache)
        return cache

    def _new_cache(self) -> Path:
        self._caches += 1
        cache = self._folder / f"cache-{self._caches}"
        cache.mkdir()
        return cache

    def _keep(self, name: str, cache: Path) -> None:
        """Keep this cache of a model, and no other."""
        old = self._filled.get(name)
        if old is not None and old != cache:
            shutil.rmtree(old, ignore_errors=True)
        self._filled[name] = cache

    def _model(self, name: str) -> Path:
        """Return the folder of a model; one of random weights is written at its first start."""
        if name not in self._models:
            asked = self.plan["models"][name]
            if asked["folder"]:
                self._models[name] = Path(asked["folder"])
            else:
                folder = self._folder / f"model-{len(self._models)}"
                try:
                    write_model(folder, asked["config_json"], self.plan["dtype"],
                                weights=self.plan["weights"] == "written")
                except (ValueError, KeyError, OSError) as error:
                    shutil.rmtree(folder, ignore_errors=True)
                    raise PointFailed(f"{name}: {error}") from None
                self._models[name] = folder
        return self._models[name]

    def _start(self, folder: Path, cache: Path) -> tuple[Row, dict[str, Any]]:
        """Start a server, wait until it is ready, time its first requests, stop it."""
        port = _free_port()
        places = {"{python}": sys.executable, "{model}": str(folder), "{port}": str(port)}
        command = []
        for word in shlex.split(self.plan["command"]):
            for place, value in places.items():
                word = word.replace(place, value)
            command.append(word)
        if self.plan["weights"] == "dummy":
            command += ["--load-format", "dummy"]
        variables = {name: value for name, value in os.environ.items() if name not in OWN}
        variables |= {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        variables |= self.plan["environment"]
        variables |= {name: str(cache / name.lower()) for name in self.plan["cache_variables"]}
        server = _Server(command, variables, port)
        try:
            row = server.wait(self.plan["ready"], float(self.plan["timeout_s"]), lambda: self._stopped)
            if self.plan["first_request"]:
                first = server.first_request_s()
                row |= {} if first is None else {"first_request_s": first}
        except BaseException:
            server.stop(HURRY_S)
            raise
        server.stop(STOP_S)
        log = server.log
        if not log.of_vllm:
            raise PointFailed("its log has no line of vLLM about loading a model: is it vLLM, and does "
                              "VLLM_LOGGING_LEVEL hide them?")
        row |= log.phases(row["time_s"])
        return row, {"library": f"vLLM {log.version}".strip(),
                     "work": {"sizes": log.sizes or [], "compiled": log.compiled}}


class _Server:
    """A running server, and the log that a thread reads."""

    def __init__(self, command: list[str], variables: dict[str, str], port: int) -> None:
        libc = ctypes.CDLL(None)
        self._port, self.log, self._others = port, StartLog(), _machine_cpu_s()
        self._began = time.monotonic()
        try:
            self._process = subprocess.Popen(   # ends with this process, even if that is killed
                command, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) if sys.platform == "linux" else None)
        except OSError as error:
            raise CollectorError(f"command: {command[0]}: {error.strerror}") from None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while piece := os.read(self._process.stdout.fileno(), 1 << 16):
            now = time.monotonic() - self._began
            *lines, rest = (rest + piece).replace(b"\r", b"\n").split(b"\n")
            for line in lines:
                self.log.add(now, line.decode("utf-8", "replace"))
            rest = rest[-(1 << 20):]

    def wait(self, path: str, timeout_s: float, stopped: Callable[[], bool]) -> Row:
        """Return the row of a server that has become ready. Raises `PointFailed`, and `CollectorError` if the collector
        has to end."""
        while True:
            if stopped():
                raise CollectorError("stopped in the middle of a start: run the same command again to continue")
            if self._process.poll() is not None:
                self._reader.join(1.0)
                raise PointFailed(f"the server ended with exit code {self._process.returncode} before it was ready: "
                                  f"{self.log.last or 'it said nothing'}")
            if _status(self._port, path) == 200:
                break
            if time.monotonic() - self._began > timeout_s:
                raise PointFailed(f"the server was not ready after {timeout_s:g} s; its last line: {self.log.last}")
            time.sleep(POLL_S)
        took, own = time.monotonic() - self._began, _session_cpu_s(self._process.pid)
        return {"time_s": took, "cpu_time_s": own, "others_s": max(0.0, _machine_cpu_s() - self._others - own)}

    def first_request_s(self) -> float | None:
        """Return how much longer the first request takes than the third; None if the server takes none."""
        try:
            model = json.loads(_ask(self._port, "GET", "/v1/models"))["data"][0]["id"]
            body = json.dumps({"model": model, "prompt": PROMPT, "max_tokens": 1, "temperature": 0})
            times = []
            for _ in range(3):
                began = time.perf_counter()
                _ask(self._port, "POST", "/v1/completions", body)
                times.append(time.perf_counter() - began)
        except (OSError, ValueError, KeyError, IndexError, TypeError, http.client.HTTPException):
            return None
        return max(0.0, times[0] - min(times[1:]))

    def stop(self, patience_s: float) -> None:
        """End the server with all of its processes; those that still run after `patience_s` are killed."""
        for number, patience in ((signal.SIGTERM, patience_s), (signal.SIGKILL, STOP_S)):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                break
            until = time.monotonic() + patience
            while time.monotonic() < until and (self._process.poll() is None or _session(self._process.pid)):
                time.sleep(POLL_S)
        self._process.wait()
        self._reader.join(5.0)


def _free_port() -> int:
    with socket.socket() as at:
        at.bind(("127.0.0.1", 0))
        return int(at.getsockname()[1])


def _ask(port: int, method: str, path: str, body: str | None = None) -> bytes:
    """Return the answer to a request. Raises `OSError` for one that is no success."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        read = answer.read(1 << 20)
        if answer.status != 200:
            raise OSError(f"status {answer.status}")
        return read
    finally:
        connection.close()


def _status(port: int, path: str) -> int:
    """Return the status that a path answers with; 0 while nothing listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


# -- page cache and CPU time -------------------------------------------------------------------------------------------


def _drop(files: list[Path]) -> None:
    """Ask the system to drop files from its page cache: clean pages that no process has mapped."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(files: list[Path]) -> None:
    """Bring files into the page cache."""
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


def _session(leader: int) -> list[list[str]]:
    """Return the fields of /proc/PID/stat, from the state on, of the running processes of a session."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit():
            try:
                fields = Path("/proc", name, "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
            except OSError:   # it has just ended
                continue
            if len(parts := fields.split()) > 14 and parts[3] == str(leader) and parts[0] != "Z":
                found.append(parts)
    return found


def _session_cpu_s(leader: int) -> float:
    """Return the CPU seconds of a session's processes so far, with those of their ended children."""
    return sum(sum(int(each) for each in fields[11:15]) for fields in _session(leader)) / os.sysconf("SC_CLK_TCK")


def _machine_cpu_s() -> float:
    """Return the CPU seconds that all processes of the machine have taken so far; 0 where the system does not count."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _idle, _wait, irq, soft, *_ = (int(each) for each in file.readline().split()[1:])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(run(StartUpCollector))
