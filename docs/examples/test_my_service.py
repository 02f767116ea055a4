from my_service import BruteForce

from hermes.testing.services import ServiceContract


class TestBruteForce(ServiceContract):
    def make(self):
        return BruteForce(vectors=10_000_000)
