"""Collector of single operators: `python -m hermes.calibration.collect.terms PLAN.json JOURNAL.jsonl [--budget S]`.

A point is one operator at one size (`hermes.calibration.terms_plan`). Its rows are repetitions: each runs the operator
over and over for at least the plan's `sample_s` and gives the time of one. What an operator finds in the caches is what
it finds in a model: weights and KV were last read a layer or a step ago, so repetitions walk through copies that are
together larger than the device's cache; inputs were written by the operator before, and are used again at once.

On a GPU an operator runs as a CUDA graph of many launches between two events, which is how engines launch decode steps;
where a kernel cannot be captured, the launches are queued one by one, and the journal says so. On a CPU wall clock and
CPU time stand side by side. Imports: standard library, numpy; torch and vLLM for a GPU.
"""

from __future__ import annotations

import datetime
import gc
import os
import platform
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from hermes.calibration.collect.session import Collector, CollectorError, PointFailed, cpu_name, main, need_unix
from hermes.calibration.collect.terms_numpy import NumpyBackend

if TYPE_CHECKING:
    from hermes.calibration.collect.terms_torch import TorchBackend

__all__ = ["TermsCollector", "open_collector"]

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class TermsCollector(Collector):
    """Measures points of a plan (the collector of a session)."""

    def __init__(self, plan: dict[str, Any]) -> None:
        """Open the backend. Raises `CollectorError` for a plan this machine cannot serve."""
        super().__init__(plan)
        self.repetitions, self.sample_s = int(plan["repetitions"]), float(plan["sample_s"])
        self.backend = _backend(plan)
        gc.collect()
        gc.freeze()   # torch alone is a million objects, and each point collects its own

    def environment(self) -> dict[str, Any]:
        """Return versions, device and settings."""
        return {
            "device": cpu_name(), "date": datetime.date.today().isoformat(), "python": platform.python_version(),
            "platform": platform.platform(), "numpy": np.__version__, "cores": os.cpu_count(),
            "threads": self.plan["threads"], **self.backend.describe(),
        }

    def measure(self, point: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Measure repetitions of one operator. Raises `PointFailed` with the reason where it cannot run here."""
        gc.collect()
        gc.disable()
        try:
            if point["term"] == "power":
                return [self.backend.power(point, float(self.plan["hold_s"]))], {}
            operator = self.backend.operator(point)
            rows, how = self.backend.time(operator, self.repetitions, self.sample_s)
            return rows, {"work": {"copies": len(operator.calls), "how": how, **operator.notes}}
        except MemoryError:
            raise PointFailed("out of memory") from None
        finally:
            gc.enable()


def _backend(plan: dict[str, Any]) -> NumpyBackend | TorchBackend:
    if plan["backend"] == "numpy":
        return NumpyBackend(plan)
    try:
        from hermes.calibration.collect.terms_torch import TorchBackend
    except ImportError as error:
        raise CollectorError(f"a plan for a CUDA device needs torch in {sys.executable} ({error})") from None
    return TorchBackend(plan)


def open_collector(plan: dict[str, Any]) -> TermsCollector:
    """Interface of the session. Raises `CollectorError`.

    numpy's linear algebra reads its number of threads when it is loaded: with another number than the plan's, this
    process begins again.
    """
    threads = str(plan["threads"])
    if plan["backend"] == "numpy":
        need_unix("terms of the CPU")
        if any(os.environ.get(name) != threads for name in THREAD_VARIABLES):
            os.environ.update(dict.fromkeys(THREAD_VARIABLES, threads))
            os.execv(sys.executable, [sys.executable, "-m", "hermes.calibration.collect.terms", *sys.argv[1:]])
    return TermsCollector(plan)


if __name__ == "__main__":
    sys.exit(main(open_collector))
