"""Studies: questions that take many simulations, each with a command, tables, plots and a page in docs/studies.

`hermes study NAME` runs one. A study is registered by name in `STUDIES` (other packages: entry-point group
`hermes.studies`); its scenarios and sweeps lie in scenarios/studies/NAME.
"""

from hermes.studies.base import STUDIES, Context, Study, load_studies
from hermes.studies.report import Plot, Report, Table

__all__ = ["STUDIES", "Context", "Plot", "Report", "Study", "Table", "load_studies"]
