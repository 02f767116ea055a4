"""Services of clients without an LLM engine: the work of a batch of embeddings, retrievals or rerankings."""

from hermes.services.base import (
    SERVICES,
    Encoder,
    EncoderService,
    MachineSpec,
    PerItem,
    PhaseCost,
    Service,
    Work,
    check_count,
    check_memory,
    count_option,
    machine_of,
)
from hermes.services.hnsw import Hnsw
from hermes.services.hybrid import Hybrid
from hermes.services.ivf_flat import IvfFlat
from hermes.services.ivf_pq import IvfPq
from hermes.services.measured import Measured
from hermes.services.phases import Phase, SearchConfig, SearchService
from hermes.services.remote_model import RemoteModel
from hermes.services.rerank import Rerank

__all__ = [
    "SERVICES", "Encoder", "EncoderService", "Hnsw", "Hybrid", "IvfFlat", "IvfPq", "MachineSpec", "Measured",
    "PerItem", "Phase", "PhaseCost", "RemoteModel", "Rerank", "SearchConfig", "SearchService", "Service", "Work",
    "check_count", "check_memory", "count_option", "machine_of",
]
