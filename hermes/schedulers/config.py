"""Base of schedulers' configurations: their construction by a client, and the options that clients read."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self, TypeVar

from hermes.config import ConfigModel
from hermes.hardware.descriptions.engines import NEWEST_ENGINE
from hermes.memory.blocks import BlockPool

if TYPE_CHECKING:
    from hermes.hardware.descriptions.engines import EngineDefaults
    from hermes.schedulers.base import LLMScheduler
    from hermes.schedulers.chunked_config import Speculation

__all__ = ["SchedulerConfig", "SchedulerOptions"]

Memory = TypeVar("Memory")   # the client's MemoryConfig, which is of a higher layer


class SchedulerOptions(NamedTuple):
    """Options that the rest of a client and a scenario reads, with the values of a scheduler that lacks them."""

    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    async_scheduling: bool | None = None
    speculative: Speculation | None = None
    max_loras: int | None = None
    prefill_schedule_interval: int = 1
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None

    @property
    def queue_limits(self) -> tuple[int | None, int | None] | None:
        """The most requests, and prompt tokens without a first token, that may wait or run; None without a limit."""
        limits = self.max_num_queued_reqs, self.max_num_queued_tokens
        return None if limits == (None, None) else limits


class SchedulerConfig(ConfigModel):
    """Configuration of a scheduler. A subclass has its `kind` and its options, and writes `build`.

    Hooks are called in the order in which they stand here, when a scenario is read, once for each group of clients;
    `build` at least once for each client. None of them may change this object: they return another one.
    """

    follows_engine: ClassVar[bool] = False
    """Whether the client's `engine` sets its rules and defaults: then `completed` is called, not `with_memory`."""

    engine: ClassVar[str] = NEWEST_ENGINE
    """Engine whose kernels and host times count, unless the client names one."""

    kind: str

    @property
    def unhashed_to_front(self) -> bool:
        """Whether freed blocks without a hash are used first (see `PrefixBlockPool`)."""
        return True

    @property
    def options(self) -> SchedulerOptions:
        """The options that others read: the fields and properties of these names that this scheduler has."""
        own, fields = type(self), type(self).__pydantic_fields__
        known = {name: getattr(self, name) for name in SchedulerOptions._fields if name in fields or hasattr(own, name)}
        return SchedulerOptions(**known)

    def plans_ahead(self, defaults: EngineDefaults) -> bool:
        """Return whether each step is planned while the one before runs; the price of a step follows it.

        What `async_scheduling` says, or else `asynchronous` of the scheduler's class, asked of one that serves nothing.
        """
        given = self.completed(defaults)
        if given.options.async_scheduling is not None:
            return given.options.async_scheduling
        return given.build(BlockPool(2**20, defaults.block_size), every_step=False).asynchronous

    def completed(self, defaults: EngineDefaults, longest: int | None = None) -> Self:
        """Return this with the rules and defaults of the client's engine; `longest` is the client's max_model_len."""
        return self

    def with_memory(self, memory: Memory) -> Memory:
        """Return the client's memory with what this scheduler says of it."""
        return memory

    def build(self, pool: BlockPool, *, every_step: bool) -> LLMScheduler:
        """Return a scheduler over `pool`. every_step: use the literal rules only, where there are faster ones."""
        raise NotImplementedError
