"""What a built hardware model knows besides step times: devices, parallelism, precision, memory, watts.

Analytical models know their device, fitted profiles what was measured beside the steps, tables nothing. Whoever sizes
memory or counts joules asks here instead of looking into the models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hermes.hardware.base import HardwareModel
from hermes.hardware.composed import ComposedModel
from hermes.hardware.devices import DeviceDescription
from hermes.hardware.layerwise import LayerwiseModel
from hermes.hardware.models import PRECISIONS
from hermes.hardware.operators import Work
from hermes.hardware.polynomial import PolynomialModel
from hermes.hardware.profile import ProfileMemory, ProfilePower, Provenance
from hermes.hardware.roofline import RooflineModel
from hermes.hardware.table import TableModel

__all__ = ["HardwareFacts", "facts_of"]

_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "fp8-static": "fp8", "fp8-block": "fp8",
          "int4": "int4-awq"}


@dataclass(frozen=True)
class HardwareFacts:
    """None, or 1 for the parallelism, where a model does not know."""

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
    hardware: str = ""               # what a profile or table was measured on, in its own words


def _dtype(text: str) -> str | None:
    name = _NAMES.get(text.lower(), text.lower())
    return name if name in PRECISIONS else None


def _measured(source: Provenance) -> dict[str, Any]:
    """The facts that a profile or table states of its measurement."""
    tp = source.tensor_parallel
    return {"model": source.model, "hardware": source.hardware, "devices": tp, "tp": tp, "dtype": _dtype(source.dtype)}


def facts_of(hardware: HardwareModel) -> HardwareFacts:
    """What `hardware` knows."""
    if isinstance(hardware, ComposedModel):
        return replace(facts_of(hardware.base), kind="composed")
    if isinstance(hardware, RooflineModel):
        options = hardware.options
        return HardwareFacts(hardware.name, "roofline", options.model, options.tp * options.pp, options.tp,
                             options.pp, options.dtype, options.kv_dtype, hardware.device, work=hardware.work)
    if isinstance(hardware, PolynomialModel):
        profile = hardware.profile
        return HardwareFacts(profile.name, "profile", **_measured(profile.provenance), memory=profile.memory,
                             power=profile.power)
    if isinstance(hardware, TableModel):
        return HardwareFacts(hardware.name, "table", **_measured(hardware.tables.provenance))
    if isinstance(hardware, LayerwiseModel):
        return HardwareFacts(hardware.name, "operator tables", hardware.model)
    return HardwareFacts(getattr(hardware, "name", ""))
