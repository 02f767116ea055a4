"""METIS: choice of a configuration for each RAG query (Ray et al., SOSP '25), open to choosers of others.

`decision` makes METIS's decision: profile -> pruned space -> chosen configuration; it needs the standard library only.
Three parts of the pipeline are extension points: what chooses (`choosers`, with METIS's own; `baselines`), the model of
answer quality (`quality`; `measured`, from a file), and the steps after the choice (`steps`). Other modules stand in
for information that a simulation without text lacks: queries with true profiles (`datasets`) and a profiler that is
sometimes wrong (`profiler`). `pipeline` runs them on the simulation's clock; `testing` has the contract suites.
"""

from hermes.plugins.metis.choosers import CHOOSERS, Chooser, Chooses, QueryState, Setting
from hermes.plugins.metis.datasets import Dataset, Query
from hermes.plugins.metis.decision import (
    METHODS,
    Choice,
    Configuration,
    Lengths,
    Profile,
    Reading,
    SpaceHistory,
    choose,
    prune,
)
from hermes.plugins.metis.quality import QUALITY, Quality, QualityModel
from hermes.plugins.metis.steps import STEPS, Step, Underway

__all__ = [
    "CHOOSERS", "METHODS", "QUALITY", "STEPS", "Choice", "Chooser", "Chooses", "Configuration", "Dataset", "Lengths",
    "Profile", "Quality", "QualityModel", "Query", "QueryState", "Reading", "Setting", "SpaceHistory", "Step",
    "Underway", "choose", "prune",
]
