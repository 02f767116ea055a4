from my_chooser import LoadAware

from hermes.plugins.metis.testing import ChooserContract


class TestLoadAware(ChooserContract):
    def make(self):
        return LoadAware(busy=4)
