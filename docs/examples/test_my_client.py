from my_client import WebSearch

from hermes.testing.clients import ClientContract


class TestWebSearch(ClientContract):
    def component(self):
        return WebSearch(name="web")
