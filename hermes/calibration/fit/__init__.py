"""Fits of step times, searches and efficiency factors, with scikit-learn's estimators and splitters.

    estimators           a linear model without negative coefficients; hold-outs of whole groups
    polynomial, terms    the step polynomial, the project's own estimator
    profile              measured steps to a profile; `checks`, `report` and `plot` judge and present it
    table                any of scikit-learn's regressors, sampled into a table
    retrieval            measured searches to a retrieval profile
    roofline             steps of a card to efficiency factors
"""

from hermes.calibration.fit.profile import FitResult, fit_file, fit_steps, write_profile

__all__ = ["FitResult", "fit_file", "fit_steps", "write_profile"]
