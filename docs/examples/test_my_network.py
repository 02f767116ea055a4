from my_network import Sites

from hermes.testing.network import NetworkContract


class TestSites(NetworkContract):
    def make(self):
        return Sites(bandwidth=2e9)
