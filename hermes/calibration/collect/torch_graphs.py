"""Recording of CUDA graphs. torch only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["graph_record"]


def graph_record(compute: Callable[[], Any]) -> Callable[[], None]:
    """Record a CUDA graph, after two runs on a side stream that let libraries allocate what they keep; return its
    replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            compute()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compute()
    replay: Callable[[], None] = graph.replay
    return replay
