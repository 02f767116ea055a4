"""Service clients: retrieval machines, tokenizers, filters and other clients without an LLM engine.

Tasks wait per kind of stage. A *batched* client (retrieval) takes all waiting tasks of one kind together, one batch per
kind at a time, and may wait for more to come (`batch_window`). A *sequential* client (pre- and post-processing) takes
one task per free core, in order of arrival. Concurrent work shares the machine (`hermes.clients.machine`).
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from hermes.clients.machine import Machine
from hermes.clients.resources import PowerConfig
from hermes.clients.task import TaskClient, TaskClientConfig
from hermes.config import Component, Duration
from hermes.core.client import ClientEvents
from hermes.core.clock import START, STEP_END, Clock, Tick
from hermes.core.columns import RowLog
from hermes.core.record import MachineInfo
from hermes.core.stage import ServiceStage, Stage
from hermes.errors import InputError, Verbatim, inside
from hermes.fleet.config import FleetConfig
from hermes.services import SERVICES, MachineSpec, Service, Work, machine_of
from hermes.services.base import is_outside, service_options
from hermes.units import s_to_ns

__all__ = ["ProcessingClientConfig", "RagClientConfig", "ServiceClient"]


class ServiceClient(TaskClient):
    """See the module's docstring and `hermes.clients.base.Client`.

    Args:
        services: Kind of stage -> its service.
        max_batch: Most tasks of a batch.
        per_kind: Run one batch per kind at a time (otherwise as many as there are cores).
        batch_window_ns: Time from the arrival of its first task that a batch waits to become full.
        submit_cost_s: Time to put one task into a batch.
    """

    def __init__(
        self, env: Clock, index: int, name: str, events: ClientEvents, services: dict[str, Service],
        machine: MachineSpec, *,
        max_batch: int, per_kind: bool, model: str = "", platform: str = "", batch_window_ns: int = 0,
        submit_cost_s: float = 0.0,
    ) -> None:
        super().__init__(env, index, name, events, machine, model=model, platform=platform)
        self.services = services
        self.stages = frozenset(services)
        # a pipeline may always state the number of results, whether it costs anything or not
        self.stage_options = {
            kind: {"top_k": 1, **service_options(service)} for kind, service in services.items()
        }
        self.machine = Machine(env, STEP_END + index)
        self.max_batch, self.per_kind = max_batch, per_kind
        self.batch_window_ns, self.submit_cost_s = batch_window_ns, submit_cost_s
        self._queues: dict[str, deque[ServiceStage]] = {kind: deque() for kind in services}
        self._busy: dict[str, int] = dict.fromkeys(services, 0)
        self._due_ns: dict[str, deque[int]] = {kind: deque() for kind in services}   # ends of the windows of the queued
        self._start: Tick | None = None
        self.out_of_range_tasks = 0   # tasks in batches outside the range their costs were measured on

    def submit(self, stage: Stage) -> None:
        """Take a task. It starts after all other events of this instant."""
        assert isinstance(stage, ServiceStage)
        self._queues[stage.kind].append(stage)
        due = self.env._now + self.batch_window_ns
        self._due_ns[stage.kind].append(due)
        if self.batch_window_ns:
            self.env.tick_at(due, START + self.index, self._on_start)
            if len(self._queues[stage.kind]) < self.max_batch:
                return
        if not (self.per_kind and self._busy[stage.kind]):   # otherwise the end of the running batch wakes it
            self._wake()

    def abort(self, stage: Stage) -> None:
        """Take out a task that waits; one that runs in a batch goes on."""
        assert isinstance(stage, ServiceStage)
        queue = self._queues[stage.kind]
        if stage in queue:
            place = queue.index(stage)
            del queue[place], self._due_ns[stage.kind][place]
            self.events.aborted(self, stage)

    def kill(self, stages: list[Stage]) -> None:
        """Go down at this instant with these tasks, all that it has."""
        self.machine.stop()
        for kind in self._queues:
            self._queues[kind].clear()
            self._due_ns[kind].clear()
            self._busy[kind] = 0
        for stage in stages:
            self.events.aborted(self, stage)

    def renew(self) -> None:
        """Start again: nothing is left from before."""

    @property
    def free_at_ns(self) -> int:
        """Now: it computes nothing beyond its tasks."""
        return self.env._now

    @property
    def idle(self) -> bool:
        """Whether nothing runs or is about to start."""
        return not self.machine.jobs and self._start is None and not any(self._queues.values())

    def _wake(self) -> None:
        if self._start is None:
            self._start = self.env.tick_at(self.env._now, START + self.index, self._on_start)

    def _on_start(self, tick: Tick) -> None:
        if tick is self._start:
            self._start = None
        while True:
            waiting = [
                kind for kind, queue in self._queues.items()
                if queue and not (self.per_kind and self._busy[kind])
                and (len(queue) >= self.max_batch or self._due_ns[kind][0] <= self.env._now)
            ]
            if not waiting or (not self.per_kind and sum(self._busy.values()) >= self.spec.cores):
                return
            # the kind whose task has waited longest goes first
            kind = min(waiting, key=lambda k: self._queues[k][0].arrival_order)
            queue = self._queues[kind]
            size = min(len(queue), self.max_batch)
            for _ in range(size):
                self._due_ns[kind].popleft()
            self._run(kind, [queue.popleft() for _ in range(size)])

    def _run(self, kind: str, tasks: list[ServiceStage]) -> None:
        now = self.env._now
        for task in tasks:
            task.start_ns = now
        self._busy[kind] += 1

        def ended() -> None:
            self._busy[kind] -= 1
            for task in tasks:
                self.events.done(self, task)
            if any(self._queues.values()):
                self._wake()

        service = self.services[kind]
        self.machine.start(self._with_submits(service.work(tasks), len(tasks)), ended)
        if is_outside(service, tasks):
            self.out_of_range_tasks += len(tasks)

    def _with_submits(self, work: Work, tasks: int) -> Work:
        """Return the work of a batch plus that of one core that puts its tasks into the batch."""
        extra_s = tasks * self.submit_cost_s
        if not extra_s:
            return work
        total_s = work.alone_s + extra_s
        cores = (work.cores * work.alone_s + extra_s / self.spec.cores) / total_s
        return work._replace(alone_s=total_s, cores=cores, bandwidth=work.bandwidth * work.alone_s / total_s)

    def machine_info(self) -> MachineInfo:
        return MachineInfo(self.index, *self.machine.used_ns())

    def utilisation(self) -> tuple[float, float]:
        """Return the shares of the machine's peak arithmetic and memory rates while it served."""
        return self.machine.utilisation()


