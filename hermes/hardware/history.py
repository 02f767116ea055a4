"""What earlier steps make of a step: clocks that sank, and an engine that had stopped.

A hardware model prices a step by its batch alone, and stays pure. A model that knows more gives each client a
`StepHistory` (method `history`); the client asks it for the duration of every single step with prompt tokens, and of
the first step after idleness. Steps of runs have no prompt tokens; nothing here changes them.

    load: mean share of the peak arithmetic, weighted by exp(-age / over); steps without prompts count as none
    sunk: how far the clocks sank, of 1: (mean load during the step - free) / (full - free), within 0 and 1
    step = priced step + sunk * what its matrix products take longer at the rate that the card sustains

The rate bounds what a step can lose: products that the kernel tables have no faster than it lose nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hermes.compiled import mypyc_attr
from hermes.hardware.base import StepStats
from hermes.hardware.descriptions.devices import DeviceDescription
from hermes.hardware.operators import Work
from hermes.sums import float_sum
from hermes.units import NS_PER_S

__all__ = ["Arithmetic", "StepHistory"]


@dataclass(frozen=True)
class Arithmetic:
    """Nanoseconds of a step's arithmetic at the device's peak rates, one device's share."""

    per_token: float
    per_pair: float
    per_row: float

    @classmethod
    def of(cls, work: Work, device: DeviceDescription) -> Arithmetic:
        """The arithmetic of one model on one device."""
        wide = NS_PER_S / device.peak(work.wide)
        layers = float_sum(flops * (NS_PER_S / device.peak(compute)) for compute, flops in work.token_flops.items())
        return cls(layers, work.pair_flops * wide, work.head_flops * wide)

    def ns(self, stats: StepStats) -> float:
        """Of one step."""
        pairs = stats.prefill_attn + stats.decode_ctx + stats.decode_seqs
        tokens = stats.prefill_tokens + stats.decode_seqs
        return self.per_token * tokens + self.per_pair * pairs + self.per_row * stats.sampled


@mypyc_attr(allow_interpreted_subclasses=True)
class StepHistory:
    """The history of one client's steps."""

    __slots__ = ("_arithmetic", "_at_ns", "_clocks", "_load", "_over_ns", "_sunk_ns", "idle_ns")

    def __init__(self, device: DeviceDescription, arithmetic: Arithmetic, sunk_ns: Callable[[int], float],
                 idle_ns: int = 0) -> None:
        """Both in nanoseconds.

        sunk_ns: What the matrix products of so many tokens take longer at the rate that the device sustains.
        idle_ns: What the first step after idleness takes longer.
        """
        self.idle_ns, self._arithmetic, self._sunk_ns = idle_ns, arithmetic, sunk_ns
        self._clocks = device.clocks
        self._over_ns = 1.0 if device.clocks is None else device.clocks.over * NS_PER_S
        self._load, self._at_ns = 0.0, 0

    def step_ns(self, stats: StepStats, priced_ns: int, now_ns: int) -> int:
        """Return the duration of a step with prompt tokens that starts now."""
        clocks = self._clocks
        if clocks is None:
            return priced_ns
        over = self._over_ns
        before = self._load * math.exp((self._at_ns - now_ns) / over)
        share = min(self._arithmetic.ns(stats) / priced_ns, 1.0)
        away = before - share
        mean = share + away * over / priced_ns * -math.expm1(-priced_ns / over)
        ns = priced_ns
        if mean > clocks.free:
            sunk = min((mean - clocks.free) / (clocks.full - clocks.free), 1.0)
            ns += round(sunk * self._sunk_ns(stats.prefill_tokens + stats.decode_seqs + stats.drafts))
        self._load, self._at_ns = share + away * math.exp(-ns / over), now_ns + ns
        return ns
