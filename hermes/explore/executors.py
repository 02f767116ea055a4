"""Executors by name: `local` processes, or a Ray cluster; a package adds others by the entry point group
`hermes.executors`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from hermes.config.registry import Registry
from hermes.errors import InputError, Verbatim
from hermes.explore.sweep.executor import Executor, of_workers
from hermes.explore.sweep.jobs import Job, Outcome, perform

__all__ = ["EXECUTORS", "Executor", "Job", "MakeExecutor", "Outcome", "local", "make_executor", "on_ray", "perform"]

MakeExecutor = Callable[[int, Sequence[str], str], Executor]
"""Function of (number of processes, modules that workers import first, address of a cluster or "")."""

EXECUTORS: Registry[MakeExecutor] = Registry("executors", "an executor", {
    "local": "hermes.explore.executors:local", "ray": "hermes.explore.executors:on_ray",
})


def make_executor(name: str, workers: int, modules: Sequence[str] = (), address: str = "") -> Executor:
    """Return the executor of a name. workers: -1 for one per core.

    Raises `InputError` for an unknown name, and for a cluster that does not answer.
    """
    make: MakeExecutor = EXECUTORS.get(name)
    return make(workers if workers >= 0 else os.cpu_count() or 1, modules, address)


def local(workers: int, modules: Sequence[str], address: str) -> Executor:
    """Worker processes of this machine; 0 for none."""
    if address:
        raise InputError(Verbatim("an address is of a cluster; add --executor ray"), field="--address")
    return of_workers(workers, modules)


def on_ray(workers: int, modules: Sequence[str], address: str) -> Executor:
    """A Ray cluster, with all of its cores."""
    from hermes.explore.sweep.ray_executor import OnRay

    return OnRay(address, modules)
