"""How a replica ends that is not wanted any more: the preStop hook and the grace period of a Kubernetes pod."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from hermes.config import ConfigModel, Duration
from hermes.errors import InputError

__all__ = ["Drain"]


class Drain(ConfigModel):
    """The end of a replica that is not wanted any more, of a scale-down or an update. The defaults are those of a pod.

    It gets no new requests, and is gone when its last one is answered, or is cut: what it still has fails then, and the
    gateway may try it again."""

    pre_stop: Duration = Field(default=0.0, ge=0)
    """How long its preStop hook sleeps. The replica stays at least as long, also without a request."""
    grace: Duration | None = Field(default=30.0, gt=0)
    """Longest time from the decision, `pre_stop` included (`terminationGracePeriodSeconds`). `null`: the replica stays
    until its last answer."""

    @model_validator(mode="after")
    def _sleeps_within_grace(self) -> Self:
        if self.grace is not None and self.pre_stop > self.grace:   # the API server refuses such a pod
            raise InputError(f"at most the grace period of {self.grace:g} s", self.pre_stop, field="pre_stop")
        return self
