"""Configuration of the `sglang` scheduler (`hermes.schedulers.sglang`)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from hermes.errors import InputError
from hermes.memory.blocks import BlockPool
from hermes.memory.radix import RadixPool
from hermes.schedulers.config import SchedulerConfig
from hermes.schedulers.sglang import SglangScheduler
from hermes.schedulers.sglang_overlap import OverlapSglangScheduler

__all__ = ["SglangConfig"]


class SglangConfig(SchedulerConfig):
    """SGLang's scheduler: prefill batches before decode batches, a radix tree of prefixes, retraction.

    Options have SGLang's names. `page_size` is the client's `memory.block_size`. The defaults are SGLang 0.5's, except
    that `chunked_prefill_size` and `max_running_requests` depend on the GPU there.
    """

    engine: ClassVar[str] = "sglang-0.5"

    kind: Literal["sglang"] = "sglang"
    max_running_requests: int = Field(default=2048, ge=1, le=2**31)
    """Most running requests. SGLang's default is between 2048 and 4096, by memory and context."""
    chunked_prefill_size: int = Field(default=8192, ge=-1, le=2**31)
    """Most prompt tokens in a batch; longer prompts are split. -1: whole prompts. SGLang's default is 2048 to 16384, by
    the GPU's memory."""
    max_prefill_tokens: int = Field(default=16384, ge=1, le=2**31)
    """Prompt tokens after which no more requests join a prefill batch."""
    schedule_policy: Literal["fcfs", "lpm", "lof", "dfs-weight"] = "fcfs"
    """Order of the waiting queue: first come, first served; longest prefix match; longest output; depth first in the
    radix tree, the subtree with most waiting requests first. Without a radix tree `lpm` and `dfs-weight` are `fcfs`."""
    schedule_conservativeness: float = Field(default=1.0, ge=0, le=100)
    """Factor of the initial new-token ratio: how much of what running requests may still generate is reserved."""
    enable_mixed_chunk: bool = False
    """Let running requests decode in the prefill batch as well. Needs chunked prefill."""
    disable_overlap_schedule: bool = False
    """Plan a batch when the results of the one before are known, not while it runs."""
    disable_radix_cache: bool = False
    """Keep no prefixes."""
    ignore_eos: bool = False
    """Requests say that they end only at `max_new_tokens`, as SGLang's benchmark asks by default: the scheduler then
    reserves all their tokens."""
    max_new_tokens: int | None = Field(default=None, ge=1, le=2**31)
    """Tokens that each request asks for, at least those that it gets: the scheduler does not know when answers end.
    Left out, what the workload's requests say (`ends`, `max_new_tokens`)."""
    init_new_token_ratio: float = Field(default=0.7, gt=0, le=1)
    """New-token ratio at the start and after idle times (SGLANG_INIT_NEW_TOKEN_RATIO)."""
    min_new_token_ratio_factor: float = Field(default=0.14, gt=0, le=1)
    """Smallest ratio, as a part of the initial one (SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR)."""
    new_token_ratio_decay_steps: int = Field(default=600, ge=1, le=2**31)
    """Decode batches in which the ratio falls to its smallest value (SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS)."""
    retract_decode_steps: int = Field(default=20, ge=0, le=2**31)
    """Decode batches for which a retraction makes room in the tree (SGLANG_RETRACT_DECODE_STEPS)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.chunked_prefill_size == 0:
            raise InputError("-1, or at least 1", 0, field="chunked_prefill_size")
        if self.enable_mixed_chunk and 0 < self.chunked_prefill_size <= self.max_running_requests:
            raise InputError(f"less than chunked_prefill_size ({self.chunked_prefill_size}): with enable_mixed_chunk a "
                             "running request takes one of its tokens", self.max_running_requests,
                             field="max_running_requests")
        return self

    @property
    def max_num_seqs(self) -> int:
        """For estimates of memory, under the name that other schedulers have."""
        return self.max_running_requests

    @property
    def max_num_batched_tokens(self) -> int:
        """For estimates of memory, under the name that other schedulers have."""
        return self.chunked_prefill_size if self.chunked_prefill_size > 0 else self.max_prefill_tokens

    # Any: the client's MemoryConfig, which is of a higher layer
    def with_memory(self, memory: Any) -> Any:
        """Return a client's memory with what it leaves out: a radix tree of single tokens."""
        cached = not self.disable_radix_cache if memory.prefix_caching is None else memory.prefix_caching
        return memory.model_copy(update={"prefix_caching": cached, "block_size": memory.block_size or 1})

    def build(self, pool: BlockPool, *, every_step: bool) -> SglangScheduler:
        if pool.caching and not isinstance(pool, RadixPool):
            pool = RadixPool(pool.num_blocks, pool.block_size)
        scheduler = SglangScheduler if self.disable_overlap_schedule else OverlapSglangScheduler
        return scheduler(self, pool, every_step=every_step)
