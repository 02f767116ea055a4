"""Power of one device: given or measured by state, or from its TDP and utilisation.

The kernel computes millions of steps, so power is computed after the simulation, for all runs of steps at once. Without
measurements the formula is GenZ's (A. Bambhaniya et al., arXiv 2406.01698, and its repository):

    P = TDP * (0.30 + 0.40 u_compute + 0.20 u_memory + 0.10 u_network)

A unit's utilisation u is the work of the run at the unit's peak rate / time of the run. An idle device draws `idle_w`
of its description (30% of the TDP without one).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from hermes.hardware.base import FloatArray, IntArray
from hermes.hardware.devices import DeviceDescription
from hermes.hardware.operators import Work
from hermes.units import NS_PER_S

__all__ = ["PowerModel", "StatePower", "TdpPower", "state_watts", "utilisation"]

STATIC, COMPUTE, MEMORY, NETWORK = 0.30, 0.40, 0.20, 0.10


class PowerModel(Protocol):
    """Power of one device."""

    @property
    def source(self) -> str:
        """Source of the figures, in words."""
        ...

    @property
    def idle_w(self) -> float:
        """Watts while no step runs."""
        ...

    def run_w(self, runs: dict[str, IntArray]) -> FloatArray:
        """Mean watts over each run of steps, shape (runs,); `runs` holds the columns of `RUN_FIELDS`."""
        ...


@dataclass(frozen=True)
class StatePower:
    """Watts by state of the client: steps that compute prompt tokens, other steps, no steps."""

    idle_w: float
    prefill_w: float
    decode_w: float
    source: str

    def run_w(self, runs: dict[str, IntArray]) -> FloatArray:
        return np.where(runs["prefill_seqs"] > 0, self.prefill_w, self.decode_w)


@dataclass(frozen=True)
class TdpPower:
    """GenZ's formula (see the module's docstring) for the work of one model on one device."""

    device: DeviceDescription
    work: Work
    tdp_w: float
    source: str

    @property
    def idle_w(self) -> float:
        return STATIC * self.tdp_w if self.device.idle_w is None else self.device.idle_w

    def run_w(self, runs: dict[str, IntArray]) -> FloatArray:
        compute, memory, network = utilisation(self.device, self.work, runs)
        out: FloatArray = self.tdp_w * (STATIC + COMPUTE * compute + MEMORY * memory + NETWORK * network)
        return out


def utilisation(
    device: DeviceDescription, work: Work, runs: dict[str, IntArray]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the shares of the peak arithmetic, memory and link rates in runs, each of shape (runs,), at most 1.

    Within a run only contexts grow, by one token a step, and work is linear in them: a run's mean step is the step with
    its mean context.
    """
    steps = runs["num_steps"]
    seconds = (runs["end_ns"] - runs["start_ns"]) / NS_PER_S / steps
    fields: dict[str, Any] = {
        name: runs[name] for name in ("prefill_tokens", "prefill_past", "prefill_attn", "decode_seqs", "sampled")
    }
    fields["decode_ctx"] = runs["decode_ctx"] + runs["decode_seqs"] * (steps - 1) / 2
    parts = work.ideal_s(SimpleNamespace(**fields), device.peak, device.memory_bandwidth, device.link_bandwidth)
    compute, memory, network = (np.minimum(part / seconds, 1.0) for part in parts)
    return compute, memory, network


def state_watts(power: PowerModel, runs: dict[str, IntArray]) -> tuple[float, float]:
    """Return the time-weighted mean watts of the runs that compute prompt tokens, and of the others.

    Energy by state is computed from them: mean watts x time of a state is exactly the sum over its runs. A state
    without runs gets the watts of a run without work.
    """
    watts, span = power.run_w(runs), (runs["end_ns"] - runs["start_ns"]).astype(np.float64)
    prefill = runs["prefill_seqs"] > 0
    if isinstance(power, StatePower):
        return power.prefill_w, power.decode_w
    out = []
    for state in (prefill, ~prefill):
        total = float(span[state].sum())
        idle_step = STATIC * power.tdp_w if isinstance(power, TdpPower) else power.idle_w
        out.append(float((watts[state] * span[state]).sum()) / total if total else idle_step)
    return out[0], out[1]
