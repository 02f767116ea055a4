from my_counts import TwoSizes

from hermes.testing.workload import TokenCountsContract


class TestTwoSizes(TokenCountsContract):
    def make(self):
        return TwoSizes(share=0.5)
