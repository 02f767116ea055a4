from my_start_up import OneByOne

from hermes.testing.fleet import StartUpContract


class TestOneByOne(StartUpContract):
    def make(self):
        return OneByOne(each=5.0)
