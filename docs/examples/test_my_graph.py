from my_graph import Debate

from hermes.testing.pipelines import PipelineContract


class TestDebate(PipelineContract):
    def make(self):
        return Debate

    def parameters(self):
        return {"voices": 5}
