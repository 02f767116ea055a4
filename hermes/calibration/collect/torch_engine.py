"""The torch engine: computes one batch of sequences as one step. numpy and torch only.

Linear layers see all tokens of a step together; decodes and prompt chunks attend apart. On a GPU, steps with decodes
only are CUDA graphs (`torch_graphs`), as in serving engines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hermes.calibration.collect.torch_attention import Chunks, Decodes, choose
from hermes.calibration.collect.torch_graphs import DecodeGraphs, eager_record, graph_record
from hermes.calibration.collect.torch_model import Shape, Transformer

__all__ = ["ALIGNMENT", "DTYPES", "Step", "TorchEngine", "statistics_of"]

Tensor = Any
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
ALIGNMENT = 16   # regions of the KV pool begin at multiples; the first one belongs to the padding of graphs


@dataclass
class Step:
    """A batch. Tokens are in the order decodes, prefills."""

    decodes: list[tuple[int, int]] = field(default_factory=list)
    """(where its region begins, tokens cached), one new token each."""
    prefills: list[tuple[int, int, int, bool]] = field(default_factory=list)
    """(where its region begins, tokens cached, new tokens, whether the last one's successor is sampled)."""
    tokens: list[int] | None = None
    """Ids of the new tokens; None: any."""

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + sum(new for _, _, new, _ in self.prefills)


def statistics_of(step: Step) -> dict[str, int]:
    """Return the batch statistics of a measured row."""
    contexts = [context for _, context in step.decodes]
    return {
        "prefill_seqs": len(step.prefills), "prefill_tokens": sum(new for _, _, new, _ in step.prefills),
        "prefill_past": sum(past for _, past, _, _ in step.prefills),
        "prefill_attn": sum(new * past + new * (new + 1) // 2 for _, past, new, _ in step.prefills),
        "decode_seqs": len(contexts), "decode_ctx": sum(contexts), "decode_ctx_max": max(contexts, default=0),
        "sampled": len(contexts) + sum(sampled for _, _, _, sampled in step.prefills),
    }


class TorchEngine:
    """A model on a device, ready for steps."""

    def __init__(
        self, shape: Shape, *, device: str, dtype: str, pool_tokens: int, longest: int, threads: int = 1, seed: int = 0,
        cuda_graphs: bool = True, static: bool = False, max_num_seqs: int = 256,
    ) -> None:
        """Load the model.

        Args:
            pool_tokens: KV tokens for steps.
            longest: Most tokens of a sequence.
            static: Run decodes through the fixed buffers of graphs without a graph (tests graphs without a GPU).
        """
        self.device = torch.device(device)
        if self.device.type == "cpu":
            torch.set_num_threads(threads)
        else:
            torch.cuda.set_device(self.device.index or 0)
        self.shape, self.dtype = shape, DTYPES[dtype]
        self.pool_tokens, self.longest = pool_tokens, longest
        self._random = np.random.default_rng(seed)
        self._ids = self._random.integers(0, shape.vocab, 65536)
        with torch.inference_mode():
            self.attention, self.notes = choose(shape, longest, self.dtype, self.device)
            self.model = Transformer(shape, self.dtype, self.device, pool_tokens + ALIGNMENT, longest, seed)
            self.graphs: DecodeGraphs | None = None
            if static or (cuda_graphs and self.device.type == "cuda" and self.attention.static):
                record = eager_record if static else graph_record
                self.graphs = DecodeGraphs(self._decode_forward, self.device, max_num_seqs, longest, record)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def step(self, step: Step) -> Tensor:
        """Enqueue one step; return ids of the sampled tokens on the device, decodes first."""
        with torch.inference_mode():
            return self.run(self.prepare(step))

    def prepare(self, step: Step) -> tuple[Any, ...]:
        """Prepare a step on the host: arrays of ids, positions and places, copied to the device."""
        decodes, prefills = step.decodes, step.prefills
        starts = np.array([s for s, _ in decodes] + [s for s, _, _, _ in prefills], dtype=np.int64)
        pasts = np.array([c for _, c in decodes] + [p for _, p, _, _ in prefills], dtype=np.int64)
        counts = np.array([1] * len(decodes) + [n for _, _, n, _ in prefills], dtype=np.int64)
        ends = np.cumsum(counts)
        positions = np.arange(ends[-1]) + np.repeat(pasts - (ends - counts), counts)
        slots = positions + np.repeat(starts, counts)
        tokens = self._ids[slots & 65535] if step.tokens is None else np.array(step.tokens, dtype=np.int64)
        if self.graphs is not None and not prefills:
            return ("graph", *self.graphs.fill(tokens, positions, slots, starts, pasts + 1))
        sampled = np.array([True] * len(decodes) + [s for _, _, _, s in prefills], dtype=bool)
        rows = ends[sampled] - 1
        size = len(tokens)
        long = self._upload(np.concatenate((tokens, positions, slots, rows)))
        b = len(decodes)
        parts = [long[:size], long[size : 2 * size], long[2 * size : 3 * size], long[3 * size :]]
        return ("eager", *parts, self._decodes(starts[:b], pasts[:b] + 1),
                self._chunks(starts[b:], pasts[b:], counts[b:]))

    def _upload(self, array: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, non_blocking=True)

    def _decodes(self, starts: Any, used: Any) -> Decodes | None:
        b = len(starts)
        if not b:
            return None
        ints = self._upload(np.concatenate((starts, [self.pool_tokens], used, np.arange(b + 1))).astype(np.int32))
        return Decodes(ints[: b + 1], ints[b + 1 : 2 * b + 1], ints[2 * b + 1 :], int(used.max()))

    def _chunks(self, starts: Any, pasts: Any, counts: Any) -> Chunks | None:
        n = len(starts)
        if not n:
            return None
        used, begins = pasts + counts, np.concatenate(([0], np.cumsum(counts)))
        ints = self._upload(np.concatenate((starts, [self.pool_tokens], used, begins)).astype(np.int32))
        return Chunks(ints[: n + 1], ints[n + 1 : 2 * n + 1], ints[2 * n + 1 :], int(used.max()), int(counts.max()))

    def run(self, prepared: tuple[Any, ...]) -> Tensor:
        """Compute a step on the device."""
        if prepared[0] == "graph":
            assert self.graphs is not None
            return self.graphs.run(*prepared[1:])
        _, tokens, positions, slots, rows, decodes, chunks = prepared
        return self.model.forward(tokens, positions, slots, rows, self._attend(decodes, chunks))

    def _attend(self, decodes: Decodes | None, chunks: Chunks | None) -> Any:
        """Compute attention of a step's parts: decodes are the first rows."""
        attention = self.attention
        if chunks is None:
            assert decodes is not None
            return lambda q, k, v: attention.decode(q, k, v, decodes)
        if decodes is None:
            return lambda q, k, v: attention.prefill(q, k, v, chunks)
        b = len(decodes.used)

        def both(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.cat((attention.decode(q[:b], k, v, decodes), attention.prefill(q[b:], k, v, chunks)))

        return both

    def _decode_forward(self, tokens: Tensor, positions: Tensor, slots: Tensor, decodes: Decodes) -> Tensor:
        return self.model.forward(tokens, positions, slots, None, self._attend(decodes, None))
