"""Static batching (FasterTransformer): a fixed batch runs until its longest member is complete, then the next starts.

The batch is a rectangle: prompts are padded to the longest, every member decodes until the longest answer is complete,
and all members return together. The scheduler takes the blocks of the whole rectangle when it forms the batch. Each
branch of a generation is a row. Its prompt is computed once for all its rows, which share the prompt's whole blocks;
the padding is per row.

A request that its client gives up leaves the queue. Once it is in a batch, the batch goes on as it is: the engine gets
the whole batch in one call, and the server in front of it (Triton) cancels only what it has not passed on. The rows of
that request are computed to their last token, and its memory is free with that of the batch.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hermes.config import Named
from hermes.core.generation import Generation
from hermes.core.reasons import Reason
from hermes.memory.blocks import BlockPool
from hermes.schedulers.base import DOWN, RESULTS, LLMScheduler
from hermes.schedulers.config import SchedulerConfig
from hermes.schedulers.plan import Plan
from hermes.schedulers.queues import PACKING

__all__ = ["StaticConfig", "StaticScheduler"]


class StaticConfig(SchedulerConfig):
    """FasterTransformer's batching: fixed batches, padded to their longest member, returned together."""

    kind: Literal["static"] = "static"
    max_num_seqs: int = Field(default=16, ge=1, le=2**31)
    """Most sequences in a batch. A batch is formed from the sequences that wait when the one before is done."""
    max_num_batched_tokens: int = Field(default=2**31, ge=1, le=2**31)
    """Most tokens of the padded prompts. A single longer prompt is a batch of its own."""
    policy: Annotated[str, Named(PACKING)] = "fcfs"
    """Order in which waiting sequences join a batch."""

    def build(self, pool: BlockPool, *, every_step: bool) -> StaticScheduler:
        return StaticScheduler(self, pool)


