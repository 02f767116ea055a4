"""Measuring of retrieval indices: searches and the cost model fitted to them, and one index for lookahead retrieval.

    measurement   `measure: retrieval`: the plan of searches
    collector     measures searches; `indices`: FAISS, hnswlib and bm25s behind one interface
    searches      the format of measured searches
    fit           measured searches to a retrieval profile
    ivf           `measure: ivf`: overlap of rewritten queries on a real index; `ivf_collector` measures it

Collectors run in an interpreter that has only numpy and the index's library: this package imports nothing by itself.
"""
