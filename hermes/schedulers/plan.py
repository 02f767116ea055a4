"""Plan of a step, or of a run of equal steps: what a scheduler decided."""

from __future__ import annotations

from hermes.core.generation import Generation
from hermes.hardware.base import StepStats

__all__ = ["Plan"]


class Plan(StepStats):
    """A step plan: request -> number of tokens, and how many steps it may repeat.

    Attributes:
        prefills: (sequence, new tokens) for every sequence outside the decode group.
        decodes: Whether the decode group advances by one token a step.
        num_steps: Steps that can run before anything changes (1 if there are prefills).
        preempted: Sequences preempted to make this plan, in order.
        again: Of `sampled`, the tokens that are dropped: of sequences that ended in the step before, which the engine
            did not know when it planned this one.
        taken: Steps whose decode blocks are taken. The others are taken when the run ends, or when code outside the
            scheduler reads the memory.
    """

    __slots__ = ("again", "decodes", "num_steps", "preempted", "prefills", "taken")

    def __init__(self, decode_seqs: int = 0, decode_ctx: int = 0, decode_ctx_max: int = 0) -> None:
        """Plan a step of so many members of the decode group, with their contexts."""
        # No base constructor call: a plan is made for every run of steps.
        self.prefill_seqs = self.prefill_tokens = self.prefill_past = self.prefill_attn = 0
        self.decode_seqs = self.sampled = decode_seqs
        self.decode_ctx, self.decode_ctx_max, self.decodes = decode_ctx, decode_ctx_max, decode_seqs > 0
        self.embed_tokens = self.embedded = self.prefill_max = self.drafts = self.lora_tokens = self.lora_adapters = 0
        self.prefills: list[tuple[Generation, int]] = []
        self.num_steps = 1
        self.preempted: list[Generation] = []
        self.taken = self.again = 0

    def add_prefill(self, seq: Generation, n: int, past: int) -> None:
        """Count `n` new tokens of `seq` after `past` cached ones. One token after the prompt counts as a decode, and so
        does the prompt's last token if the KV of the others came from another client."""
        self.prefills.append((seq, n))
        if n == 1 and past >= seq.prompt_tokens - (seq.transferred and not seq.given):
            self.decode_seqs += 1
            self.decode_ctx += past
            if past > self.decode_ctx_max:
                self.decode_ctx_max = past
        else:
            self.prefill_seqs += 1
            self.prefill_tokens += n
            if n > self.prefill_max:
                self.prefill_max = n
            self.prefill_past += past
            self.prefill_attn += n * past + n * (n + 1) // 2
        if not seq.target_tokens:   # an embedding: it ends with its prompt
            self.embed_tokens += n
            self.embedded += past + n == seq.num_tokens
        elif past + n == seq.num_tokens:
            self.sampled += seq.width

    def add_verified(self, seq: Generation, n: int, past: int, drafts: int) -> None:
        """Count `n` tokens of `seq` after `past` cached ones, the last `drafts` of them drafts."""
        if not drafts:
            self.add_prefill(seq, n, past)
            return
        self.prefills.append((seq, n))
        self.add_drafted(past, drafts)

    def add_drafted(self, past: int, drafts: int) -> None:
        """Count a token after `past` cached ones and the drafts after it, of a sequence that may have ended."""
        self.decode_seqs += 1
        self.decode_ctx += past
        self.decode_ctx_max = max(self.decode_ctx_max, past)
        self.drafts += drafts
        self.sampled += 1 + drafts
