"""Research systems built on the public interfaces: lookahead retrieval, METIS, Orthrus, RAG data structures."""
