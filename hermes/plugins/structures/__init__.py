"""Data structures of retrieval: fusion of rankings, and micro-batches."""
