"""What clients that are no LLM engines have in common: counters that routers read; nothing moves with steps here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from hermes.clients.base import platform_name
from hermes.clients.describe import service_info
from hermes.clients.usage import PowerConfig
from hermes.config import ConfigModel
from hermes.core.client import ClientEvents, ClientView, Columns, LoadLine, Track
from hermes.core.clock import STEP_END, Clock
from hermes.core.collect import Describe
from hermes.core.columns import StepLog
from hermes.core.record import MachineInfo
from hermes.core.stage import Stage
from hermes.hardware.base import IntArray
from hermes.hardware.devices import MachineSpec
from hermes.units import s_to_ns

if TYPE_CHECKING:
    from hermes.clients.kv_tier import Tier

__all__ = ["TaskClient", "TaskClientConfig"]


_NO_DEVICE = MachineSpec(1, 0.0, 0.0, 0)


class TaskClientConfig(ConfigModel):
    """What such clients have in YAML. A subclass adds `kind`, its own keys, and

    `build(env, first_index, runs, events, *, every_step, base_dir, moves_kv="")`: the group's clients, one for each of
    `names`, numbered from `first_index`.
    """

    role: Literal["service"] = "service"
    """It neither prefills nor decodes."""
    name: Annotated[str, Field(min_length=1, max_length=200)]
    """Name; clients of a group are called NAME-0, NAME-1, ..."""
    count: int = Field(default=1, ge=1, le=100_000)
    """Number of equal clients."""
    model: Annotated[str, Field(max_length=4096)] = ""
    """Only stages that ask for this model; left out, all."""
    platform: str | None = None
    """Group of clients that are local to each other; `{i}` stands for the client's number, `{i//4}` for a quarter of
    it."""
    devices: int = Field(default=1, ge=1, le=2**20)
    """Machines of one client, for power and cost."""
    power: PowerConfig | None = None
    """Watts of one machine; serving draws `prefill`."""
    price_per_hour: float | None = Field(default=None, ge=0, le=1e6)
    """Dollars per hour of one machine; the device's where left out, if it has one."""

    @property
    def names(self) -> list[str]:
        """Names of the group's clients."""
        return [self.name] if self.count == 1 else [f"{self.name}-{i}" for i in range(self.count)]

    def describe(self, group: Sequence[TaskClient], base_dir: Path | None) -> list[Describe]:
        """For each of the group's clients, what the record says of it when the run has ended."""
        def of(client: TaskClient) -> Describe:
            kind: str = self.kind  # type: ignore[attr-defined]  # every subclass has one
            return lambda runs: service_info(client, self, kind)

        return [of(client) for client in group]

    @property
    def platforms(self) -> list[str]:
        """Platforms of the group's clients, "" for none."""
        return [platform_name(self.platform, i) for i in range(self.count)]


class TaskClient:
    """Base of such clients; subclasses write `submit`. See `hermes.clients.base.Client`."""

    role = "service"
    stages: frozenset[str] = frozenset()
    stage_options: Mapping[str, Mapping[str, int | None]] = {}
    """Of each kind the options it reads, with the least integer each may be (None: any value)."""
    ticks: list[int] | None = None
    num_steps = 0
    num_layers = 1
    after_ns = 0
    out_of_range_tasks = 0
    tiers: Sequence[Tier] = ()
    """Stores of KV that it reads and writes."""
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
        """Nothing runs, and nothing is about to start."""
        return not self.num_assigned

    def serve(self, stage: Stage, seconds: float, wait: float = 0.0) -> None:
        """`stage` starts after `wait` seconds, and is done `seconds` later."""
        stage.start_ns = self.env._now + s_to_ns(wait)
        end = stage.start_ns + s_to_ns(seconds)
        self.env.tick_at(end, STEP_END + self.index, lambda tick: self.events.done(self, stage))

    def submit(self, stage: Stage) -> None:
        """A stage arrives; see `hermes.core.client.Client`."""
        raise NotImplementedError

    def refusal(self, stage: Stage) -> str | None:
        """None: whatever it serves fits."""
        return None

    def utilisation(self) -> tuple[float, float] | None:
        """Shares of the peak arithmetic and memory rates that it reached while it served; None where nobody counts."""
        return None

    def out_of_range_steps(self, runs: Columns) -> int:
        """0: it has no steps."""
        return 0

    def block_ns(self, runs: Columns, stages: Columns, rows: IntArray, gaps: Mapping[int, object],
                 decode: int, ticks: IntArray | None) -> IntArray:
        """0: it has no KV blocks."""
        return np.zeros(len(runs["client"]), dtype=np.int64)

    def sharing_info(self) -> None:
        """None: it has no KV blocks."""
        return

    def machine_info(self) -> MachineInfo | None:
        """How its machine was used, if batches share it."""
        return None

    def settle(self) -> None:
        """Nothing to keep of tasks that have not ended."""

    def view(self) -> ClientView:
        """What a pipeline may know of it: how much it has to do."""
        return ClientView(self.name, self.model, waiting=self.num_assigned)

    def load(self, kind: str) -> int:
        """The tasks assigned and not done: how many they are, or (for every other kind) their input tokens."""
        return self.num_assigned if kind == "requests" else self.input_tokens

    def load_line(self, kind: str) -> LoadLine:
        """Constant between events."""
        return LoadLine(self.load(kind))

    def reserve(self, stage: Stage) -> bool:
        """False: it has no KV memory."""
        return False

    def release(self, stage: Stage) -> None:
        """It has no KV memory."""

    def forget(self, stage: Stage) -> None:
        """It has no KV memory."""

    def decode_clock(self) -> int:
        """0: it decodes nothing."""
        return 0
