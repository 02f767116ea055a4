"""METIS: which configuration a RAG query gets (Ray et al., SOSP '25).

`decision` is the decision alone, profile -> pruned space -> chosen configuration, with the standard library only. The
other modules stand in for what a simulation has no text for: queries with true profiles (`datasets`), a profiler that
is sometimes wrong (`profiler`), the quality of an answer (`quality`), and what is compared with (`baselines`).
`hermes.plugins.metis.pipeline` puts them on the clock.
"""

from hermes.plugins.metis.decision import Choice, Configuration, Lengths, Profile, Reading, SpaceHistory, choose, prune

__all__ = ["Choice", "Configuration", "Lengths", "Profile", "Reading", "SpaceHistory", "choose", "prune"]
