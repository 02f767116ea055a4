"""Power of one device: given or measured by state, or from the rates at which its units work.

The kernel computes millions of steps, so power is computed after the simulation, for all runs of steps at once:

    P = min(most, serving + memory u_memory + compute u_compute + network u_network + token_j x sampled tokens / s)

A unit's utilisation u is the work of the run at the unit's peak rate / time of the run. Time in which no unit works,
host gaps and most of a collective, draws `serving`. All watts are properties of the card: its description has them, or
`assumed` gives those of a GPU that nobody measured; a CPU takes GenZ's shares of its TDP (A. Bambhaniya et al., arXiv
2406.01698, and its repository). An idle device draws `idle_w` of its description (30% of the TDP without one).
docs/background/watts.md says what was found on which servers, and how far other models and cards are off.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from hermes.arrays import FloatArray, IntArray
from hermes.hardware.descriptions.devices import DeviceDescription, DevicePower
from hermes.hardware.operators import Work
from hermes.hardware.trust import Trust
from hermes.units import NS_PER_S

__all__ = ["SERVING_SHARE", "PowerModel", "StatePower", "UtilisedPower", "assumed", "device_power", "idle_watts",
           "limited_compute", "state_watts", "utilisation", "watts", "watts_trust"]

IDLE_SHARE = 0.30
SERVING_SHARE = 0.28
"""Of the TDP with the clocks up and no traffic: A100, batches of one on two to eight cards (Splitwise)."""
SUSTAINED = 0.72
"""Share of the peak arithmetic that products of real values keep up at the card's limit (`clocks` of the H100)."""
MOST_SHARE = 0.98
"""Of the TDP, what saturated H100 and B200 draw."""
BYTE_J, TOKEN_J = 122e-12, 0.034
"""Joules per byte of memory traffic and per sampled token: the means of A100, H100 and B200, and of H100 and B200."""
NEAR_W = Trust("near", 0.85, 1.15)
"""Of a card with measured watts: models left out of the fit, with simulated times, are off by 14% at worst."""
GUESS_W = Trust("guess", 0.75, 1.25)
"""Of other GPUs: A100, H100 and B200 with the others' joules are off by up to 20%, H100 at its limit by 24%; four
loads of an MI355X (DeepSeek-R1 on eight) by 18 to 27%, which is 0.79 of what is predicted."""
GUESS_CPU_W = Trust("guess", 0.6, 1.6)
"""Of CPUs: nothing was measured."""
CPU_SHARES = {"serving": 0.30, "memory": 0.20, "compute": 0.40, "network": 0.10, "most": 1.0}
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
        whose = "fitted to measured watts" if device.power.trust == "near" else "another card's"
        return device.power, f"device {device.name}: {whose} ({watts_trust(device).text()})"
    tdp = device.tdp_w
    if tdp is None:
        return None
    if device.type == "gpu":
        return assumed(tdp, device.memory_bandwidth), (
            f"assumed: {tdp:g} W and {device.memory_bandwidth / 1e12:g} TB/s, as A100, H100 and B200 draw, device "
            f"{device.name} ({watts_trust(device).text()})")
    scaled = DevicePower.model_validate({name: share * tdp for name, share in CPU_SHARES.items()})
    return scaled, f"assumed: GenZ's shares of {tdp:g} W, device {device.name} ({watts_trust(device).text()})"


def assumed(tdp_w: float, bandwidth: float) -> DevicePower:
    """Return the watts of a GPU of this TDP and memory bandwidth in bytes/s that nobody measured."""
    serving, most = SERVING_SHARE * tdp_w, MOST_SHARE * tdp_w
    limited = limited_compute(serving, most)   # no card that is known draws its limit for less of its memory's rate
    return DevicePower(serving=serving, memory=min(BYTE_J * bandwidth, limited), compute=limited, token_j=TOKEN_J,
                       most=most)


def limited_compute(serving: float, most: float) -> float:
    """Return `compute` of a card whose products draw `most` at the rate that they keep up."""
    return (most - serving) / SUSTAINED


def watts_trust(device: DeviceDescription) -> Trust:
    """Return class and range of a device's watts, as factors of them."""
    if device.power is not None:
        return NEAR_W if device.power.trust == "near" else GUESS_W
    return GUESS_W if device.type == "gpu" else GUESS_CPU_W


def idle_watts(device: DeviceDescription) -> float:
    """Return the watts of a device with nothing to do."""
    return IDLE_SHARE * (device.tdp_w or 0.0) if device.idle_w is None else device.idle_w


def watts(power: DevicePower, compute: Any, memory: Any, network: Any = 0.0, tokens: Any = 0.0) -> Any:
    """Return watts at these utilisations and sampled tokens per second, numbers or arrays."""
    used = power.serving + power.compute * compute + power.memory * memory + power.network * network
    return np.minimum(used + power.token_j * tokens, power.most)


@dataclass(frozen=True)
class UtilisedPower:
    """Watts by utilisation (see the module's docstring) for the work of one model on one device.

    stages: Pipeline stages that take turns on a client's one batch: its devices have the stages' mean. 1 where as many
        batches as stages are in flight, each of which is a client with its part of the devices.
    """

    device: DeviceDescription
    work: Work
    power: DevicePower
    source: str
    stages: int = 1

    @property
    def idle_w(self) -> float:
        return idle_watts(self.device)

    def run_w(self, runs: dict[str, IntArray]) -> FloatArray:
        compute, memory, network = utilisation(self.device, self.work, runs, self.stages)
        seconds = (runs["end_ns"] - runs["start_ns"]) / NS_PER_S
        tokens = runs["sampled"] * runs["num_steps"] / seconds / self.stages
        return np.asarray(watts(self.power, compute, memory, network, tokens))


def utilisation(
    device: DeviceDescription, work: Work, runs: dict[str, IntArray], stages: int = 1
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the shares of the peak arithmetic, memory and link rates in runs, each of shape (runs,), at most 1.

    stages: Of a pipeline, which take turns (`UtilisedPower`): each device has their mean.
    Within a run contexts alone grow, by a token a step, and work is linear in them: its mean step has their mean.
    """
    steps = runs["num_steps"]
    seconds = (runs["end_ns"] - runs["start_ns"]) / NS_PER_S / steps
    fields: dict[str, Any] = {
        name: runs[name] for name in ("prefill_tokens", "prefill_past", "prefill_attn", "decode_seqs", "sampled")
    }
    fields["decode_ctx"] = runs["decode_ctx"] + runs["decode_seqs"] * (steps - 1) / 2
    parts = work.ideal_s(SimpleNamespace(**fields), device.peak, device.memory_bandwidth, device.link_bandwidth)
    compute, memory, network = (np.minimum(part / seconds / stages, 1.0) for part in parts)
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
