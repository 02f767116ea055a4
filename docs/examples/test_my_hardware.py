from my_hardware import Linear

from hermes.testing.hardware import HardwareModelContract


class TestLinear(HardwareModelContract):
    def make(self):
        return Linear().build()
