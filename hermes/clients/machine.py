"""A machine whose cores and memory bandwidth are shared by concurrent batches.

A batch alone takes `alone_s`, and uses a share of the machine's cores and a share of its bandwidth. Concurrent batches
progress at max-min fair rates: all rates rise together until cores or bandwidth are used up; batches that use the
exhausted resource stay there, and the others continue to rise, at most to 1. So two batches that together need less
than the machine has do not slow each other down, and two that each need all of its bandwidth take twice as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hermes.core.clock import Clock, Tick
from hermes.services import Work

__all__ = ["Job", "Machine", "fair_rates"]

_TINY = 1e-12


def fair_rates(works: list[Work]) -> list[float]:
    """Return the rate of progress of each batch, 0..1 (see the module's docstring)."""
    if len(works) == 1:
        need = max(works[0].cores, works[0].bandwidth)
        return [1.0 / need if need > 1.0 else 1.0]
    rates = [0.0] * len(works)
    rising = list(range(len(works)))
    left = [1.0, 1.0]
    while rising:
        needs = [0.0, 0.0]
        for i in rising:   # `sum` of floats rounds otherwise from Python 3.12 on
            needs[0] += works[i][1]
            needs[1] += works[i][2]
        step = 1.0 - rates[rising[0]]
        for r in (0, 1):
            if needs[r] > 0:
                step = min(step, left[r] / needs[r])
        for i in rising:
            rates[i] += step
        for r in (0, 1):
            left[r] = max(0.0, left[r] - step * needs[r])
        full = [left[r] <= _TINY and needs[r] > 0 for r in (0, 1)]
        rising = [
            i for i in rising
            if rates[i] < 1.0 - _TINY and not any(full[r] and works[i][1 + r] > 0 for r in (0, 1))
        ]
    return rates


class Job:
    """A batch on the machine, with the rest of its time alone in nanoseconds."""

    __slots__ = ("done", "left_ns", "number", "rate", "work")

    def __init__(self, work: Work, done: Callable[[], None], number: int) -> None:
        self.work, self.done, self.number = work, done, number
        self.left_ns = work.alone_s * 1e9
        self.rate = 0.0


class Machine:
    """Runs jobs on the clock. Jobs that end at the same time end in order of their start."""

    def __init__(self, env: Clock, priority: int) -> None:
        self.env, self.priority = env, priority
        self.jobs: list[Job] = []
        self.core_ns = 0.0        # core-share nanoseconds used so far
        self.bandwidth_ns = 0.0   # bandwidth-share nanoseconds
        self.busy_ns = 0          # nanoseconds with at least one job
        self.compute_ns = 0.0     # arithmetic and memory traffic done so far, in nanoseconds at peak rates
        self.memory_ns = 0.0
        self._since_ns = 0
        self._started = 0
        self._tick: Tick | None = None

    def start(self, work: Work, done: Callable[[], None]) -> None:
        """Run `work`; call `done()` when it has ended, at least a nanosecond from now."""
        self._progress()
        self._started += 1
        self.jobs.append(Job(work, done, self._started))
        self._resume()

    def stop(self) -> None:
        """End all jobs now, without calling `done`."""
        self._progress()
        self.jobs = []
        self._resume()

    def _progress(self) -> None:
        now = self.env._now
        passed = now - self._since_ns
        self._since_ns = now
        if self.jobs:
            self.busy_ns += passed
        for job in self.jobs:
            done, work = job.rate * passed, job.work
            job.left_ns -= done
            self.core_ns += done * work.cores
            self.bandwidth_ns += done * work.bandwidth
            if work.alone_s:
                self.compute_ns += done * work.compute_s / work.alone_s
                self.memory_ns += done * work.memory_s / work.alone_s

    def used_ns(self) -> tuple[int, float, float]:
        """Return the time with at least one job so far, and the time needed on all cores and with all bandwidth."""
        self._progress()
        return self.busy_ns, self.core_ns, self.bandwidth_ns

    def utilisation(self) -> tuple[float, float]:
        """Return the shares of peak arithmetic and memory rates so far while jobs ran; at most 1."""
        self._progress()
        if not self.busy_ns:
            return 0.0, 0.0
        return min(1.0, self.compute_ns / self.busy_ns), min(1.0, self.memory_ns / self.busy_ns)

    def _resume(self) -> None:
        """Compute new rates and schedule the next end."""
        self._tick, jobs = None, self.jobs
        if not jobs:
            return
        for job, rate in zip(jobs, fair_rates([job.work for job in jobs]), strict=True):
            job.rate = rate
        wait = min([max(job.left_ns, 0.0) / job.rate for job in jobs])
        self._tick = self.env.tick_at(self.env._now + max(1, math.ceil(wait - 1e-6)), self.priority, self._on_end)

    def _on_end(self, tick: Tick) -> None:
        if tick is not self._tick:
            return   # the rates have changed since
        self._progress()
        ended = [job for job in self.jobs if job.left_ns <= 0.5]
        self.jobs = [job for job in self.jobs if job.left_ns > 0.5]
        self._resume()
        for job in ended:
            job.done()
