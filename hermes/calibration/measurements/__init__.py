"""Measurements: what `hermes calibrate` can measure, one class for each kind, found by name in `MEASUREMENTS`.

    base        the protocol: plan, collect, pack, fit, show
    files       plan files in YAML: loading, templates, the plans of a card
    llm         steps of an LLM engine
    terms       operators and watts of a card
    link        host links
    retrieval   searches
    ivf         one index for lookahead retrieval
    start_up    starts of an engine
"""

from hermes.calibration.measurements.base import MEASUREMENTS, FitOptions, Measurement, Shown
from hermes.calibration.plan import PointPlan, read_records
from hermes.calibration.session import Measured
from hermes.results.layout import Section

__all__ = ["MEASUREMENTS", "FitOptions", "Measured", "Measurement", "PointPlan", "Section", "Shown", "read_records"]
