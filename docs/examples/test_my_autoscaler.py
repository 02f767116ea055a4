from my_autoscaler import OfficeHours

from hermes.testing.fleet import AutoscalerContract


class TestOfficeHours(AutoscalerContract):
    def make(self):
        return OfficeHours(opens=1.0, closes=3.0, day=5.0)
