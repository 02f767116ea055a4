"""Executors by name, and the contract of each."""

from __future__ import annotations

import socket
import sys
import time
from types import SimpleNamespace

import pytest

from hermes.errors import InputError
from hermes.explore.executors import make_executor
from hermes.explore.sweep.executor import Executor, InProcess, Processes
from hermes.explore.sweep.ray_executor import check_address
from hermes.testing.executors import ExecutorContract


class TestInThisProcess(ExecutorContract):
    def make(self) -> Executor:
        return make_executor("local", 0)


@pytest.mark.long   # starts processes for each of its tests
class TestProcesses(ExecutorContract):
    def make(self) -> Executor:
        return make_executor("local", 2)


@pytest.mark.feature("Results, sweeps, studies", (
    "`--executor`: `local`, `ray`, or a plug-in's, for `sweep`, `size`, `capacity`, `optimize`"))
def test_names() -> None:
    assert isinstance(make_executor("local", 0), InProcess)
    assert isinstance(make_executor("local", 1), Processes)
    with pytest.raises(InputError, match="local, ray"):
        make_executor("slurm", 1)
    with pytest.raises(InputError, match="add --executor ray"):
        make_executor("local", 1, address="10.0.0.1:6379")


@pytest.mark.parametrize("address", ["{free}", "ray://{free}", "192.0.2.1:6379", "no.such.host.invalid:1"])
def test_a_ray_address_where_nobody_listens_is_named_soon(address: str) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        free = f"127.0.0.1:{bound.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(InputError, match=r"address of a Ray cluster, .*where nothing lis"):
            check_address(address.format(free=free))
        assert time.monotonic() - began < 8


def test_a_ray_address_that_listens_or_has_no_port_is_left_to_ray() -> None:
    check_address("auto")
    check_address("")
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_address(f"127.0.0.1:{server.getsockname()[1]}")


def test_ray_itself_is_not_asked_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(   # in place of the package
        is_initialized=lambda: False, init=lambda **options: asked.append(options)))
    with pytest.raises(InputError, match="nothing listens"):
        make_executor("ray", 0, address="127.0.0.1:1")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InputError, match="nothing listens"):
        make_executor("ray", 0)
    assert asked == []
