"""Registry of real engines, and running one of them on a workload.

An engine is a module that runs in the engine's interpreter: `PYTHON -m MODULE WORKLOAD RESULT` (files of
`hermes.calibration.collect.online`, whose `serve_workload` does all but the engine itself). Under the same name it has
a planner in `hermes.calibration.plan.ENGINES`, so that it can be calibrated. Others register through the entry-point
group `hermes.validation_engines`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Protocol

from hermes.calibration.engine_validation.workload import OnlineWorkload
from hermes.calibration.session import interpreter_environment
from hermes.config.registry import Registry
from hermes.errors import InputError, Verbatim

__all__ = ["VALIDATION_ENGINES", "ValidationEngine", "engine_named", "run_online"]

VALIDATION_ENGINES: Registry[Any] = Registry("validation_engines", "an engine to validate")


class ValidationEngine(Protocol):
    """Description of an engine. Registered classes are instantiated without arguments."""

    online_module: str
    """Module to run in the engine's interpreter."""

    def scheduler(self, workload: OnlineWorkload) -> dict[str, Any]:
        """Return the scheduler of a scenario that follows the engine's rules."""
        ...


class _Chunked:
    def scheduler(self, workload: OnlineWorkload) -> dict[str, Any]:
        """Chunked prefill as vLLM V1 schedules it (docs/background/vllm.md)."""
        engine = workload.engine
        return {"kind": "chunked", "max_num_batched_tokens": engine.max_num_batched_tokens,
                "max_num_seqs": engine.max_num_seqs, "async_scheduling": False}


@VALIDATION_ENGINES.register("vllm")
class Vllm(_Chunked):
    """vLLM, its V1 scheduler in process."""

    online_module = "hermes.calibration.collect.vllm_online"


@VALIDATION_ENGINES.register("torch")
class Torch(_Chunked):
    """The plain torch engine of the calibration, served in the same order."""

    online_module = "hermes.calibration.collect.torch_online"


def engine_named(name: str) -> ValidationEngine:
    """Return the engine of that name. Raises `InputError` for an unregistered name."""
    found: ValidationEngine = VALIDATION_ENGINES.get(name)()
    return found


def run_online(engine: ValidationEngine, python: str, workload: Path, result: Path, log: Path) -> str:
    """Serve a workload with the real engine; return "" or the reason for a failure. The engine's output goes to `log`.

    After a success the result exists, whole. Raises `InputError` for a missing interpreter.
    """
    command = [python, "-m", engine.online_module, str(workload.resolve()), str(result.resolve())]
    with interpreter_environment() as environment, log.open("w", encoding="utf-8") as output:
        try:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        except OSError as error:
            raise InputError("an interpreter that has the engine", Verbatim(f"{python} ({error.strerror})"),
                             field="--python") from None
        try:
            code = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if code == 0 and result.is_file():
        return ""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {code}"
