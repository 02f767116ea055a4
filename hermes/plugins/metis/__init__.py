"""METIS: choice of a configuration for each RAG query (Ray et al., SOSP '25).

`decision` makes the decision: profile -> pruned space -> chosen configuration; it needs the standard library only. The
other modules stand in for information that a simulation without text lacks: queries with true profiles (`datasets`), a
profiler that is sometimes wrong (`profiler`), the quality of an answer (`quality`), and the methods compared with
(`baselines`). `hermes.plugins.metis.pipeline` runs them on the simulation's clock.
"""

from hermes.plugins.metis.decision import Choice, Configuration, Lengths, Profile, Reading, SpaceHistory, choose, prune

__all__ = ["Choice", "Configuration", "Lengths", "Profile", "Reading", "SpaceHistory", "choose", "prune"]
