"""Properties of a built hardware model beside step times: devices, parallelism, precision, memory, watts.

Analytical models know their device. Fitted profiles know what was measured beside the steps. Tables know neither.
Memory sizing and energy accounting read these properties instead of the models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hermes.hardware.base import HardwareModel
from hermes.hardware.devices import DeviceDescription
from hermes.hardware.layerwise import LayerwiseModel
from hermes.hardware.models import PRECISIONS
from hermes.hardware.operators import Work
from hermes.hardware.polynomial import PolynomialModel
from hermes.hardware.profile import ProfileMemory, ProfilePower, Provenance
from hermes.hardware.roofline import RooflineModel
from hermes.hardware.table import TableModel

__all__ = ["HardwareInfo", "hardware_info"]

_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "fp8-static": "fp8", "fp8-block": "fp8",
          "int4": "int4-awq"}


@dataclass(frozen=True)
class HardwareInfo:
    """Properties of one hardware model; None if unknown (parallelism: 1)."""

    name: str = ""
    kind: str = ""                   # "roofline", "profile", "table" or "operator tables"
    model: str = ""                  # name or path of the description of the model that it prices, or free text
    devices: int | None = None       # of one client
    tp: int = 1
    pp: int = 1
    dtype: str | None = None         # key of `PRECISIONS`
    kv_dtype: str = "auto"
    device: DeviceDescription | None = None
    memory: ProfileMemory | None = None
    power: ProfilePower | None = None
    work: Work | None = None
    hardware: str = ""               # hardware that the profile or table was measured on, as its text says


def _dtype(text: str) -> str | None:
    name = _NAMES.get(text.lower(), text.lower())
    return name if name in PRECISIONS else None


def _measured(source: Provenance) -> dict[str, Any]:
    """The fields that a profile or table states about its measurement."""
    tp = source.tensor_parallel
    return {"model": source.model, "hardware": source.hardware, "devices": tp, "tp": tp, "dtype": _dtype(source.dtype)}


def hardware_info(hardware: HardwareModel) -> HardwareInfo:
    """Return the properties of `hardware`."""
    if isinstance(hardware, RooflineModel):
        options = hardware.options
        return HardwareInfo(hardware.name, "roofline", options.model, options.tp * options.pp, options.tp,
                             options.pp, options.dtype, options.kv_dtype, hardware.device, work=hardware.work)
    if isinstance(hardware, PolynomialModel):
        profile = hardware.profile
        return HardwareInfo(profile.name, "profile", **_measured(profile.provenance), memory=profile.memory,
                             power=profile.power)
    if isinstance(hardware, TableModel):
        return HardwareInfo(hardware.name, "table", **_measured(hardware.tables.provenance))
    if isinstance(hardware, LayerwiseModel):
        return HardwareInfo(hardware.name, "operator tables", hardware.model)
    return HardwareInfo(getattr(hardware, "name", ""))
