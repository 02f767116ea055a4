"""How long a step takes: the extension point for hardware models; descriptions of language models and devices."""

from hermes.hardware.base import HARDWARE, HardwareModel, StepStats, VectorHardwareModel
from hermes.hardware.devices import DeviceDescription, load_device
from hermes.hardware.facts import HardwareFacts
from hermes.hardware.files import find
from hermes.hardware.models import ModelDescription, load_model
from hermes.hardware.profile import Profile, load_profile

__all__ = [
    "HARDWARE", "DeviceDescription", "HardwareFacts", "HardwareModel", "ModelDescription", "Profile", "StepStats",
    "VectorHardwareModel", "find", "load_device", "load_model", "load_profile",
]
