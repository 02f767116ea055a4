"""Data structures of retrieval: fusion of rankings, micro-batches, and an evaluation of retrievers."""
