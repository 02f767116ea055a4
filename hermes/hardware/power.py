"""Power of one device: given or measured by state, or from the utilisation of its units.

The kernel computes millions of steps, so power is computed after the simulation, for all runs of steps at once:

    P = min(most, serving + memory u_memory + compute u_compute + network u_network)

A unit's utilisation u is the work of the run at the unit's peak rate / time of the run. The watts are those of the
device's description, fitted to measurements; a GPU without them takes H100's as shares of its TDP, a CPU GenZ's shares
(A. Bambhaniya et al., arXiv 2406.01698, and its repository). An idle device draws `idle_w` of its description (30% of
the TDP without one).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from hermes.hardware.base import FloatArray, IntArray
from hermes.hardware.devices import DeviceDescription, DevicePower
from hermes.hardware.operators import Work
from hermes.units import NS_PER_S

__all__ = ["GPU_SHARES", "PowerModel", "StatePower", "UtilisedPower", "device_power", "idle_watts", "state_watts",
           "utilisation", "watts"]

IDLE_SHARE = 0.30
GPU_SHARES = DevicePower(serving=0.427, memory=0.339, compute=3.25, most=0.982)
"""Of the TDP; fitted on an H100 that decodes (ML.ENERGY leaderboard, Llama-3.1-8B, batches of 8 to 768)."""
CPU_SHARES = DevicePower(serving=0.30, memory=0.20, compute=0.40, network=0.10, most=1.0)
"""GenZ's."""


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


def device_power(device: DeviceDescription) -> tuple[DevicePower, str] | None:
    """Return the watts of a device by utilisation, and their source; None if it states neither them nor a TDP."""
    if device.power is not None:
        return device.power, f"device {device.name}: fitted to measured watts"
    tdp = device.tdp_w
    if tdp is None:
        return None
    shares, whose = (GPU_SHARES, "H100's") if device.type == "gpu" else (CPU_SHARES, "GenZ's")
    scaled = DevicePower(**{name: share * tdp for name, share in shares.model_dump().items()})
    return scaled, f"assumed: {whose} shares of {tdp:g} W, device {device.name}"


def idle_watts(device: DeviceDescription) -> float:
    """Return the watts of a device with nothing to do."""
    return IDLE_SHARE * (device.tdp_w or 0.0) if device.idle_w is None else device.idle_w


def watts(power: DevicePower, compute: Any, memory: Any, network: Any = 0.0) -> Any:
    """Return watts at these utilisations, numbers or arrays."""
    used = power.serving + power.compute * compute + power.memory * memory + power.network * network
    return np.minimum(used, power.most)


@dataclass(frozen=True)
class UtilisedPower:
    """Watts by utilisation (see the module's docstring) for the work of one model on one device."""

    device: DeviceDescription
    work: Work
    power: DevicePower
    source: str

    @property
    def idle_w(self) -> float:
        return idle_watts(self.device)

    def run_w(self, runs: dict[str, IntArray]) -> FloatArray:
        compute, memory, network = utilisation(self.device, self.work, runs)
        return np.asarray(watts(self.power, compute, memory, network))


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
    drawn, span = power.run_w(runs), (runs["end_ns"] - runs["start_ns"]).astype(np.float64)
    prefill = runs["prefill_seqs"] > 0
    if isinstance(power, StatePower):
        return power.prefill_w, power.decode_w
    out = []
    for state in (prefill, ~prefill):
        total = float(span[state].sum())
        idle_step = power.power.serving if isinstance(power, UtilisedPower) else power.idle_w
        out.append(float((drawn[state] * span[state]).sum()) / total if total else idle_step)
    return out[0], out[1]
