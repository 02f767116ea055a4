"""Hardware models (step times), fitted profiles, and descriptions of language models and devices."""

from hermes.hardware.base import HARDWARE, HardwareModel, StepStats, VectorHardwareModel
from hermes.hardware.devices import DeviceDescription, load_device
from hermes.hardware.layerwise import Layerwise, LayerwiseModel
from hermes.hardware.models import ModelDescription, load_model
from hermes.hardware.polynomial import Polynomial, PolynomialModel
from hermes.hardware.profile import Profile, load_profile
from hermes.hardware.roofline import Roofline, RooflineModel
from hermes.hardware.table import Table, TableModel, Tables, load_table

__all__ = [
    "HARDWARE", "DeviceDescription", "HardwareModel", "Layerwise", "LayerwiseModel", "ModelDescription", "Polynomial",
    "PolynomialModel", "Profile", "Roofline", "RooflineModel", "StepStats", "Table", "TableModel", "Tables",
    "VectorHardwareModel", "load_device", "load_model", "load_profile", "load_table",
]
