"""Evaluation of rankings: judged corpora, real retrievers, and measures of ranking quality."""

from hermes.plugins.structures.evaluation.corpus import Corpus, CorpusConfig, Query, make_corpus
from hermes.plugins.structures.evaluation.judged import Judged, judge
from hermes.plugins.structures.evaluation.measures import MEASURES, PairedTest, paired_test
from hermes.plugins.structures.evaluation.retrievers import Graph, exact_rankings, rankings_of, sparse_rankings

__all__ = [
    "MEASURES", "Corpus", "CorpusConfig", "Graph", "Judged", "PairedTest", "Query", "exact_rankings", "judge",
    "make_corpus", "paired_test", "rankings_of", "sparse_rankings",
]