class _ServiceConfig(TaskClientConfig):
    """Options of both kinds of service client."""

    device: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Machine: a device description by name or path. Retrieval needs one."""
    cores: int = Field(default=64, ge=1, le=2**20)
    """Cores of the machine."""
    serves: dict[str, Annotated[Any, Component(SERVICES)]] = Field(min_length=1)   # Any: of plug-ins, too
    """Kinds of stage that it serves, with the service of each."""
    power: PowerConfig | None = None
    """Watts of one machine; serving draws `prefill`. Left out, by the device's TDP and utilisation."""
    fleet: FleetConfig | None = None
    """Replicas that come and go; `count` is the most that exist at a time. Left out, all clients serve throughout."""

    def _limits(self) -> tuple[int, bool]:
        """Return (largest batch, whether one batch of a kind runs at a time)."""
        raise NotImplementedError

    def _batching(self) -> dict[str, Any]:   # Any: arguments of different types
        """Return further options of `ServiceClient`."""
        return {}

    def build(self, env: Clock, first_index: int, runs: RowLog, events: ClientEvents, *, every_step: bool,
              base_dir: Path | None,
              moves_kv: Literal["", "full", "layerwise"] = "", seed: int = 0) -> list[ServiceClient]:
        """Build the group's clients, numbered from `first_index`."""
        machine = machine_of(self.device, self.cores, base_dir)
        services: dict[str, Service] = {}
        for kind, config in self.serves.items():
            with inside(f"serves.{kind}"):
                services[kind] = config.build(machine, base_dir)
        used = sum(service.memory_bytes for service in services.values())
        if machine.memory_bytes and used > machine.memory_bytes:
            raise InputError(
                Verbatim(f"the services need {used / 1e9:,.0f} GB, and the machine has "
                         f"{machine.memory_bytes / 1e9:,.0f} GB; put some on another client"), field="serves",
            )
        max_batch, per_kind = self._limits()
        return [
            ServiceClient(
                env, first_index + i, name, events, services, machine, max_batch=max_batch, per_kind=per_kind,
                model=self.model, platform=platform, **self._batching(),
            )
            for i, (name, platform) in enumerate(zip(self.names, self.platforms, strict=True))
        ]


class RagClientConfig(_ServiceConfig):
    """Clients that embed, retrieve and rerank. A batch takes all waiting tasks of one kind."""

    kind: Literal["rag"] = "rag"
    max_batch: int = Field(default=64, ge=1, le=2**31)
    """Most tasks of one batch."""
    batch_window: Duration = 0.0
    """Time that the first task of a batch waits for others, unless the batch becomes full (micro-batching)."""
    submit_cost: Duration = 0.0
    """Time of one core to put one task into a batch, before the batch begins."""

    def _batching(self) -> dict[str, Any]:   # Any: arguments of different types
        return {"batch_window_ns": s_to_ns(self.batch_window), "submit_cost_s": self.submit_cost}

    def _limits(self) -> tuple[int, bool]:
        return self.max_batch, True


class ProcessingClientConfig(_ServiceConfig):
    """Clients that tokenize, filter, score: one task per free core, in order of arrival."""

    kind: Literal["processing"] = "processing"

    def _limits(self) -> tuple[int, bool]:
        return 1, False
