"""Prefetch policies: the clusters that are copied to the GPU while a query is rewritten, and their order.

A policy is a class registered in `PREFETCH`; the key `prefetch` of an `ivf_index` client names it. The index asks it
once for each generation before a retrieval. The index copies the clusters in the policy's order, as long as whole
clusters fit into the budget, and counts buffer, bytes and time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hermes.arrays import IntArray
from hermes.config import ConfigModel, Registry
from hermes.errors import InputError, Verbatim

__all__ = ["PREFETCH", "NearestFirst", "NoPrefetch", "PrefetchPolicy", "PrefetchState", "checked_order"]


@dataclass(frozen=True, slots=True)
class PrefetchState:
    """State of the index when the generation before a retrieval begins.

    Attributes:
        ranked: Clusters near each query before its rewrite, nearest first, shape (queries, clusters). An index of
            measured ranks has the clusters of its file only.
        sizes: Bytes of each cluster, shape (clusters,).
        held: Clusters of this request that are on the GPU. They are not copied again.
        times_probed: Number of queries so far, of all requests, that probed each cluster, shape (clusters,).
        budget: Most bytes to copy: the pipeline's budget, or the free part of the buffer if that is less.
        nprobe: Clusters that the search will probe for each query.
    """

    ranked: IntArray
    sizes: IntArray
    held: IntArray
    times_probed: IntArray
    budget: int
    nprobe: int


class PrefetchPolicy(ConfigModel):
    """Base of prefetch policies. A subclass adds `kind`, its parameters, and writes `order`."""

    def order(self, state: PrefetchState) -> IntArray:
        """Return the clusters to copy, first to last, each at most once.

        The index calls it once for each generation before a retrieval. It copies from the front, whole clusters only,
        and stops at the first that exceeds the budget; clusters in `state.held` are left out. The result must depend on
        `state` alone. The arrays of `state` must not be modified.
        """
        raise NotImplementedError


PREFETCH: Registry[Any] = Registry("prefetch", "a prefetch policy", base=PrefetchPolicy)


@PREFETCH.register("nearest")
class NearestFirst(PrefetchPolicy):
    """TeleRAG's: the clusters nearest to the queries before their rewrite."""

    kind: Literal["nearest"] = "nearest"

    def order(self, state: PrefetchState) -> IntArray:
        order = state.ranked.T.ravel()   # the nearest of each query, then the second nearest, ...
        _, first = np.unique(order, return_index=True)
        return order[np.sort(first)]


@PREFETCH.register("none")
class NoPrefetch(PrefetchPolicy):
    """No prefetch: the CPU searches all probed clusters as it searches missed ones (`miss_search`)."""

    kind: Literal["none"] = "none"

    def order(self, state: PrefetchState) -> IntArray:
        return np.zeros(0, dtype=np.int64)


def checked_order(policy: Any, state: PrefetchState) -> IntArray:
    """Return a policy's order. Raises `InputError` for anything but clusters, each at most once."""
    order, clusters = np.asarray(policy.order(state)), len(state.sizes)
    if order.ndim != 1 or (order.size and order.dtype.kind not in "iu"):
        found = f"shape {order.shape} of {order.dtype}"
    elif order.size and not 0 <= order.min() <= order.max() < clusters:
        found = f"clusters {order.min()} to {order.max()} of {clusters}"
    elif np.bincount(order.astype(np.int64), minlength=1).max() > 1:
        found = f"cluster {np.bincount(order).argmax()} twice"
    else:
        return order.astype(np.int64)
    raise InputError(f"clusters, each at most once, from prefetch policy {policy.kind!r}", Verbatim(found),
                     field="prefetch")
