"""Fits of step times, searches and efficiency factors.

    estimators           weighted least squares on relative errors, errors on held-out groups: all fits use it
    polynomial           the step polynomial
    profile              measured steps to a profile; `checks` and `plot` judge and present it
    roofline             steps of a card to efficiency factors
"""

from hermes.calibration.fit.profile import FitResult, fit_steps, write_profile

__all__ = ["FitResult", "fit_steps", "write_profile"]
