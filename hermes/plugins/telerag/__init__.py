"""Lookahead retrieval (TeleRAG, arXiv 2502.20969): copy clusters to the GPU while the query is being rewritten.

The plug-in registers a client (`ivf_index`: clusters that a query probes, prefetches, the buffer), a service
(`cluster_scan`), six pipelines, and prefetch policies (`nearest`, `none`). The copies are inputs of stages, so they are
flows of the scenario's network like any other.
"""

from hermes.plugins.telerag.client import IvfIndexClient, IvfIndexConfig
from hermes.plugins.telerag.pipelines import PIPELINE_NAMES
from hermes.plugins.telerag.prefetch import PREFETCH, PrefetchPolicy, PrefetchState
from hermes.plugins.telerag.profile import LookaheadProfile, load_lookahead
from hermes.plugins.telerag.retrieval import LookaheadStage, ProbeStage, Retriever
from hermes.plugins.telerag.scan import ClusterScan

__all__ = [
    "PIPELINE_NAMES", "PREFETCH", "ClusterScan", "IvfIndexClient", "IvfIndexConfig", "LookaheadProfile",
    "LookaheadStage", "PrefetchPolicy", "PrefetchState", "ProbeStage", "Retriever", "load_lookahead",
]
