"""Measurements: what `hermes calibrate` can measure, one class for each kind, found by name in `MEASUREMENTS`.

    base        the protocol: plan, collect, pack, fit, show
    files       plan files in YAML: loading, templates, the plans of a card
    llm         steps of an LLM engine
    terms       operators and watts of a card
    link        host links
    start_up    starts of an engine

Searches, and an index for lookahead retrieval: the plug-in `hermes.plugins.retrieval`.
"""

from hermes.calibration.measurements.base import MEASUREMENTS, FitOptions, Measurement, Shown, again, existing
from hermes.calibration.plan import PointPlan, read_records
from hermes.calibration.session import Measured
from hermes.calibration.table_files import MeasuredHeader, MeasuredTable
from hermes.config.writing import write_text
from hermes.results.layout import Part, Section

__all__ = [
    "MEASUREMENTS", "FitOptions", "Measured", "MeasuredHeader", "MeasuredTable", "Measurement", "Part", "PointPlan",
    "Section", "Shown", "again", "existing", "read_records", "write_text",
]
