"""Lookahead retrieval (TeleRAG, arXiv 2502.20969): clusters travel to the GPU while the query is still being rewritten.

A plug-in: a client (`ivf_index`: which clusters a query probes, what to prefetch, what the buffer holds), a service
(`cluster_scan`) and six pipelines, all through the registries. The copies are inputs of stages, so they are flows of
the scenario's network like any other.
"""

from hermes.plugins.telerag.client import IvfIndexClient, IvfIndexConfig
from hermes.plugins.telerag.pipelines import PIPELINE_NAMES
from hermes.plugins.telerag.profile import LookaheadProfile, load_lookahead
from hermes.plugins.telerag.retrieval import LookaheadStage, ProbeStage, Retriever
from hermes.plugins.telerag.scan import ClusterScan

__all__ = [
    "PIPELINE_NAMES", "ClusterScan", "IvfIndexClient", "IvfIndexConfig", "LookaheadProfile", "LookaheadStage",
    "ProbeStage", "Retriever", "load_lookahead",
]
