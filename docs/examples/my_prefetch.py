from typing import Literal

import numpy as np
from pydantic import Field

from hermes.arrays import IntArray
from hermes.plugins.telerag import PREFETCH, PrefetchPolicy, PrefetchState


@PREFETCH.register("hot_first")
class HotFirst(PrefetchPolicy):
    """Of the clusters near a query, first those that earlier queries probed most often."""

    kind: Literal["hot_first"] = "hot_first"
    near: float = Field(default=2.0, ge=1)
    """Clusters that count as near, as a multiple of `nprobe`."""

    def order(self, state: PrefetchState) -> IntArray:
        near = np.unique(state.ranked[:, :int(self.near * state.nprobe)])
        return near[np.argsort(-state.times_probed[near], kind="stable")]
