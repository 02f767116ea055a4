from my_arrivals import Ramp

from hermes.testing.workload import ArrivalProcessContract


class TestRamp(ArrivalProcessContract):
    def make(self):
        return Ramp(rate=2.0, growth=0.1)
