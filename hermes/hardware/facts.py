"""Facts of a hardware model besides step times: devices, parallelism, precision, memory, watts.

A model that knows any of them has a property `facts`. Analytical models know their device, fitted profiles what was
measured beside the steps. Clients size their memory and count joules with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hermes.hardware.base import HardwareModel
from hermes.hardware.devices import DeviceDescription
from hermes.hardware.models import PRECISIONS
from hermes.hardware.operators import Work
from hermes.hardware.profile import ProfileMemory, ProfilePower, Provenance

__all__ = ["HardwareFacts", "facts_of", "measured_facts"]

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


def measured_facts(name: str, kind: str, source: Provenance, **more: Any) -> HardwareFacts:
    """What a profile or table states of its measurement."""
    tp = source.tensor_parallel
    return HardwareFacts(name, kind, source.model, tp, tp, dtype=_dtype(source.dtype), hardware=source.hardware, **more)


def facts_of(hardware: HardwareModel) -> HardwareFacts:
    """What `hardware` says of itself as its `facts`; nothing but its name where it has none."""
    known: HardwareFacts | None = getattr(hardware, "facts", None)
    return HardwareFacts(getattr(hardware, "name", "")) if known is None else known
