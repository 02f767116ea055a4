"""Joules through NVML, with a library that counts as told."""

from __future__ import annotations

import ctypes

import pytest

from hermes.calibration.collect import counters
from hermes.calibration.collect.counters import energy_counter


class Library:
    """A card whose counter has another kilojoule at every reading; the counter may be absent (`counts`)."""

    def __init__(self, counts: bool) -> None:
        self.counts, self.joules = counts, 0

    def nvmlInit_v2(self):  # noqa: N802
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):  # noqa: N802
        return 0 if uuid == b"GPU-1" else 2

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):  # noqa: N802
        return index

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, value):  # noqa: N802
        self.joules += 1000
        value._obj.value = self.joules * 1000
        return 0 if self.counts else 3


@pytest.mark.parametrize("uuid", ["GPU-1", "GPU-of-another-machine", ""])
def test_joules_of_a_card(monkeypatch, uuid):
    library = Library(counts=True)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    joules = energy_counter(uuid)
    assert joules is not None
    before = joules()
    assert joules() - before == 1000.0


def test_no_counter_no_joules(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library(counts=False))
    assert energy_counter() is None


def test_no_library_no_joules(monkeypatch):
    monkeypatch.setattr(counters, "LIBRARIES", ("libnvidia-ml-there-is-none.so",))
    assert energy_counter() is None
