"""Figures printed in the paper (TeleRAG, arXiv 2502.20969).

`hw_profiles/lookahead/telerag.yaml` (scripts/build_lookahead.py) holds the parameters fitted to some of them.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "BUDGET_GB", "CLUSTERS", "DATASETS", "GPU_OVER_CPU", "MEAN_8B", "MODELS", "NPROBE", "ON_DEMAND_SLOWER",
    "OVERLAP_256", "OVERLAP_AT_BUDGET", "OVERLAP_AT_SERVER_BUDGET", "PEAKS", "PROBED_BYTES", "RESIDENT",
    "RETRIEVAL_SPEEDUP", "SELF_RAG_MODEL", "SERVER_BUDGET_GB", "SERVER_GAIN", "SERVER_GAIN_RANGE", "SERVER_GAIN_SUBQ",
    "SERVER_RETRIEVAL", "SERVER_SHARE", "SETUPS", "TOTAL_BYTES", "VECTOR_BYTES", "Setup",
]

OVERLAP_256 = {
    "NQ": {"HyDE": 73.1, "SubQ": 63.2, "Iter": 91.5, "IRG": 83.8, "FLARE": 79.1},
    "HotpotQA": {"HyDE": 75.3, "SubQ": 62.5, "Iter": 89.6, "IRG": 89.4, "FLARE": 80.2},
    "TriviaQA": {"HyDE": 73.1, "SubQ": 61.6, "Iter": 86.2, "IRG": 86.1, "FLARE": 81.7},
}
"""Percent of the 256 probed clusters when 256 were prefetched, by data set. Self-RAG rewrites nothing."""
BUDGET_GB = {"HyDE": 7.0, "SubQ": 7.0, "Iter": 3.0, "IRG": 2.5, "FLARE": 3.0, "Self-RAG": 1.25}
"""Budgets on the RTX 4090 with Llama-3.2-3B."""
OVERLAP_AT_BUDGET = {"HyDE": 87.42, "SubQ": 76.38, "Iter": 84.59, "IRG": 50.34, "FLARE": 56.67, "Self-RAG": 29.96}
"""Percent, at those budgets."""
SERVER_BUDGET_GB = {"HyDE": 9.0, "SubQ": 8.0, "Iter": 5.0, "IRG": 4.0, "FLARE": 6.0, "Self-RAG": 3.0}
"""Budgets on the H100 with Llama-3-8B."""
OVERLAP_AT_SERVER_BUDGET = {
    "HyDE": 91.95, "SubQ": 79.04, "Iter": 95.51, "IRG": 59.52, "FLARE": 79.35, "Self-RAG": 71.29}
"""Percent, at those budgets."""
NPROBE, PROBED_BYTES = 256, 16.3e6
"""Self-RAG's overlap is its budget over the bytes of the probed clusters, which are 16.3 MB each on average."""
CLUSTERS, TOTAL_BYTES, VECTOR_BYTES = 4096, 61 * 10**9, 768 * 4

DATASETS = {"NQ": 1.55, "HotpotQA": 1.54, "TriviaQA": 1.49}
"""Mean speed-up of single queries, RTX 4090, Llama-3.2-3B."""
PEAKS = {("IRG", "llama-3.2-3b"): 2.11, ("IRG", "llama-3-8b"): 1.82, ("SubQ", "llama-3.2-3b"): 1.85}
"""Largest speed-ups on the RTX 4090: IRG's on HotpotQA; SubQuestion's data set is not named, HotpotQA is taken."""
MEAN_8B = 1.3
"""The same with Llama-3-8B, NQ."""
RETRIEVAL_SPEEDUP = 7.21
"""Of retrieval alone, at `NPROBE`; the paper's best nprobe."""
SERVER_GAIN = {1: 1.46, 8: 1.83}
"""Gain in throughput by batch, H100, mean of the six pipelines; it grows with the batch."""
SERVER_GAIN_RANGE = {1: (1.1, 2.2), 8: (1.4, 2.2)}
"""Lowest and highest gain of the six pipelines, by batch."""
SERVER_RETRIEVAL = 7.41
"""Of retrieval alone on the H100, at `NPROBE`."""
RESIDENT = {"retrieval": {1: 5.96, 4: 3.87}, "end to end": {1: 1.5, 4: 1.8}}
"""CPU retrieval over a resident index, by batch: arithmetic on `SERVER_SHARE`, not printed."""
SERVER_GAIN_SUBQ = 2.2
"""The same for SubQuestion, at the largest batch."""
ON_DEMAND_SLOWER = 1.03
"""Latency of fetching on demand over that of CPU retrieval, desktop."""
GPU_OVER_CPU = (4, 10)
"""How much faster the GPU searches."""
SERVER_SHARE = {"offload": {1: 41.1, 4: 60.0}, "resident": {1: 10.5, 4: 28.3}}
"""Percent of the latency that retrieval takes: H100, Llama-3-8B, NQ, mean of the six pipelines, by batch."""

MODELS = {"llama-3.2-3b": "Llama-3.2-3B", "llama-3-8b": "Llama-3-8B", "llama-2-13b": "Llama-2-13B"}
SELF_RAG_MODEL = {"llama-3.2-3b": "llama-2-7b", "llama-3-8b": "llama-2-7b", "llama-2-13b": "llama-2-13b"}
"""Self-RAG runs fine-tunes of Llama-2; which one beside which model is not printed: 7B but for the 13B."""


class Setup(NamedTuple):
    """A machine. link: measured bytes/s from host to GPU; buffers: bytes kept for prefetched clusters, by model."""

    link: float
    buffers: dict[str, float]


SETUPS = {
    "desktop": Setup(24e9, {"llama-3.2-3b": 10e9, "llama-3-8b": 3.75e9, "llama-2-7b": 3.75e9}),
    "server": Setup(51e9, {"llama-3-8b": 16e9, "llama-2-13b": 16e9, "llama-2-7b": 16e9}),
}
"""Llama-2-7B's buffer on the desktop is not printed: its weights leave no more room than those of Llama-3-8B."""
