"""Decode steps through fixed buffers, for CUDA graphs: one graph per batch size and length class.

A batch is padded to the next capture size (1, 2, 4, multiples of 8 to 256, of 16 beyond, as vLLM's); padding rows write
to and read from the first region of the KV pool, which belongs to no sequence. The launch depends on the longest
context (how attention is split), so graphs are kept per power of two of it. numpy and torch only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hermes.calibration.collect.torch_attention import Decodes

__all__ = ["DecodeGraphs", "capture_sizes", "eager_record", "graph_record"]

Tensor = Any
MOST_GRAPHS = 64   # kept at once: each holds a few megabytes of launches
Forward = Callable[[Tensor, Tensor, Tensor, Decodes], Tensor]
Record = Callable[[Callable[[], Tensor], Any], tuple[Callable[[], None], Callable[[], Tensor]]]
"""Records a computation: (replay it, its result); the second argument is the memory pool that graphs share."""


def capture_sizes(most: int) -> list[int]:
    """Return batch sizes of graphs, up to one that holds `most` sequences."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, most + 16, 16)]
    return sizes[: next(i for i, size in enumerate(sizes) if size >= most) + 1]


def eager_record(compute: Callable[[], Tensor], pool: Any) -> tuple[Callable[[], None], Callable[[], Tensor]]:
    """Record no graph: replaying computes the step."""
    results: list[Tensor] = []

    def replay() -> None:
        results[:] = [compute()]

    return replay, lambda: results[0]


def graph_record(compute: Callable[[], Tensor], pool: Any) -> tuple[Callable[[], None], Callable[[], Tensor]]:
    """Record a CUDA graph, after two runs on a side stream that let libraries allocate what they keep."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            compute()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = compute()
    return graph.replay, lambda: result


class DecodeGraphs:
    """Fixed buffers, and the recorded steps that read them."""

    def __init__(self, forward: Forward, device: Any, most: int, longest: int, record: Record) -> None:
        self.sizes = capture_sizes(most)
        self.longest = longest
        self._forward, self._record = forward, record
        biggest = self.sizes[-1]
        self._device = device
        self._long = torch.zeros(3, biggest, dtype=torch.int64, device=device)
        self._starts = torch.zeros(biggest + 1, dtype=torch.int32, device=device)
        self._used = torch.ones(biggest, dtype=torch.int32, device=device)
        self._queries = torch.arange(biggest + 1, dtype=torch.int32, device=device)
        self._recorded: dict[tuple[int, int], tuple[Callable[[], None], Callable[[], Tensor]]] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def fill(self, tokens: Any, positions: Any, slots: Any, starts: Any, used: Any) -> tuple[int, int, int]:
        """Copy a batch (numpy, int64) into the buffers, padded; return (sequences, capture size, length class)."""
        count = len(tokens)
        size = next(size for size in self.sizes if size >= count)
        long = np.zeros((3, size), dtype=np.int64)
        long[0, :count], long[1, :count], long[2, :count] = tokens, positions, slots
        short = np.zeros(2 * size + 1, dtype=np.int32)
        short[:count] = starts
        short[size + 1 :] = 1
        short[size + 1 : size + 1 + count] = used
        self._long[:, :size].copy_(torch.from_numpy(long), non_blocking=True)
        both = torch.from_numpy(short).to(self._device, non_blocking=True)
        self._starts[: size + 1].copy_(both[: size + 1])
        self._used[:size].copy_(both[size + 1 :])
        longest = min(self.longest, 1 << (int(used.max()) - 1).bit_length())
        return count, size, max(longest, int(used.max()))

    def run(self, count: int, size: int, longest: int) -> Tensor:
        """Replay, or record first; return the ids of the batch that `fill` copied last."""
        key = (size, longest)
        if key not in self._recorded:
            if len(self._recorded) >= MOST_GRAPHS:
                self._recorded.clear()
            decodes = Decodes(self._starts[: size + 1], self._used[:size], self._queries[: size + 1], longest)
            tokens, positions, slots = self._long[0, :size], self._long[1, :size], self._long[2, :size]
            self._recorded[key] = self._record(
                lambda: self._forward(tokens, positions, slots, decodes), self._pool
            )
        replay, result = self._recorded[key]
        replay()
        return result()[:count]
