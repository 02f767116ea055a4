from my_network import Sites

from hermes.testing.network import NetworkContract


class TestSites(NetworkContract):
    def component(self):
        return Sites(bandwidth=2e9)
