"""Contract suite for services.

Inherit it in a test module, give `make()`, and pytest checks what clients rely on:

    class TestMyService(ServiceContract):
        def make(self):
            return MyService(per_page=0.002)
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from hermes.core.record import STATUS_COMPLETED
from hermes.core.stage import ServiceStage
from hermes.hardware.descriptions.devices import load_device
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.services import SERVICES, MachineSpec, Service
from hermes.testing.components import ComponentContract

__all__ = ["ServiceContract"]


class ServiceContract(ComponentContract):
    """Properties of every service. Inherit it and give `make()`."""

    registry = SERVICES
    examples: ClassVar[int] = 60
    """Number of random batches per test."""
    device: ClassVar[str] = "cpu-large"
    """The machine that the service runs on."""
    cores: ClassVar[int] = 64
    """Cores of the machine."""

    def options(self, rng: np.random.Generator) -> dict[str, Any]:
        """Return options of a random stage. Override it for a service that reads any."""
        return {}

    def spec(self) -> MachineSpec:
        """Return the machine."""
        device = load_device(self.device)
        return MachineSpec(self.cores, device.peak("fp32"), device.memory_bandwidth, int(device.memory), device)

    def service(self) -> Service:
        """Return the service on that machine."""
        service: Service = self.make().build(self.spec())
        return service

    def batches(self) -> list[list[ServiceStage]]:
        """Yield random batches, of one task and of many."""
        rng, out = np.random.default_rng(11), []
        for _ in range(self.examples):
            out.append([
                ServiceStage("any", tokens=int(math.exp(rng.uniform(0, 7))), items=int(rng.integers(1, 20)),
                      options=self.options(rng))
                for _ in range(int(math.exp(rng.uniform(0, 4))))
            ])
        return out

    def test_memory_is_a_number_of_bytes_that_fits(self) -> None:
        spec = self.spec()
        assert 0 <= self.service().memory_bytes <= spec.memory_bytes

    def test_work_is_a_time_and_shares(self) -> None:
        service = self.service()
        for tasks in self.batches():
            work = service.work(tasks)
            assert math.isfinite(work.alone_s)
            assert work.alone_s >= 0
            for name in ("cores", "bandwidth"):
                assert 0 <= getattr(work, name) <= 1 + 1e-9, f"{name} is {getattr(work, name)}"
            for name in ("compute_s", "memory_s"):   # no faster than the peak
                assert 0 <= getattr(work, name) <= work.alone_s * (1 + 1e-9), f"{name} is {getattr(work, name)}"

    def test_same_batch_same_work(self) -> None:
        one, other = self.service(), self.service()
        batches = self.batches()
        first = [one.work(tasks) for tasks in batches]
        assert [other.work(tasks) for tasks in reversed(batches)][::-1] == first
        assert [one.work(tasks) for tasks in batches] == first, "an earlier batch changed the answer"

    def test_more_tasks_take_no_less_time(self) -> None:
        service = self.service()
        for tasks in self.batches():
            times = [service.work(tasks[:n]).alone_s for n in (1, (len(tasks) + 1) // 2, len(tasks))]
            assert all(a <= b * (1 + 1e-9) for a, b in pairwise(times))

    def test_phases_add_up(self) -> None:
        """If the service has `costs`, they add up to what `work` charges."""
        service = self.service()
        costs = getattr(service, "costs", None)
        if costs is None:
            return
        for tasks in self.batches():
            phases, work = costs(tasks), service.work(tasks)
            assert math.fsum(phase.seconds for phase in phases) <= work.alone_s * (1 + 1e-9) + 1e-15
            assert all(phase.seconds >= 0 and phase.flops >= 0 and phase.num_bytes >= 0 for phase in phases)

    def test_requests_are_served(self) -> None:
        component = self.make()
        serves = {"any": component.model_dump()}
        scenario = load_scenario({
            "workload": {"requests": 20, "arrivals": {"kind": "poisson", "rate": 1.0}, "pipeline": "p",
                         "lengths": {"kind": "fixed", "prompt": 100, "output": 5}},
            "pipelines": {"p": {"stages": {"do": {"kind": "any"}, "answer": {"kind": "generate", "after": "do"}}}},
            "clients": [
                {"kind": "rag", "name": "it", "device": self.device, "cores": self.cores, "serves": serves},
                {"name": "llm", "model": "llama-3.1-8b", "device": "h100-sxm",
                 "hardware": {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"}},
            ],
        })
        record = build(scenario).run()
        assert (record.status == STATUS_COMPLETED).all()
