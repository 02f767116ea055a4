from my_router import LeastWork

from hermes.testing.routers import RouterContract


class TestLeastWork(RouterContract):
    def make(self):
        return LeastWork()
