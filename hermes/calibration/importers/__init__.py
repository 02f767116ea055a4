"""Importers: convert other tools' measurements to measured steps (`hermes-steps/1`).

Each importer is a config model registered under its `kind`; its fields are the options of `hermes profile import KIND`.
See `base` for the protocol. `query` asks programs that may live in another interpreter; the scripts in `remote` run
there and are not imported.
"""

from hermes.calibration.importers.aiconfigurator import Aiconfigurator
from hermes.calibration.importers.base import IMPORTERS, Importer, ImporterConfig, Progress, no_progress
from hermes.calibration.importers.csv_steps import CsvSteps
from hermes.calibration.importers.layerwise import Layerwise
from hermes.calibration.importers.roofline import RooflineSteps
from hermes.calibration.importers.splitwise import Splitwise
from hermes.calibration.importers.vllm_cpu import VllmCpu

__all__ = [
    "IMPORTERS", "Aiconfigurator", "CsvSteps", "Importer", "ImporterConfig", "Layerwise", "Progress",
    "RooflineSteps", "Splitwise", "VllmCpu", "no_progress",
]
