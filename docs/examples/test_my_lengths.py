from my_lengths import Summaries

from hermes.testing.workload import LengthModelContract


class TestSummaries(LengthModelContract):
    def make(self):
        return Summaries(mean=500)
