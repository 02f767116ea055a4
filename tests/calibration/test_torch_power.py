"""Watts through NVML, with a library that counts as told."""

from __future__ import annotations

import time

import pytest

from hermes.calibration.collect import nvml
from hermes.calibration.collect.nvml import PowerMeter


class Library:
    """A card that draws `watts`; its energy counter may be absent (`counts`)."""

    def __init__(self, watts: float, counts: bool) -> None:
        self.watts, self.counts, self.began = watts, counts, time.perf_counter()

    def nvmlDeviceGetPowerUsage(self, handle, value):  # noqa: N802
        value._obj.value = round(self.watts * 1e3)
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, value):  # noqa: N802
        value._obj.value = round((time.perf_counter() - self.began) * self.watts * 1.5 * 1e3)   # tells them apart
        return 0 if self.counts else 3


@pytest.mark.parametrize(("counts", "seconds", "watts", "method"), [
    (True, 0.3, 450.0, "NVML energy counter"), (False, 0.05, 300.0, "NVML power readings"),
    (True, 0.05, 300.0, "NVML power readings"),
])
def test_mean_power_of_a_load(counts, seconds, watts, method):
    meter = PowerMeter(Library(300.0, counts), None)
    with meter.over() as load:
        time.sleep(seconds)
    assert load.mean_w == pytest.approx(watts, rel=0.05)
    assert load.method == method


def test_no_library_no_meter(monkeypatch):
    monkeypatch.setattr(nvml, "LIBRARIES", ("libnvidia-ml-there-is-none.so",))
    assert PowerMeter.open() is None
