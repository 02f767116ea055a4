"""Real hardware -> measured steps -> fitted profile.

`steps` is the one format of measured steps; collectors and importers produce it, the fit reads it. `collect` runs on
the machine that is measured and needs numpy and torch alone (so this package imports nothing by itself).
"""
