"""How good a ranking is: judged corpora, and what rankings of their documents are worth."""

from hermes.rag.evaluation.corpus import Corpus, CorpusConfig, Query, make_corpus
from hermes.rag.evaluation.measures import MEASURES, PairedTest, paired_test

__all__ = ["MEASURES", "Corpus", "CorpusConfig", "PairedTest", "Query", "make_corpus", "paired_test"]
