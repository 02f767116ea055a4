"""What clients that are no LLM engines have in common: counters that routers read; nothing moves with steps here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hermes.clients.base import StageDone
from hermes.kernel import Clock
from hermes.recorder import StepLog
from hermes.services import MachineSpec

__all__ = ["TaskClient"]


class TaskClient:
    """Base of such clients; subclasses write `submit` and `idle`. See `hermes.clients.base.Client`."""

    role = "service"
    stages: frozenset[str] = frozenset()
    ticks: list[int] | None = None
    num_steps = 0
    num_layers = 1
    out_of_range_tasks = 0
    kv_bytes_per_token = 0.0

    def __init__(self, env: Clock, index: int, name: str, spec: MachineSpec, *, model: str, platform: str) -> None:
        self.env, self.index, self.name, self.spec = env, index, name, spec
        self.model, self.platform = model, platform
        self.on_done: StageDone = _nobody
        self.on_room: Callable[[], None] | None = None
        self.on_first_token: Callable[[Any, Any], None] | None = None
        self.steps = StepLog()
        self.tracks: list[tuple[Any, int]] = []
        self.input_tokens = self.output_tokens = self.num_assigned = self.emitted = 0

    def refusal(self, stage: Any) -> str | None:
        """None: whatever it serves fits."""
        return None

    def utilisation(self) -> tuple[float, float] | None:
        """Shares of the peak arithmetic and memory rates that it reached while it served; None where nobody counts."""
        return None

    def settle(self) -> None:
        """Nothing to keep of tasks that have not ended."""

    def load(self, kind: str) -> int:
        """Input tokens of the tasks assigned and not done, for every kind: nothing else is there to count."""
        return self.input_tokens

    def load_line(self, kind: str) -> tuple[int, int, int, int, int]:
        """As `LLMClient.load_line`: constant between events."""
        return self.load(kind), 0, 0, 1, 0


def _nobody(client: Any, stage: Any) -> None:
    raise AssertionError("client used before the coordinator took it")
