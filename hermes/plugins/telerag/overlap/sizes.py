"""Sizes of an index's clusters, in bytes."""

from __future__ import annotations

import numpy as np

from hermes.arrays import IntArray, exp

__all__ = ["lognormal_sizes"]


def lognormal_sizes(clusters: int, total_bytes: int, sigma: float, rng: np.random.Generator) -> IntArray:
    """Return the bytes of each cluster, shape (clusters,): log-normal with this sigma, and exactly `total_bytes` in
    all.

    The sizes are the distribution's quantiles at (i + 1/2) / clusters in random order, so that an index of few clusters
    has its spread too.
    """
    from statistics import NormalDist

    normal = NormalDist()
    quantiles = np.array([normal.inv_cdf((i + 0.5) / clusters) for i in range(clusters)])
    raw = exp(sigma * rng.permutation(quantiles))
    ends = np.rint(np.cumsum(raw) * (total_bytes / raw.sum())).astype(np.int64)
    sizes: IntArray = np.diff(ends, prepend=0)
    return sizes
