"""What a built hardware model knows besides step times: devices, parallelism, precision, memory, watts.

Analytical models know their device, fitted profiles what was measured beside the steps, tables nothing. Whoever sizes
memory or counts joules asks here instead of looking into the models.
"""

from __future__ import annotations

from dataclasses import dataclass

from hermes.hardware.base import HardwareModel
from hermes.hardware.devices import DeviceDescription
from hermes.hardware.models import PRECISIONS
from hermes.hardware.operators import Work
from hermes.hardware.polynomial import PolynomialModel
from hermes.hardware.profile import ProfileMemory, ProfilePower
from hermes.hardware.roofline import RooflineModel
from hermes.hardware.table import TableModel

__all__ = ["HardwareFacts", "facts_of"]

_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "fp8-static": "fp8", "fp8-block": "fp8",
          "int4": "int4-awq"}


@dataclass(frozen=True)
class HardwareFacts:
    """None, or 1 for the parallelism, where a model does not know."""

    name: str = ""
    tp: int = 1
    pp: int = 1
    dtype: str | None = None         # key of `PRECISIONS`
    kv_dtype: str = "auto"
    device: DeviceDescription | None = None
    memory: ProfileMemory | None = None
    power: ProfilePower | None = None
    work: Work | None = None
    hardware: str = ""               # what a profile or table was measured on, in its own words


def _dtype(text: str) -> str | None:
    name = _NAMES.get(text.lower(), text.lower())
    return name if name in PRECISIONS else None


def facts_of(hardware: HardwareModel) -> HardwareFacts:
    """What `hardware` knows."""
    if isinstance(hardware, RooflineModel):
        options = hardware.options
        return HardwareFacts(hardware.name, options.tp, options.pp, options.dtype, options.kv_dtype, hardware.device,
                             work=hardware.work)
    if isinstance(hardware, PolynomialModel):
        profile, source = hardware.profile, hardware.profile.provenance
        return HardwareFacts(profile.name, source.tensor_parallel, 1, _dtype(source.dtype), memory=profile.memory,
                             power=profile.power, hardware=source.hardware)
    if isinstance(hardware, TableModel):
        source = hardware.tables.provenance
        return HardwareFacts(hardware.name, source.tensor_parallel, 1, _dtype(source.dtype),
                             hardware=source.hardware)
    return HardwareFacts(getattr(hardware, "name", ""))
