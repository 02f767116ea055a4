"""Remote model behind an API: a latency per call, and a time per token in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from hermes.config import ConfigModel, Duration
from hermes.core.stage import ServiceStage
from hermes.services.base import MachineSpec, Work, count_option

__all__ = ["RemoteModel", "RemoteModelService"]


class RemoteModel(ConfigModel):
    """An API of a model, on a `processing` client whose `cores` are the concurrent calls. A stage's option
    `output_tokens` gives the tokens returned."""

    kind: Literal["remote_model"] = "remote_model"
    latency: Duration = 0.05
    """Time of a call regardless of its size: network, queue, first token."""
    per_input_token: Duration = 0.0
    """Time per prompt token."""
    per_output_token: Duration = 0.005
    """Time per returned token."""
    output_tokens: Annotated[int, Field(ge=0, le=2**40)] = 0
    """Returned tokens of a stage that does not set them."""

    def build(self, machine: MachineSpec, base_dir: Path | None = None) -> RemoteModelService:
        return RemoteModelService(self, machine)


class RemoteModelService:
    """See the module's docstring. Calls do not slow each other down."""

    memory_bytes = 0
    options: Mapping[str, int] = {"output_tokens": 0}

    def __init__(self, config: RemoteModel, machine: MachineSpec) -> None:
        self.config, self.cores = config, machine.cores

    def work(self, tasks: Sequence[ServiceStage]) -> Work:
        return Work(max(self._seconds(task) for task in tasks), cores=min(1.0, len(tasks) / self.cores))

    def _seconds(self, task: ServiceStage) -> float:
        c, output = self.config, count_option(task, "output_tokens", self.config.output_tokens, least=0)
        return c.latency + c.per_input_token * task.tokens + c.per_output_token * output
