"""Evaluation of rankings: judged corpora, real retrievers, and measures of ranking quality."""

from evidence.retrieval.corpus import Corpus, CorpusConfig, Query, make_corpus
from evidence.retrieval.judged import Judged, judge
from evidence.retrieval.measures import MEASURES, PairedTest, paired_test
from evidence.retrieval.retrievers import Graph, exact_rankings, rankings_of, sparse_rankings

__all__ = [
    "MEASURES", "Corpus", "CorpusConfig", "Graph", "Judged", "PairedTest", "Query", "exact_rankings", "judge",
    "make_corpus", "paired_test", "rankings_of", "sparse_rankings",
]
