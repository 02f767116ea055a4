"""Properties of a hardware model besides step times: devices, parallelism, precision, memory, watts.

A model that knows any of them has a property `info`. Analytical models know their device. Fitted profiles know what was
measured beside the steps. Memory sizing and energy accounting read these properties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes.hardware.base import HardwareModel
from hermes.hardware.config import name_of
from hermes.hardware.descriptions.devices import DeviceDescription
from hermes.hardware.descriptions.models import PRECISIONS
from hermes.hardware.fitted.profile import ProfileMemory, ProfilePower, Provenance
from hermes.hardware.operators import Work

if TYPE_CHECKING:
    from hermes.hardware.composed.boxes import AssumedLink

__all__ = ["HardwareInfo", "hardware_info", "measured_info"]

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
    dp: int = 1                      # data-parallel ranks of the engine; `devices` are those of one
    whole_experts: bool = False      # on each device, not parts of all
    assumed_links: tuple[AssumedLink, ...] = ()   # links that neither the scenario nor the device names
    uncompared: tuple[str, ...] = ()   # properties with which no times were compared with a server's
    hardware: str = ""               # hardware that the profile or table was measured on, as its text says

    def remarks(self) -> list[str]:
        """Return what to know of times with these properties; docs/background/ranks.md has the comparisons."""
        if not self.uncompared:
            return []
        from hermes.site import page_url

        return [f"times with {' and '.join(self.uncompared)} were never compared with a server's "
                f"({page_url('background/ranks')})"]


def _dtype(text: str) -> str | None:
    name = _NAMES.get(text.lower(), text.lower())
    return name if name in PRECISIONS else None


def measured_info(name: str, kind: str, source: Provenance, **more: Any) -> HardwareInfo:
    """Return the fields that a profile or table states about its measurement."""
    tp = source.tensor_parallel
    return HardwareInfo(name, kind, source.model, tp, tp, dtype=_dtype(source.dtype), hardware=source.hardware, **more)


def hardware_info(hardware: HardwareModel) -> HardwareInfo:
    """Return the `info` of a hardware model; only its name if it has none."""
    known: HardwareInfo | None = getattr(hardware, "info", None)
    return HardwareInfo(name_of(hardware)) if known is None else known
