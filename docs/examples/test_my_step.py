from my_step import Rerank

from hermes.plugins.metis.testing import StepContract


class TestRerank(StepContract):
    def make(self):
        return Rerank()
