"""Calibration: measure real hardware, and fit profiles to the measured steps.

`steps` is the one format of measured steps: collectors and importers produce it, the fit reads it. `collect` runs on
the measured machine and needs only numpy and torch (so this package imports nothing by itself).
"""
