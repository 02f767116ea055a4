"""A model that somebody else serves: each call has a latency, and takes so much for each token in and out."""

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
    """An API. On a `processing` client, whose `cores` are the calls that may be under way at once. A stage says how
    many tokens come back (`output_tokens` of its options)."""

    kind: Literal["remote_model"] = "remote_model"
    latency: Duration = 0.05
    """Of a call, whatever is in it: network, queue, first token."""
    per_input_token: Duration = 0.0
    """For each token of the prompt."""
    per_output_token: Duration = 0.005
    """For each token that comes back."""
    output_tokens: Annotated[int, Field(ge=0, le=2**40)] = 0
    """Tokens that come back, where the stage does not say."""

    def build(self, machine: MachineSpec, base_dir: Path | None = None) -> RemoteModelService:
        return RemoteModelService(self, machine)


class RemoteModelService:
    """See the module's description. Calls do not slow each other."""

    memory_bytes = 0
    options: Mapping[str, int] = {"output_tokens": 0}

    def __init__(self, config: RemoteModel, machine: MachineSpec) -> None:
        self.config, self.cores = config, machine.cores

    def work(self, tasks: Sequence[ServiceStage]) -> Work:
        return Work(max(self._seconds(task) for task in tasks), cores=min(1.0, len(tasks) / self.cores))

    def _seconds(self, task: ServiceStage) -> float:
        c, output = self.config, count_option(task, "output_tokens", self.config.output_tokens, least=0)
        return c.latency + c.per_input_token * task.tokens + c.per_output_token * output
