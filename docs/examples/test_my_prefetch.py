from my_prefetch import HotFirst

from hermes.plugins.telerag.testing import PrefetchContract


class TestHotFirst(PrefetchContract):
    def make(self):
        return HotFirst(near=1.5)
