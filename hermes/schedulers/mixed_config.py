"""Configuration of the `mixed` scheduler (`hermes.schedulers.mixed`)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hermes.config import Named
from hermes.memory.blocks import BlockPool
from hermes.schedulers.config import SchedulerConfig
from hermes.schedulers.mixed import MixedScheduler
from hermes.schedulers.queues import PACKING

__all__ = ["MixedConfig"]


class MixedConfig(SchedulerConfig):
    """Whole prompts and decodes in one step."""

    kind: Literal["mixed"] = "mixed"
    max_num_batched_tokens: int = Field(default=2048, ge=1, le=2**31)
    """Most tokens in a step; a decode counts as one. The first prompt of a step may be longer."""
    max_num_seqs: int = Field(default=512, ge=1, le=2**31)
    """Most sequences in a step."""
    reservation: Literal["on_demand", "up_front"] = "on_demand"
    """Reservation of blocks. `on_demand`: as tokens come. `up_front`: for the prompt and one token when a prompt
    starts, and for the whole answer when its decode starts."""
    policy: Annotated[str, Named(PACKING)] = "fcfs"
    """Order of the waiting prompts."""
    max_passed_over: int | None = Field(default=None, ge=1, le=2**31)
    """Batches in a row that may leave a sequence out before it goes first (splitwise-sim: 4). Left out, decodes make
    way for prompts as long as prompts arrive."""

    def build(self, pool: BlockPool, *, every_step: bool) -> MixedScheduler:
        return MixedScheduler(self, pool)
