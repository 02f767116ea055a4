from my_eviction import LargestFirst

from hermes.testing.eviction import EvictionContract


class TestLargestFirst(EvictionContract):
    def make(self):
        return LargestFirst()
