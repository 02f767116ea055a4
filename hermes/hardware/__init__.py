"""Hardware models (step times) and their extension point; descriptions of language models and devices."""

from hermes.hardware.base import HARDWARE, HardwareModel, StepStats, VectorHardwareModel
from hermes.hardware.config import HardwareConfig
from hermes.hardware.descriptions.devices import DeviceDescription, load_device
from hermes.hardware.descriptions.files import find
from hermes.hardware.descriptions.models import ModelDescription, load_model
from hermes.hardware.fitted.profile import Profile, load_profile
from hermes.hardware.info import HardwareInfo

__all__ = [
    "HARDWARE", "DeviceDescription", "HardwareConfig", "HardwareInfo", "HardwareModel", "ModelDescription", "Profile",
    "StepStats", "VectorHardwareModel", "find", "load_device", "load_model", "load_profile",
]
