"""Model of cluster overlap: the clusters of an inverted file that a query and its rewrite both probe.

It is generative: an index has clusters of unequal size; a query ranks all of them; a rewrite of the query perturbs the
ranking. The overlap follows for any number of prefetched clusters or bytes, any nprobe, any sizes. The model is fitted
and chosen on measured indices (`hermes calibrate plan ivf`); `hermes.plugins.telerag` uses it.
"""

from hermes.plugins.telerag.overlap.curves import Curve, overlap_curve, overlap_within
from hermes.plugins.telerag.overlap.families import FAMILIES, Family, make_family
from hermes.plugins.telerag.overlap.fits import fit_bias, fit_strength, fit_strength_and_spread
from hermes.plugins.telerag.overlap.sizes import lognormal_sizes

__all__ = [
    "FAMILIES", "Curve", "Family", "fit_bias", "fit_strength", "fit_strength_and_spread", "lognormal_sizes",
    "make_family", "overlap_curve", "overlap_within",
]
