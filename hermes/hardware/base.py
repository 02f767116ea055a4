"""The hardware model protocol: the duration of a step as a function of its batch statistics.

A step is one forward pass. A hardware model knows no requests and no scheduler, only the batch statistics below. A
*run* of k steps repeats the same batch, with every decode context one token longer in each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from hermes.arrays import FloatArray, IntArray
from hermes.compiled import mypyc_attr
from hermes.config.registry import Registry
from hermes.hardware.config import HardwareConfig
from hermes.units import NS_PER_S

__all__ = ["BATCH_STATS", "HARDWARE", "STEP_STATS", "HardwareModel", "StepStats", "VectorHardwareModel", "WriteEnds"]


HARDWARE: Registry[HardwareConfig] = Registry("hardware", "a hardware model", {
    "composed": "hermes.hardware.composed:Composed",
    "layerwise": "hermes.hardware.fitted.layerwise:Layerwise",
    "polynomial": "hermes.hardware.fitted.polynomial:Polynomial",
    "roofline": "hermes.hardware.roofline:Roofline",
    "table": "hermes.hardware.fitted.table:Table",
}, base=HardwareConfig)

BATCH_STATS: tuple[str, ...] = (
    "decode_ctx", "decode_ctx_max", "decode_seqs", "prefill_attn", "prefill_past", "prefill_seqs", "prefill_tokens",
    "sampled",
)
"""Statistics that measured steps state and fitted profiles read. No measurement has those of embeddings yet
(`embed_tokens`, `embedded`), nor the longest prefill (`prefill_max`): only analytical models use them."""

STEP_STATS = (*BATCH_STATS, "embed_tokens", "embedded", "prefill_max")
"""All fields of `StepStats` but `drafts` and those of LoRA adapters."""


class StepStats:
    """Statistics of one step's batch; all integers.

    Attributes:
        prefill_seqs: Sequences that compute prompt (or recomputed) tokens in this step.
        prefill_tokens: New tokens of those sequences.
        prefill_past: Tokens already in their KV cache, summed.
        prefill_attn: Attention pairs, sum of n * past + n * (n + 1) / 2.
        decode_seqs: Sequences that compute exactly one token after their prompt.
        decode_ctx: KV tokens already cached for them, summed.
        decode_ctx_max: The longest of those contexts.
        sampled: Sequences that emit a token at the end of the step.
        embed_tokens: The prefill tokens that belong to embeddings (they pass an adapter, if any, and are pooled).
        embedded: Embeddings whose prompt ends in this step.
        prefill_max: New tokens of the longest prefill; 0 if unknown.
        drafts: Draft tokens that decodes verify besides their own one (speculative decoding): tokens of the linear
            layers and rows of logits, while attention reads a sequence's KV once for all. Only models that have
            `prices_drafts` see them.
        lora_tokens: Of all these tokens, those of sequences with a LoRA adapter.
        lora_adapters: Their distinct adapters. Only `composed` prices them.
    """

    __slots__ = (*STEP_STATS, "drafts", "lora_adapters", "lora_tokens")

    def __init__(
        self, prefill_seqs: int = 0, prefill_tokens: int = 0, prefill_past: int = 0, prefill_attn: int = 0,
        decode_seqs: int = 0, decode_ctx: int = 0, decode_ctx_max: int = 0, sampled: int = 0, embed_tokens: int = 0,
        embedded: int = 0, prefill_max: int = 0, drafts: int = 0, lora_tokens: int = 0, lora_adapters: int = 0,
    ) -> None:
        self.prefill_seqs = prefill_seqs
        self.prefill_tokens = prefill_tokens
        self.prefill_past = prefill_past
        self.prefill_attn = prefill_attn
        self.decode_seqs = decode_seqs
        self.decode_ctx = decode_ctx
        self.decode_ctx_max = decode_ctx_max
        self.sampled = sampled
        self.embed_tokens = embed_tokens
        self.embedded = embedded
        self.prefill_max = prefill_max
        self.drafts = drafts
        self.lora_tokens = lora_tokens
        self.lora_adapters = lora_adapters

    def __repr__(self) -> str:
        return f"StepStats({', '.join(f'{n}={getattr(self, n)}' for n in sorted(STEP_STATS))})"


WriteEnds = Callable[[StepStats, int, "memoryview[int]", int, int], int]
"""Type of `write_ends`, which a hardware model may have; see `HardwareModel`."""


class HardwareModel(Protocol):
    """Durations of steps.

    The kernel calls `step_ns` for a single step and `run_ns` for a run of `num_steps` steps. In step j of a run
    (j = 0, 1, ...) `decode_ctx` is `stats.decode_ctx + j * stats.decode_seqs`, `decode_ctx_max` is
    `stats.decode_ctx_max + j`, and all other statistics stay. Both methods must agree bit for bit: computed in float64
    with the same operations in the same order on exact integers, elementwise, rounded half to even once per step. Both
    must be pure: no state that changes an answer, no global cache. Times are positive integers (at least 1 ns).

    A model may have a method `write_ends(stats, num_steps, ends, pos, now_ns) -> last`, which the kernel calls for a
    short run without prefills: it writes the end times of a run that starts at `now_ns` to `ends[pos:]` (a memoryview
    of int64) and returns the last one. It must agree with `run_ns`.

    A model whose steps depend on those before them too gives each client a `hermes.hardware.history.StepHistory` by a
    method `history()`; without one the kernel takes the times as they are.
    """

    def step_ns(self, stats: StepStats) -> int:
        """Return the duration of one step in nanoseconds."""
        ...

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        """Return the durations of `num_steps` steps in nanoseconds, int64, shape (num_steps,)."""
        ...

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        """Return how many steps of each run left the range that the model was measured on, shape (runs,).

        `columns` holds one int64 array per `StepStats` field but `prefill_max` (values at the run's first step). The
        kernel calls this once after the simulation, so it may be slow. Analytical models return zeros.
        """
        ...


@mypyc_attr(allow_interpreted_subclasses=True)
class VectorHardwareModel:
    """Base of models that write one vectorised `run_seconds`; it adds the integer interface."""

    def run_seconds(self, stats: StepStats, num_steps: int) -> FloatArray:
        """Return durations in seconds, float64, shape (num_steps,); elementwise operations only, no matrix products."""
        raise NotImplementedError

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        ns = np.rint(self.run_seconds(stats, num_steps) * NS_PER_S).astype(np.int64)
        return np.maximum(ns, 1)

    def step_ns(self, stats: StepStats) -> int:
        return int(self.run_ns(stats, 1)[0])

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        return np.zeros(len(num_steps), dtype=np.int64)
