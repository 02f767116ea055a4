"""Base of clients without an LLM engine: configuration, and load counters that routers read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from hermes.arrays import IntArray
from hermes.clients.base import ClientConfig, platform_name
from hermes.clients.describe import service_info
from hermes.clients.resources import PowerConfig
from hermes.config import Name
from hermes.core.client import ClientEvents, ClientView, Columns, LoadLine, Track
from hermes.core.clock import STEP_END, Clock, Tick
from hermes.core.columns import StepLog
from hermes.core.record import Describe, MachineInfo
from hermes.core.stage import Stage
from hermes.hardware.descriptions.devices import MachineSpec
from hermes.units import s_to_ns

if TYPE_CHECKING:
    from hermes.clients.kv_tier import Tier

__all__ = ["TaskClient", "TaskClientConfig"]


_NO_DEVICE = MachineSpec(1, 0.0, 0.0, 0)


class TaskClientConfig(ClientConfig):
    """Options of clients without an LLM engine. A subclass adds `kind`, its own options, and

    `build(env, first_index, runs, events, *, every_step, base_dir, moves_kv="")`, which returns the group's clients,
    one for each of `names`, numbered from `first_index`.
    """

    role: Literal["service"] = "service"
    """Such a client neither prefills nor decodes."""
    name: Name
    """Name; clients of a group are called NAME-0, NAME-1, ..."""
    count: int = Field(default=1, ge=1, le=100_000)
    """Number of equal clients."""
    model: Annotated[str, Field(max_length=4096)] = ""
    """Model: the client serves only stages that ask for it. Left out, all stages."""
    platform: str | None = None
    """Group of clients that are local to each other. `{i}` stands for the client's number, `{i//4}` for the number
    divided by 4."""
    devices: int = Field(default=1, ge=1, le=2**20)
    """Machines of one client, for power and cost."""
    power: PowerConfig | None = None
    """Watts of one machine; serving draws `prefill`."""
    price_per_hour: float | None = Field(default=None, ge=0, le=1e6)
    """Dollars per hour of one machine. Left out, the device's, if it has one."""

    @property
    def names(self) -> list[str]:
        """Names of the group's clients."""
        return [self.name] if self.count == 1 else [f"{self.name}-{i}" for i in range(self.count)]

    def describe(self, group: Sequence[TaskClient], base_dir: Path | None) -> list[Describe]:
        """Return for each of the group's clients a function that makes its record entry after the run."""
        def of(client: TaskClient) -> Describe:
            kind: str = self.kind  # type: ignore[attr-defined]  # every subclass has one
            return lambda runs: service_info(client, self, kind)

        return [of(client) for client in group]

    @property
    def platforms(self) -> list[str]:
        """Platforms of the group's clients, "" for none."""
        return [platform_name(self.platform, i) for i in range(self.count)]


class TaskClient:
    """Base of clients without an LLM engine; subclasses write `submit`. See `hermes.clients.base.Client`."""

    role = "service"
    stages: frozenset[str] = frozenset()
    stage_options: Mapping[str, Mapping[str, int | None]] = {}
    """Stage kind -> its options, with the least integer each may be (None: any value)."""
    pauses: list[int] | None = None
    num_steps = 0
    num_layers = 1
    after_ns = 0
    late_log: Sequence[int] = ()
    out_of_range_tasks = 0
    tiers: Sequence[Tier] = ()
    """KV stores that it reads and writes."""
    moved_in_run: Iterable[tuple[int, int]] = ()
    kv_bytes_per_token = 0.0
    takes_over_kv = False
    num_running = 0
    returns_together = False

    def __init__(
        self, env: Clock, index: int, name: str, events: ClientEvents, spec: MachineSpec = _NO_DEVICE, *,
        model: str = "", platform: str = "",
    ) -> None:
        self.env, self.index, self.name, self.spec = env, index, name, spec
        self.model, self.platform = model, platform
        self.events = events
        self.steps = StepLog()
        self.tracks: list[tuple[Track, int]] = []
        self.input_tokens = self.output_tokens = self.num_assigned = self.emitted = 0

    @property
    def num_waiting(self) -> int:
        """Tasks assigned and not done."""
        return self.num_assigned

    @property
    def idle(self) -> bool:
        """Whether nothing runs or is about to start."""
        return not self.num_assigned

    def serve(self, stage: Stage, seconds: float, wait: float = 0.0) -> Tick:
        """Start `stage` after `wait` seconds and complete it `seconds` later. Returns the event of its end, which a
        process may wait for."""
        stage.start_ns = self.env._now + s_to_ns(wait)
        end = stage.start_ns + s_to_ns(seconds)
        return self.env.tick_at(end, STEP_END + self.index, lambda tick: self.events.done(self, stage))

    @property
    def requests_left(self) -> int:
        """Number of requests that have not ended, arrived or not.

        A process that repeats (`self.env.process`) ends when there are none: a simulation goes on while anything is to
        happen.
        """
        return self.events.left()

    def wait(self, seconds: float) -> Tick:
        """Return an event `seconds` from now, for a process to wait for: `yield self.wait(60)`."""
        return self.env.moment(self.env._now + s_to_ns(seconds), STEP_END + self.index)

    def submit(self, stage: Stage) -> None:
        """Take a stage; see `hermes.core.client.Client`."""
        raise NotImplementedError

    def abort(self, stage: Stage) -> None:
        """Cancel a stage that nobody waits for: one that waits leaves, with `events.aborted`. Here it goes on."""

    def refusal(self, stage: Stage) -> str | None:
        """Return None: every stage of its kinds fits."""
        return None

    def utilisation(self) -> tuple[float, float] | None:
        """Return the shares of peak arithmetic and memory rates while it served; None if they are not counted."""
        return None

    def out_of_range_steps(self, runs: Columns) -> int:
        """Return 0: it has no steps."""
        return 0

    def block_ns(self, runs: Columns, stages: Columns, rows: IntArray, gaps: Mapping[int, object],
                 decode: int, ticks: IntArray | None) -> IntArray:
        """Return 0: it has no KV blocks."""
        return np.zeros(len(runs["client"]), dtype=np.int64)

    def sharing_info(self) -> None:
        """Return None: it has no KV blocks."""
        return

    def machine_info(self) -> MachineInfo | None:
        """Return the use of its machine, if batches share it."""
        return None

    def settle(self) -> None:
        """Do nothing: unfinished tasks leave no record."""

    def view(self) -> ClientView:
        """Return the state that a pipeline sees: its number of tasks."""
        return ClientView(self.name, self.model, waiting=self.num_assigned)

    def load(self, kind: str) -> int:
        """Return the number of tasks assigned and not done (`requests`), or their input tokens (other kinds)."""
        return self.num_assigned if kind == "requests" else self.input_tokens

    def load_line(self, kind: str) -> LoadLine:
        """Return a constant: the load changes only with events."""
        return LoadLine(self.load(kind))

    def reserve(self, stage: Stage) -> bool:
        """Return False: it has no KV memory."""
        return False

    def release(self, stage: Stage) -> None:
        """Do nothing: it has no KV memory."""

    def forget(self, stage: Stage) -> None:
        """Do nothing: it has no KV memory."""

    def decode_clock(self) -> int:
        """Return 0: it decodes nothing."""
        return 0
