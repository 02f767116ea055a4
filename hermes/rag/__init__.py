"""What retrieval costs: cost models of index structures and of reranking, as services that clients can offer."""

from hermes.rag.hnsw import Hnsw
from hermes.rag.hybrid import Hybrid
from hermes.rag.ivf_flat import IvfFlat
from hermes.rag.ivf_pq import IvfPq
from hermes.rag.measured import Measured
from hermes.rag.phases import Phase, SearchConfig, SearchService
from hermes.rag.remote_model import RemoteModel
from hermes.rag.rerank import Rerank

__all__ = [
    "Hnsw", "Hybrid", "IvfFlat", "IvfPq", "Measured", "Phase", "RemoteModel", "Rerank", "SearchConfig", "SearchService",
]
