"""Importers: other people's measurements -> measured steps (`hermes-steps/1`).

Each importer is a config model registered under its `kind`; its fields are the options of `hermes profile import KIND`.
See `base` for the protocol. `query_aiconfigurator` and `query_genz` are not imported by anything: they run in the
interpreter that has those packages.
"""

from hermes.calibration.importers.base import IMPORTERS, Importer, ImporterConfig, Progress, no_progress
from hermes.calibration.importers.splitwise import Splitwise
from hermes.calibration.importers.vllm_cpu import VllmCpu

__all__ = ["IMPORTERS", "Importer", "ImporterConfig", "Progress", "Splitwise", "VllmCpu", "no_progress"]
