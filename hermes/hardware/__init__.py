"""How long a step takes: hardware models, fitted profiles, and descriptions of language models and devices."""

from hermes.hardware.base import HARDWARE, HardwareModel, StepStats, VectorHardwareModel
from hermes.hardware.polynomial import Polynomial, PolynomialModel
from hermes.hardware.profile import Profile, load_profile

__all__ = [
    "HARDWARE", "HardwareModel", "Polynomial", "PolynomialModel", "Profile", "StepStats", "VectorHardwareModel",
    "load_profile",
]
