"""The start-ups of hermes.fleet keep the contract of start-ups."""

from __future__ import annotations

from hermes.fleet.start_ups import Fixed
from hermes.fleet.startup_phases import Phases, Pool, Pull, Storage
from hermes.fleet.startup_times import ColdWarm, LognormalTime
from hermes.testing.fleet import StartUpContract


class TestFixed(StartUpContract):
    def make(self) -> Fixed:
        return Fixed(total=3.0)


class TestPhases(StartUpContract):
    longest_s = 400.0

    def make(self) -> Phases:
        return Phases(image=Pull(size=10 * 10**9, bandwidth=1e9), weights=Storage(bandwidth=1e9),
                      process=LognormalTime(median=8.0, sigma=0.3))


class TestPhasesOfAPool(StartUpContract):
    longest_s = 60.0

    def make(self) -> Phases:
        return Phases(process=1.0, tokenizer=0.0, weights=ColdWarm(cold=3.0, warm=1.0), compile=2.0, profiling=0.0,
                      capture=0.5, probe=0.0, pool=Pool(nodes=1, provisioning=4.0, most=None, keep=5.0))