class StaticScheduler(LLMScheduler):
    """See the module's docstring. The decode group is not used: a batch decodes as `width` equal rows."""

    takes_over_kv = False
    returns_together = True

    def __init__(self, config: StaticConfig, pool: BlockPool) -> None:
        super().__init__(
            pool, max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens,
            packing=config.policy, grows=False,
        )
        self._formed = 0      # `Reason` for which the batch has no more members
        self._length = 0      # tokens of the longest prompt
        self._emitted = 0     # tokens that every row has emitted
        self._longest = 0     # tokens of the longest answer

    def can_ever_fit(self, seq: Generation) -> str | None:
        rows = self._rows(seq)
        if rows > self.max_num_seqs:
            return f"{rows} branches are in one batch, the client has room for {self.max_num_seqs} sequences"
        need = self._blocks(seq, self.pool.blocks_for(seq.prompt_tokens + seq.target_tokens))
        if need > self.pool.num_blocks and rows > 1:
            return (f"needs {need} KV blocks of {self.pool.block_size} tokens for {seq.prompt_tokens} prompt and "
                    f"{rows} times {seq.target_tokens} output tokens, the client has {self.pool.num_blocks}")
        if need > self.pool.num_blocks:
            return (f"needs {need} KV blocks of {self.pool.block_size} tokens for {seq.prompt_tokens} prompt and "
                    f"{seq.target_tokens} output tokens, the client has {self.pool.num_blocks}")
        return None

    @staticmethod
    def _rows(seq: Generation) -> int:
        """Return the rows of a waiting sequence; one if another client decodes its branches."""
        return 1 if seq.hands_over else seq.width

    def _blocks(self, seq: Generation, row: int) -> int:
        """Return the blocks of its rows, `row` blocks each."""
        return self._rows(seq) * row - self._common(seq)

    def _common(self, seq: Generation) -> int:
        """Return the blocks that its rows share."""
        return (self._rows(seq) - 1) * (seq.prompt_tokens // self.pool.block_size)

    def wants_cut(self, seq: Generation) -> bool:
        return False   # no sequence joins a running batch

    def stop_of_arrival(self) -> int:
        return self._formed

    def plan(self, max_steps: int) -> Plan | None:
        if not self.running:
            return self._form_batch()
        plan = Plan()
        width = len(self.running)
        past = self._length + self._emitted - 1
        plan.decodes = True
        plan.decode_seqs = width
        plan.decode_ctx = width * past
        plan.decode_ctx_max = past
        emitted = self._emitted
        left = [seq.target_tokens - emitted for seq in self.running if seq.target_tokens > emitted]
        plan.sampled = len(left)   # the others are padding
        plan.num_steps = min(max_steps, *left)   # when an answer is complete, its row continues without new tokens
        return plan

    def _form_batch(self) -> Plan | None:
        """Form the next batch: as many members as fit as a padded rectangle of prompts and answers."""
        members: list[Generation] = []
        self._formed = int(Reason.BATCH_ENDS)
        prompt = output = rows = common = 0
        while self.num_waiting and rows < self.max_num_seqs:
            seq = self.next_waiting()
            longest, answer = max(prompt, seq.prompt_tokens), max(output, seq.target_tokens)
            row = self.pool.blocks_for(longest + answer)
            if members and (stop := self._stop(seq, (len(members) + 1) * longest, rows + self._rows(seq), row, common)):
                self._formed = stop
                break
            self.admit(seq)
            members.append(seq)
            rows += self._rows(seq)
            common += self._common(seq)
            prompt, output = longest, answer
        if rows >= self.max_num_seqs:
            self._formed = int(Reason.SLOTS)
        self.stopped = self._formed
        if not members:
            return None
        plan = Plan()
        blocks = self.pool.blocks_for(prompt + output)
        for seq in members:
            self.partial.pop(seq)
            # The first row holds the blocks of all rows of its generation, which start and end together.
            self.pool.grow(seq, self._blocks(seq, blocks) * self.pool.block_size)
            plan.prefills.append((seq, prompt))
            plan.sampled += seq.width
        width = plan.prefill_seqs = len(members)
        plan.prefill_tokens = width * prompt
        plan.prefill_attn = width * (prompt * (prompt + 1) // 2)
        self._length, self._longest, self._emitted = prompt, output, 0
        return plan

    def _stop(self, seq: Generation, tokens: int, rows: int, row: int, common: int) -> int:
        """Return why a sequence does not join a batch that would have as many padded tokens and rows, 0 if it does."""
        if rows > self.max_num_seqs:
            return int(Reason.SLOTS)
        if tokens > self.max_num_batched_tokens:
            return int(Reason.TOKEN_BUDGET)
        return int(Reason.KV_MEMORY) if rows * row - common - self._common(seq) > self.pool.num_blocks else 0

    def complete(self, plan: Plan, num_steps: int, step: int, now_ns: int) -> list[Generation]:
        if plan.decodes:
            self._emitted += num_steps
        else:
            self._emitted = 1
            for seq, _n in plan.prefills:
                seq.first_step = step
                seq.first_token_ns = now_ns
                if self._rows(seq) > 1:
                    assert seq.branches is not None
                    for branch in seq.branches.split(seq):
                        self.running[branch] = None
        if self._emitted < self._longest:
            return []
        finished = list(self.running)
        self.running.clear()
        return finished

    def leave(self, seq: Generation, when: int) -> bool:
        if seq in self.running:
            if when != DOWN:
                return False
            if seq.first_step >= 0:
                seq.num_tokens = seq.prompt_tokens + min(seq.target_tokens, self._emitted)
        elif when == RESULTS and not self.has(seq):   # its batch has ended
            seq.num_tokens = seq.prompt_tokens + seq.target_tokens
        return super().leave(seq, when)

    @property
    def num_decoding(self) -> int:
        return len(self.running)

    def tokens_cached(self) -> int:
        return len(self.running) * (self._length + max(0, self._emitted - 1))
