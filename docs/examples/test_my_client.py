from my_client import WebSearch

from hermes.testing.clients import ClientContract


class TestWebSearch(ClientContract):
    def make(self):
        return WebSearch(name="web")
