"""What retrieval costs: cost models of index structures, as services that clients can offer."""

from hermes.rag.ivf_pq import IvfPq

__all__ = ["IvfPq"]
