from my_pipeline import best_of_two

from hermes.testing.pipelines import PipelineContract


class TestBestOfTwo(PipelineContract):
    def make(self):
        return best_of_two
