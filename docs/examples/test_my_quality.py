from my_quality import RecallOnly

from hermes.plugins.metis.testing import QualityContract


class TestRecallOnly(QualityContract):
    def make(self):
        return RecallOnly(loss=0.05)
