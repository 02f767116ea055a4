from typing import Literal

from pydantic import Field

from hermes.plugins.metis import QUALITY, Configuration, Quality, Query


@QUALITY.register("recall_only")
class RecallOnly(Quality):
    """F1 is the share of the needed pieces among the chunks that were read, less a loss for each other chunk."""

    kind: Literal["recall_only"] = "recall_only"
    loss: float = Field(default=0.01, ge=0, le=1)
    """Loss of F1 for each chunk without a needed piece."""

    def f1(self, query: Query, config: Configuration) -> float:
        found = sum(rank <= config.num_chunks for rank in query.ranks)
        return max(0.0, found / len(query.ranks) - self.loss * max(0, config.num_chunks - found))
