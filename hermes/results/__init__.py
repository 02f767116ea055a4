"""Results of a simulation: metrics, tables, files, plots and comparisons computed from its `RunRecord`.

`hermes.results.files.stored` reads results from a folder, `hermes.results.files.export` writes them.
"""

from hermes.core.record import ClientInfo, RunRecord
from hermes.results.measure import steps_within
from hermes.results.results import Results
from hermes.results.slo import SloConfig, Slowdowns

__all__ = ["ClientInfo", "Results", "RunRecord", "SloConfig", "Slowdowns", "steps_within"]
