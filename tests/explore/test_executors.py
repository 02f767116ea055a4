"""Executors by name, and the contract of each."""

from __future__ import annotations

import pytest

from hermes.errors import InputError
from hermes.explore.executor import Executor, InProcess, Processes
from hermes.explore.executors import make_executor
from hermes.testing.executors import ExecutorContract


class TestInThisProcess(ExecutorContract):
    def make_executor(self) -> Executor:
        return make_executor("local", 0)


class TestProcesses(ExecutorContract):
    def make_executor(self) -> Executor:
        return make_executor("local", 2)


def test_names() -> None:
    assert isinstance(make_executor("local", 0), InProcess)
    assert isinstance(make_executor("local", 1), Processes)
    with pytest.raises(InputError, match="local, ray"):
        make_executor("slurm", 1)
    with pytest.raises(InputError, match="add --executor ray"):
        make_executor("local", 1, address="10.0.0.1:6379")
