"""Results of a simulation: metrics, tables, files, plots and comparisons computed from its `RunRecord`."""

from hermes.core.record import ClientInfo, RunRecord
from hermes.results.export import write_results
from hermes.results.results import Results
from hermes.results.slo import SloConfig, Slowdowns
from hermes.results.stored import StoredResults, open_run

__all__ = ["ClientInfo", "Results", "RunRecord", "SloConfig", "Slowdowns", "StoredResults", "open_run", "write_results"]
