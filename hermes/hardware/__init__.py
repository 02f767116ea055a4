"""Hardware models (step times) and their extension point; descriptions of language models and devices."""

from hermes.hardware.base import HARDWARE, HardwareModel, StepStats, VectorHardwareModel
from hermes.hardware.config import HardwareConfig
from hermes.hardware.devices import DeviceDescription, load_device
from hermes.hardware.files import find
from hermes.hardware.info import HardwareInfo
from hermes.hardware.models import ModelDescription, load_model
from hermes.hardware.profile import Profile, load_profile

__all__ = [
    "HARDWARE", "DeviceDescription", "HardwareConfig", "HardwareInfo", "HardwareModel", "ModelDescription", "Profile",
    "StepStats", "VectorHardwareModel", "find", "load_device", "load_model", "load_profile",
]
