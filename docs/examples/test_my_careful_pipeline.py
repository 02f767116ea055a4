from my_careful_pipeline import shorter_when_full

from hermes.testing.pipelines import PipelineContract


class TestShorterWhenFull(PipelineContract):
    def make(self):
        return shorter_when_full
