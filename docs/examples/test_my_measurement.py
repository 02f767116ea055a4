from my_measurement import BlockHashes

from hermes.calibration.testing import MeasurementContract


class TestBlockHashes(MeasurementContract):
    def make(self):
        return BlockHashes(block_sizes=[16, 64])
