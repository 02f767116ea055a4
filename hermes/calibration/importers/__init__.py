"""Importers: convert other tools' measurements to measured steps (`hermes-steps/1`).

Each importer is a config model registered under its `kind`; its fields are the options of `hermes profile import KIND`.
See `base` for the protocol. `priced` asks programs that may live in another interpreter; the scripts in `remote` run
there and are not imported.
"""

from hermes.calibration.importers.aiconfigurator import Aiconfigurator
from hermes.calibration.importers.base import IMPORTERS, ImporterConfig, Progress, no_progress
from hermes.calibration.importers.csv_steps import CsvSteps
from hermes.calibration.importers.genz import Genz
from hermes.calibration.importers.layerwise import Layerwise

__all__ = ["IMPORTERS", "Aiconfigurator", "CsvSteps", "Genz", "ImporterConfig", "Layerwise", "Progress", "no_progress"]
