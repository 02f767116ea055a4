"""Resources of a client: devices, memory, power and price, each given or from a profile or device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from hermes.config import ConfigModel
from hermes.errors import InputError
from hermes.hardware.capacity import KvBudget
from hermes.hardware.descriptions.devices import DeviceDescription
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.info import HardwareInfo
from hermes.hardware.operators import Work
from hermes.hardware.power import PowerModel, StatePower, UtilisedPower, device_power

__all__ = ["ClientResources", "PowerConfig", "power_model", "price"]


class PowerConfig(ConfigModel):
    """Watts of one device by state of the client."""

    idle: float = Field(default=0.0, ge=0, le=1e6)
    """Watts while no step runs."""
    prefill: float = Field(default=0.0, ge=0, le=1e6)
    """Watts in steps that compute prompt tokens."""
    decode: float = Field(default=0.0, ge=0, le=1e6)
    """Watts in steps that only decode."""


@dataclass(frozen=True)
class ClientResources:
    """Resources of one client of a group: for memory, energy and cost."""

    devices: int
    device: str                  # name of the description, or ""
    memory: KvBudget
    power: PowerModel
    dollars_per_hour: float      # of one device
    price_source: str
    longest: int | None = None   # tokens of a request


def price(given: float | None, device: DeviceDescription | None) -> tuple[float, str]:
    """Return (dollars per hour of one device, their source)."""
    if given is not None:
        return given, "given"
    if device is not None and device.price_per_hour is not None:
        return device.price_per_hour, f"device {device.name} (rough list price)"
    return 0.0, "none"


def power_model(
    given: PowerConfig | None, info: HardwareInfo, device: DeviceDescription | None, model: str, devices: int,
    base_dir: Path | None,
) -> PowerModel:
    """Return the power of one device: given, the profile's, by TDP and utilisation, or none. It names its source."""
    if given is not None:
        return StatePower(given.idle, given.prefill, given.decode, "given")
    if info.power is not None:
        watts = info.power
        return StatePower(watts.idle_w, watts.prefill_w, watts.decode_w, f"profile {info.name}: {watts.source}")
    if device is None:
        return StatePower(0.0, 0.0, 0.0, "none (no power and no device given)")
    found = device_power(device)
    if found is None:
        return StatePower(0.0, 0.0, 0.0, f"none (device {device.name} states no TDP)")
    work = info.work if info.work is not None else _work(info, model, devices, base_dir)
    if work is None:
        return StatePower(0.0, 0.0, 0.0, "none (watts by utilisation need the description of the client's model)")
    return UtilisedPower(device, work, *found, stages=info.pp if devices >= info.tp * info.pp else 1)


def _work(info: HardwareInfo, model: str, devices: int, base_dir: Path | None) -> Work | None:
    """Return the work of the client's model split over its devices; None for a model without a description."""
    if not model:
        return None
    try:
        return Work.of(load_model(model, base_dir), tp=devices // info.pp, pp=info.pp, dtype=info.dtype or "bf16",
                       kv_dtype=info.kv_dtype)
    except InputError:
        return None
